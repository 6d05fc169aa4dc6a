"""Serve a page that generates texts with trained checkpoints, on gradio.

  fairseq-mm serve --checkpoint m_rnn glac fusion --index photos
  fairseq-mm serve --checkpoint glac --host 0.0.0.0 --auth-file users.txt

Each checkpoint has a tab: captions of an image, stories of five images or of
prompts (shown while they are written), or summaries of videos with transcripts.
With --index, a folder that fairseq-mm index has indexed can be searched. If the
network that extracted a checkpoint's features, or its weights file, is unknown,
the tab accepts features (.npy) instead, and says so.

Only this machine can reach the server. With another --host, users must log in.
"""

import argparse
import contextlib
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import POSITIVE
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.input_files import read_lines
from fairseq_mm.errors import UserError, file_errors, import_extra
from fairseq_mm.inference.checkpoint_files import with_local_paths

# first field of the processor's inputs -> what the tab does
_PURPOSES = {
    "image": "Describes an image in one sentence.",
    "images": "Tells a story of five images, a sentence for each, in the order of the images.",
    "prompt": "Writes a story.",
    "video": "Summarizes a video by its transcript.",
    "transcript": "Summarizes a video by its transcript.",
    "": "Writes a story.",
}
_LOOPBACK = ("127.0.0.1", "localhost")
_MOST_BEAMS, _MOST_TEXTS, _MOST_IMAGES = 20, 10, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several: dict[str, Any] = {"nargs": "+", "default": [], "action": "extend"}
    rows: arguments.Rows = {
        "--checkpoint": ("Checkpoints: files, folders or ensembles.", several),
        "--index": ("Folders of images that fairseq-mm index has indexed.", several),
        "--weights": ("State dict files of extractors, if not beside the checkpoints.", several),
        "--host": ("Address (default: %(default)s).", {"default": "127.0.0.1"}),
        "--port": ("Port (default: %(default)s).", {**POSITIVE, "default": 8000}),
        "--max-upload": ("MiB of an upload (default: %(default)s).", {**POSITIVE, "default": 32}),
        "--auth-file": ("File with a line NAME:PASSWORD for each user.", {"metavar": "FILE"}),
    }
    arguments.add_rows(parser, rows)
    arguments.add(parser, "data", "device")


def run(args: argparse.Namespace) -> None:
    arguments.check(args)
    if not args.checkpoint and not args.index:
        raise UserError("nothing to serve: give a --checkpoint, or a folder of images (--index).")
    lines = [line for _, line in read_lines(args.auth_file)] if args.auth_file else []
    users = [(name, password) for name, _, password in (line.partition(":") for line in lines)]
    if not all(all(user) for user in users) or not (users or args.host in _LOOPBACK):
        raise UserError(
            "--auth-file must have lines NAME:PASSWORD, and is needed for a --host that other "
            "machines can reach."
        )
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=folder)
        import_extra("gradio", extra="serve", purpose="fairseq-mm serve")
        register_quietly()
        systems = load_systems(args)
        try:
            page = open_page(systems, args.host, args.port, max_upload=args.max_upload, users=users)
        except OSError as error:
            raise UserError(f"--port {args.port}: {error}") from None
        print(f"serving {', '.join(x.name for x in systems)} at {page.local_url}", file=sys.stderr)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        page.close(verbose=False)


class System(NamedTuple):
    """Checkpoint, or image index (with the input field ``query``), that is shown in a tab."""

    name: str
    field: str
    model: Any
    about: str
    reads_features: bool = False  # instead of images or videos


def load_systems(args: argparse.Namespace) -> list[System]:
    """Load the checkpoints and indexes that the command line names."""
    from fairseq_mm.data.input_files import compute_sha256
    from fairseq_mm.inference.checkpoint import Checkpoint, usable_device
    from fairseq_mm.inference.image_index import ImageIndex
    from fairseq_mm.inference.pretrained import from_checkpoints

    systems = []
    opened = [Checkpoint.open_all(with_local_paths(x), data=args.data) for x in args.checkpoint]
    for checkpoints in opened:
        first = checkpoints[0]
        recorded = first.extractor.get("weights") if first.has_provenance else None
        model: Any = from_checkpoints(
            checkpoints,
            kind="generator",
            device=args.device,
            weights=next((x for x in args.weights if compute_sha256(x) == recorded), None),
            data=None if first.has_provenance else args.data,
        )
        field = next(iter(model.processor.input_fields), "")
        if field not in _PURPOSES or not (field or model.loaded.are_language_models):
            raise UserError(f"{first.path}: the page has no input for `{field}`.")
        reads_features = False
        if model.processor.extractor_identity is not None:
            try:
                _ = model.processor.reader.extractor
            except UserError as error:
                print(f"{first.arch}: accepts features only: {error}", file=sys.stderr)
                reads_features = True
        systems.append(System(first.arch, field, model, first.summary(), reads_features))
    for folder in args.index:
        index = ImageIndex.open(folder, device=str(usable_device(args.device)))
        _ = index.embedder.extractor  # report a missing network before the server starts
        name = os.path.basename(os.path.abspath(folder))
        systems.append(System(name, "query", index, f"{len(index):,} images"))
    names = [system.name for system in systems]
    for place, name in enumerate(names):
        if name in names[:place]:
            systems[place] = systems[place]._replace(name=f"{name}_{place + 1}")
    return systems


