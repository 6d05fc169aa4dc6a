"""Photographs to captions, by a trained model.

  fairseq-mm caption photo.jpg --model checkpoints/m_rnn
  fairseq-mm caption photos/ holiday.tar --model checkpoint_best.pt --weights mobilenet_v2.pt
  fairseq-mm caption photo.jpg --model checkpoints/m_rnn --prefix "a man" --nearest data/flickr8k
  fairseq-mm caption --features features.h5 --model checkpoints/m_rnn --jsonl > captions.jsonl

Prints a line a picture, path, tab, caption, in the order of the inputs. The extractor is the one
that the model was trained with; its weights file is looked for beside the checkpoint, and known by
its content. A picture that cannot be read is named on stderr, the others are captioned all the
same, and the exit status is 2.

--nearest adds the training caption that resembles each caption most, by CIDEr-D (0 to 10) of the
caption against that one alone.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TextIO, Union

from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import EXIT_STATUS, UserError

# pictures from which on a bar shows how far the work is
MANY = 50
# lines are printed after so many pictures
PIECE = 100


class Input(NamedTuple):
    """A picture, or an id of a feature store.

    Attributes:
        name: what is printed.
        picture: where it lies; None for an id.
        error: the reason why there is none.
    """

    name: str
    picture: Any = None
    error: Optional[UserError] = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.extract.pictures import MAX_PIXELS

    parser.add_argument(
        "pictures",
        nargs="*",
        metavar="PICTURE",
        help="picture, folder (with its subfolders) or .tar of pictures; with --features an id of "
        "the store",
    )
    parser.add_argument(
        "--list", action="append", default=[], metavar="FILE", help="pictures, one path a line"
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="folder with checkpoint_best.pt or else checkpoint_last.pt, or a checkpoint; several, "
        f"separated by {os.pathsep!r}, are an ensemble",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="state dict file of the extractor that made the features"
    )
    parser.add_argument(
        "--features",
        metavar="STORE",
        help="caption items of a feature store instead: those named, or all",
    )
    search = parser.add_argument_group("search")
    search.add_argument("--beam", type=int, help="width of the beam (default: 3)")
    search.add_argument("--prefix", metavar="WORDS", help="first words of every caption")
    search.add_argument("--sampling", action="store_true", help="draw the words instead")
    search.add_argument(
        "--topk", type=int, default=0, metavar="K", help="draw from the K most probable words"
    )
    search.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    search.add_argument(
        "--seed", type=int, default=0, help="of each picture's draws (default: %(default)s)"
    )
    search.add_argument(
        "--max-words", type=int, default=30, metavar="N", help="default: %(default)s"
    )
    search.add_argument(
        "--no-repeat-ngram", type=int, default=0, metavar="N", help="no N words occur twice in turn"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--nearest", metavar="DATA", help="data folder whose nearest training caption is added"
    )
    output.add_argument(
        "--jsonl",
        action="store_true",
        help="an object a line: id, caption, score (mean log-probability of a word), nearest, "
        "extractor, checkpoint (SHA-256), options",
    )
    output.add_argument("--output", metavar="FILE", help="write there instead of to the screen")
    run_options = parser.add_argument_group("run")
    run_options.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    run_options.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="pictures that the extractor gets at a time (default: 16 on a CPU, 128 elsewhere)",
    )
    run_options.add_argument(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="larger JPEGs are decoded at reduced scale, other pictures refused "
        "(default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    if not args.pictures and not args.list and not args.features:
        raise UserError("no pictures: give files or folders, or a feature store (--features).")
    if args.sampling and args.beam is not None:
        raise UserError("--beam and --sampling: draws have no beam; leave one of the two out.")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size must be 1 or more, but is {args.batch_size} instead.")
    if args.features and (args.weights or args.list):
        given = "--weights" if args.weights else "--list"
        raise UserError(f"{given}: with --features no picture is read; leave one of the two out.")
    folder = os.path.dirname(args.output or "")
    if folder and not os.path.isdir(folder):
        raise UserError(f"--output {args.output}: there is no folder {folder}.")
    register_quietly()

    from fairseq_mm.captioner import Search, from_pretrained

    search = Search(
        beam=1 if args.sampling else 3 if args.beam is None else args.beam,
        prefix=args.prefix,
        sampling=args.sampling,
        topk=args.topk,
        temperature=args.temperature,
        seed=args.seed,
        max_words=args.max_words,
        no_repeat_ngram=args.no_repeat_ngram,
    )
    captioner = from_pretrained(args.model, weights=args.weights, device=args.device)
    captioner.check_search(search)
    if args.features:
        inputs, features_of = _stored(args, captioner)
    else:
        captioner.extractor  # noqa: B018  an extractor that cannot be rebuilt is named first
        inputs = _list_pictures(args.pictures, args.list)

        def features_of(piece: list[Input]) -> Iterator[Any]:
            pictures = [item.picture for item in piece]
            return captioner.features_of(
                pictures, batch_size=args.batch_size, max_pixels=args.max_pixels
            )

    describe = _Description(args, captioner, search)
    failed = 0
    with _opened(args.output) as file, _progress_bar(len(inputs)) as bar:
        for start in range(0, len(inputs), PIECE):
            piece = inputs[start : start + PIECE]
            readable = iter(features_of([item for item in piece if item.error is None]))
            found = [(item, item.error or next(readable)) for item in piece]
            for item, features in found:
                if isinstance(features, UserError):
                    failed += 1
                    bar.clear()
                    print(f"fairseq-mm caption: {item.name}: {features}", file=sys.stderr)
            found = [pair for pair in found if not isinstance(pair[1], UserError)]
            captions = captioner.caption_features([features for _, features in found], search)
            for (item, _), caption in zip(found, captions):
                print(describe(item.name, caption), file=file)
            file.flush()
            bar.update(len(piece))
    if args.output:
        print(f"wrote {args.output}: captions of {len(inputs) - failed} pictures", file=sys.stderr)
    if failed and len(inputs) > 1:
        print(f"{failed} of {len(inputs)} pictures could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _list_pictures(paths: list[str], lists: list[str]) -> list[Input]:
    from fairseq_mm.extract.picture_list import list_pictures

    inputs = []
    for path in paths:
        try:
            pictures = list_pictures([path], ids="path")
        except UserError as error:
            inputs.append(Input(path, error=UserError(_without_name(str(error), path))))
        else:
            inputs += [Input(picture.name, picture) for picture in pictures]
    if lists:
        pictures = list_pictures([], lists=lists, ids="path")
        inputs += [Input(picture.name, picture) for picture in pictures]
    return inputs


def _without_name(message: str, path: str) -> str:
    return message[len(path) + 2 :] if message.startswith(f"{path}: ") else message


def _stored(
    args: argparse.Namespace, captioner: Any
) -> tuple[list[Input], Callable[[list[Input]], Iterator[Any]]]:
    from fairseq_mm.data.feature_store import open_features

    store = open_features(args.features.split(os.pathsep))
    captioner.check_features(store.attributes, store.dim, store.path)
    for key in args.pictures:
        store.rows_of(key)  # an id that is not in the store is named before the work begins
    inputs = [Input(key) for key in args.pictures or store.ids]
    return inputs, lambda piece: (store.read(item.name) for item in piece)


class _Description:
    """The line that is printed for a caption."""

    def __init__(self, args: argparse.Namespace, captioner: Any, search: Any) -> None:
        import dataclasses

        from fairseq_mm.extract.weights import sha256_of

        self.nearest = _Nearest(args.nearest) if args.nearest else None
        self.facts: Optional[dict[str, Any]] = None
        if args.jsonl:
            checkpoints = [sha256_of(file) for file in captioner.files]
            self.facts = {
                "extractor": captioner.identity,
                "checkpoint": checkpoints[0] if len(checkpoints) == 1 else checkpoints,
                "options": dataclasses.asdict(search),
            }

    def __call__(self, name: str, caption: Any) -> str:
        nearest = self.nearest(caption.text) if self.nearest else None
        if self.facts is None:
            return "\t".join([name, caption.text] + ([nearest["caption"]] if nearest else []))
        entry = {"id": name, "caption": caption.text, "score": round(caption.score, 4)}
        if nearest:
            entry["nearest"] = nearest
        return json.dumps({**entry, **self.facts}, ensure_ascii=False)


class _Nearest:
    """Nearest caption of ``text/train.txt`` of a data folder."""

    def __init__(self, folder: str) -> None:
        from fairseq_mm.data.multimodal_dataset import check_line_counts
        from fairseq_mm.data.visual_ids import read_visual_ids
        from fairseq_mm.metrics.nearest_caption import NearestCaption

        text_path = os.path.join(folder, "text", "train.txt")
        ids_path = os.path.join(folder, "train.visual_ids")
        try:
            lines = Path(text_path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UserError(
                f"--nearest {folder}: {text_path}: {error.strerror}; is it a folder made by "
                "`prepare`?"
            ) from None
        self.ids = read_visual_ids(ids_path)
        check_line_counts({text_path: len(lines), ids_path: len(self.ids)})
        if not lines:
            raise UserError(f"{text_path}: must have training captions, but is empty.")
        self.lines = lines
        self.index = NearestCaption([line.split() for line in lines], self.ids)

    def __call__(self, text: str) -> dict[str, Union[str, float]]:
        index, similarity = self.index.nearest(text.split())
        return {
            "caption": self.lines[index],
            "id": self.ids[index],
            "cider_d": round(similarity, 4),
        }


@contextlib.contextmanager
def _opened(path: Optional[str]) -> Iterator[TextIO]:
    """stdout, or a file that appears when it is complete."""
    if path is None:
        yield sys.stdout
        return
    with output_file(path) as file:
        yield file


def _progress_bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit=" pictures", file=sys.stderr, disable=total < MANY or None)
