"""Serve a page and a JSON API that generate texts with trained checkpoints.

  fairseq-mm serve --checkpoint checkpoints/m_rnn
  fairseq-mm serve --checkpoint captions=m_rnn glac fusion --index photos
  fairseq-mm serve --checkpoint glac --host 0.0.0.0 --token-file token.txt

The page has a form for each checkpoint. The form depends on the task: captions of
an image, stories of five images, stories of prompts (shown while they are
written), or summaries of videos with transcripts. With --index, a folder that
fairseq-mm index has indexed can be searched. The API answers with the JSON
records that caption, tell and summarize write; /openapi.json describes it.

Image and video features are extracted with the network that a checkpoint was
trained on; its weights file is searched next to the checkpoint and verified by
its SHA-256 digest. Requests that wait for the same checkpoint with the same
options are generated as one batch.

Only programs of the own machine can reach the server. With another --host, every
request needs a token of at least 16 characters, from --token-file or the variable
FAIRSEQ_MM_TOKEN. The server sends no file of the disk but its page and thumbnails
of the images in --index, and writes only temporary files. It ends on Ctrl-C or
SIGTERM, with status 0.
"""

import argparse
import itertools
import os
import sys
from typing import TYPE_CHECKING, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rows, positive
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.generation.defaults import WEIGHTS_DTYPES
from fairseq_mm.inference.checkpoint_files import with_local_paths
from fairseq_mm.serving.requests import Limits

if TYPE_CHECKING:
    from fairseq_mm.serving.systems import System

TOKEN_VARIABLE = "FAIRSEQ_MM_TOKEN"
_SHORTEST_TOKEN = 16
_MIB = 1 << 20
_DEFAULTS = Limits()

_LIMITS: Rows = {
    "--max-upload": (
        "Maximum size of a request in MiB (default: %(default)s).",
        {"type": positive, "metavar": "MIB", "default": _DEFAULTS.upload_bytes // _MIB},
    ),
    "--max-pixels": (
        "Maximum number of pixels of an image or a frame; larger JPEGs are decoded at reduced "
        "scale, larger images of other formats are refused (default: %(default)s).",
        {"type": positive, "metavar": "N", "default": _DEFAULTS.pixels},
    ),
    "--max-frames": (
        "Maximum number of frames (clips) of a video that are read (default: the maximum of the "
        "model).",
        {"type": positive, "metavar": "N"},
    ),
    "--max-words": (
        "Maximum number of words of a prompt or transcript, and of tokens of a text (default: "
        "%(default)s).",
        {"type": positive, "metavar": "N", "default": _DEFAULTS.words},
    ),
    "--max-seconds": (
        "Maximum time of a request, waiting included (default: %(default)s).",
        {"type": positive, "metavar": "S", "default": _DEFAULTS.seconds},
    ),
    "--max-waiting": (
        "Maximum number of requests at a time; further ones are answered with status 503 and "
        "Retry-After (default: %(default)s).",
        {"type": positive, "metavar": "N", "default": _DEFAULTS.waiting},
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        default=[],
        action="extend",
        metavar="[NAME=]CKPT",
        help="Checkpoint to serve: a file, a folder with one, or an ensemble; several may follow. "
        "NAME is its name on the page (default: its --arch).",
    )
    parser.add_argument(
        "--index",
        nargs="+",
        default=[],
        action="extend",
        metavar="[NAME=]FOLDER",
        help="Folder of images that fairseq-mm index has indexed, to be searched; several may "
        "follow.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="Address to listen on (default: %(default)s)."
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=8000,
        metavar="N",
        help="Port to listen on; 0 for any free port (default: %(default)s).",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="File with the token that requests must have."
    )
    models = parser.add_argument_group("models")
    models.add_argument(
        "--weights",
        nargs="+",
        default=[],
        action="extend",
        metavar="FILE",
        help="State dict files of extractors (default: found by their content beside the "
        "checkpoints).",
    )
    arguments.add(
        models,
        *("embedding", "data", "device"),
        data={
            "help": "Data folder with the dictionaries of checkpoints of fairseq's own models; "
            "other checkpoints contain them."
        },
    )
    models.add_argument(
        "--weights-dtype",
        choices=WEIGHTS_DTYPES,
        default="float32",
        help=arguments.GENERATION["weights_dtype"]["help"],
    )
    arguments.add_rows(parser.add_argument_group("limits"), _LIMITS)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, but is {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> None:
    arguments.check(args)
    names = [_split_name(text) for text in args.checkpoint]
    folders = [_split_name(text) for text in args.index]
    if not names and not folders:
        raise UserError("nothing to serve: give a --checkpoint, or a folder of images (--index).")
    # before torch and fairseq are imported, which takes seconds
    names = [(name, with_local_paths(path)) for name, path in names]
    for module in ("starlette", "uvicorn", "python_multipart"):
        import_extra(module, extra="serve", purpose="fairseq-mm serve")
    register_quietly()
    from fairseq_mm.serving.app import Server
    from fairseq_mm.serving.loading import load_indexes, load_systems
    from fairseq_mm.serving.server import is_loopback, open_port, run

    token = _read_token(args.token_file)
    if token is None and not is_loopback(args.host):
        raise UserError(
            f"--host {args.host}: can be reached from other machines, and needs a token "
            f"(--token-file FILE, or the variable {TOKEN_VARIABLE})."
        )
    # opened before the models are loaded, which takes longer
    with open_port(args.host, args.port) as listener:
        limits = Limits(
            upload_bytes=args.max_upload * _MIB,
            pixels=args.max_pixels,
            frames=args.max_frames,
            words=args.max_words,
            seconds=args.max_seconds,
            waiting=args.max_waiting,
        )
        generators = load_systems(
            names,
            limits,
            weights=args.weights,
            weights_dtype=args.weights_dtype,
            embedding=args.embedding,
            data=args.data,
            device=args.device,
        )
        systems: dict[str, System] = {}
        for system in itertools.chain(
            generators, load_indexes(folders, limits, device=args.device)
        ):
            if system.name in systems:
                raise UserError(
                    f"two systems are named {system.name}: give them names (--checkpoint "
                    "first=CKPT second=CKPT)."
                )
            systems[system.name] = system
        for system in systems.values():
            print(f"{system.name}: {system.about}", file=sys.stderr)
        run(Server(systems.values(), limits, token=token), listener, host=args.host)


def _split_name(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH`` into name and path; the name is empty if ``text`` is only a path."""
    # a path may have "=" in it
    name, sign, path = text.partition("=")
    if not (sign and name) or os.sep in name or os.path.exists(text):
        return "", text
    return name, path


def _read_token(path: Optional[str]) -> Optional[str]:
    """Return the token of the file or the environment variable; None if there is no token.

    Raise UserError if the file cannot be read, or the token is too short or has spaces.
    """
    where, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE)
    if path is not None:
        where = f"--token-file {path}"
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is no text"
            raise UserError(f"{where}: cannot be read ({reason}).") from None
    if token is None:
        return None
    # characters that headers can have
    has_others = any(not "!" <= character <= "~" for character in token)
    if has_others or len(token) < _SHORTEST_TOKEN:
        # without the token itself, because messages are logged
        raise UserError(
            f"{where}: must have a token of at least {_SHORTEST_TOKEN} ASCII characters without "
            "spaces, such as the output of: openssl rand -hex 32"
        )
    return token