def open_page(
    systems: Sequence[System], host: str, port: Any = None, *, max_upload: int = 32, users: Any = ()
) -> Any:
    """Serve a page with a tab for each system, in background threads; return the gradio page.

    ``port`` None is a free port, ``max_upload`` is in MiB, ``users`` are pairs (name, password).
    """
    import gradio as gr
    from starlette.middleware import Middleware, trustedhost

    with gr.Blocks(title="fairseq-mm", analytics_enabled=False, delete_cache=(600, 600)) as page:
        for system in systems:
            with gr.Tab(system.name):
                (_add_search if system.field == "query" else _add_generator)(gr, system)
    # one thread at a time uses the models
    page.queue(default_concurrency_limit=1, max_size=64)
    for function in page.fns.values():
        function.concurrency_id = "models"
    # pages of sites whose names lead to this machine could use the API
    hosts: Any = {"allowed_hosts": ["*"] if users else list(_LOOPBACK)}
    page.launch(
        server_name=host,
        server_port=port,
        auth=list(users) or None,
        max_file_size=max_upload << 20,
        app_kwargs={"middleware": [Middleware(trustedhost.TrustedHostMiddleware, **hosts)]},
        # fonts of the system: others would be fetched
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        footer_links=["api"],
        run_history=False,
        share=False,
        ssr_mode=False,
        prevent_thread_lock=True,
        quiet=True,
    )
    return page


@contextlib.contextmanager
def _one_line(gr: Any, system: System) -> Iterator[None]:
    """Show a UserError on the page, as one line without paths of the server."""
    try:
        yield
    except UserError as error:
        message = " ".join(str(error).split())
        for path in getattr(system.model, "files", [getattr(system.model, "path", "")]):
            message = message.replace(path, system.name)
        raise gr.Error(message, print_exception=False) from None


def _add_generator(gr: Any, system: System) -> None:
    """Fill the tab of a checkpoint: input fields, options, button and outputs."""
    field, model, processor = system.field, system.model, system.model.processor
    has_transcript = "transcript" in processor.input_fields
    purpose = _PURPOSES[field]
    if system.reads_features:
        purpose += (
            " The network that extracted its training features is unknown, so it takes features "
            f"only: `.npy` files of [rows, {model.loaded.feature_dim}] floats."
        )
    gr.Markdown(f"{purpose}\n\n`{system.about}`")
    item = _add_input(gr, system)
    transcript = gr.Textbox("", label="Transcript", max_length=99_999, visible=has_transcript)
    defaults = model.config().to_dict()
    has_several = not processor.has_headings
    with gr.Accordion("Options", open=False):
        options = [
            gr.Slider(1, _MOST_BEAMS, defaults["beam"], step=1, precision=0, label="beam"),
            gr.Slider(1, _MOST_TEXTS, 1, step=1, precision=0, label="nbest", visible=has_several),
            gr.Checkbox(defaults["sampling"], label="sampling"),
            gr.Number(defaults["seed"], precision=0, minimum=0, label="seed"),
        ]
    button = gr.Button("Generate", variant="primary")
    texts: Any = (
        gr.Dataframe(headers=["text", "score"], wrap=True, label="Texts")
        if has_several
        else gr.Textbox(label="Story", lines=8)
    )

    def generate(
        item: Any,
        transcript: str = "",
        beam: int = defaults["beam"],
        nbest: int = 1,
        sampling: bool = defaults["sampling"],
        seed: int = defaults["seed"],
    ) -> Iterator[Any]:
        with _one_line(gr, system):
            values = {"beam": beam, "nbest": nbest, "sampling": sampling, "seed": seed}
            # an option that is not changed has the value of the task's preset
            config = model.config(**{x: y for x, y in values.items() if y != defaults[x]})
            value = _read_input(system, item)
            if has_transcript:
                video = {} if value is None else {"video": value}
                value = {**video, "transcript": transcript if transcript.strip() else None}
            (example,) = processor.examples([value])
            if isinstance(example, UserError):
                raise example
            if has_several:
                (found,) = model.stream([example], config)
                yield [[hypothesis.text, round(hypothesis.score, 4)] for hypothesis in found]
            else:
                yield from stream_text(model, example, config)

    events = [button.click, *([item.upload] if field == "image" else [])]
    gr.on(events, generate, [item, transcript, *options], texts, api_name=system.name)


def _add_input(gr: Any, system: System) -> Any:
    """Add and return the component for the first field of an input; invisible if the model reads no
    such field."""
    several = "multiple" if system.field == "images" else "single"
    if system.reads_features:
        return gr.File(label="Features (.npy)", file_types=[".npy"], file_count=several)
    if system.field == "image":
        return _add_image(gr, "Image")
    if system.field == "images":
        return gr.Gallery(label="Five images", type="filepath", file_types=["image"], columns=5)
    if system.field == "video":
        return gr.File(label="Video, or features (.npy)", file_types=[".npy", "video"])
    return gr.Textbox(label="Prompt", lines=2, max_length=5000, visible=system.field == "prompt")


def _add_image(gr: Any, label: str) -> Any:
    image = gr.Image(type="filepath", sources=["upload"], label=label)
    # only our readers open the file
    image.preprocess = lambda payload: None if payload is None else payload.path
    return image


def _read_input(system: System, item: Any) -> Any:
    """Return the value of the input component as the model's processor reads it."""
    if system.field == "prompt":
        return item
    if system.field == "images":
        # a gallery has pairs of path and caption
        paths = [path if isinstance(path, str) else path[0] for path in item or []]
        return [_read_features(path) if system.reads_features else path for path in paths]
    if system.field not in ("image", "video"):
        return None
    if item is None and system.field == "image":
        raise UserError("there is no image.")
    return _read_features(item) if item and item.lower().endswith(".npy") else item


def _read_features(path: str) -> Any:
    """Return the features of an uploaded ``.npy`` file, without unpickling."""
    import numpy as np

    with file_errors(os.path.basename(path)):
        # mapped, since a header may declare more numbers than the file has
        features = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        if features.dtype.kind != "f" or not np.isfinite(features).all():
            raise ValueError("features must be finite floats")
    return features


def stream_text(model: Any, example: Any, config: Any) -> Iterator[str]:
    """Yield the text while it is generated, then the whole text; closing ends the generation."""
    texts: queue.SimpleQueue[Any] = queue.SimpleQueue()
    is_closed = threading.Event()

    def watch(progress: Any) -> None:
        if is_closed.is_set():
            raise GeneratorExit
        if progress.positions:
            texts.put(model.processor.to_text(progress.decode(0)))

    def generate() -> None:
        try:
            ((best, *_),) = model.stream([example], config, watch=watch)
            texts.put((model.processor.to_text(best),))
        except BaseException as error:  # raised again by the thread that yields
            texts.put(error)

    thread = threading.Thread(target=generate)
    thread.start()
    try:
        while isinstance(text := texts.get(), str):
            yield text
        if isinstance(text, BaseException):
            raise text
        yield text[0]
    finally:
        is_closed.set()
        thread.join()


def _add_search(gr: Any, system: System) -> None:
    """Fill the tab of an image index: input fields, button and gallery."""
    gr.Markdown(f"Finds images of a folder by a sentence or by an image.\n\n`{system.about}`")
    query = gr.Textbox(label="Sentence", max_length=5000)
    image = _add_image(gr, "or image")
    count = gr.Slider(1, _MOST_IMAGES, 10, step=1, precision=0, label="number of images")
    button = gr.Button("Search", variant="primary")
    found = gr.Gallery(label="Nearest images", columns=5, interactive=False)

    def search(query: str = "", image: Optional[str] = None, count: int = 10) -> Any:
        from fairseq_mm.extract.media import read_image

        with _one_line(gr, system):
            model = system.model
            (result,) = (model.search_images if image else model.search)([image or query], count)
            if result.unknown_words:
                gr.Info(f"Unknown words, left out: {', '.join(result.unknown_words)}")
            shown = []
            for hit in result.images:
                thumbnail = read_image(hit.path)
                thumbnail.thumbnail((320, 320))
                shown.append((thumbnail, f"{hit.rank}. {hit.id} ({hit.score:.4f})"))
            return shown

    gr.on([query.submit, button.click], search, [query, image, count], found, api_name=system.name)
