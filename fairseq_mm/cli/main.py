"""Runs ``fairseq-mm SUBCOMMAND ...``: finds the subcommand's module and calls it.

A subcommand is a module of this package with ``add_arguments(parser)`` and ``run(args)``; ``run``
returns an exit status, or None for 0. Some subcommands have actions, such as ``nearest`` of
``retrieve``. If an action is the default, the module also has ``name_kind(argv)``, which inserts
the action into the arguments.
"""

import argparse
import difflib
import errno
import functools
import gc
import importlib
import io
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any, Callable, NoReturn, Optional

from fairseq_mm import __version__
from fairseq_mm.cli import arguments, run_set_up
from fairseq_mm.errors import EXIT_STATUS, UserError, import_extra, is_verbose
from fairseq_mm.generation.defaults import NAMES_ELSEWHERE
from fairseq_mm.inference.checkpoint_files import with_local_paths

# subcommand -> its line in `fairseq-mm --help`; the module has the same name with _ for -
GROUPS = {
    "data": {
        "prepare": "Prepare a release, or data of your own, for training.",
        "extract": "Extract features of images or videos to a feature store.",
        "store": "Inspect, verify, import and merge feature stores.",
        "embed": "Embed images, sentences and words to a feature store.",
        "index": "Index a folder of your own images for search.",
    },
    "use": {
        "caption": "Generate captions of images.",
        "tell": "Generate stories of five images or of prompts.",
        "summarize": "Generate summaries of videos with transcripts.",
        "generate": "Generate texts with a model of any task.",
        "retrieve": "Retrieve images, sentences or stories by similarity.",
        "search": "Search a folder of images by sentences or an image.",
        "serve": "Serve a page and an API that generate texts.",
    },
    "measure": {
        "score": "Score generated texts against references.",
        "rank": "Rank images against sentences (R@K), or stories.",
        "perplexity": "Compute the perplexity of texts.",
        "inspect": "Record gates and attention, as JSON or a page.",
        "report": "Show hypotheses, images and scores on one HTML page.",
    },
    "share, set up": {
        "export": "Export a model to a folder that can be shared.",
        "push": "Upload such a folder to the Hugging Face hub.",
        "convert": "Convert released and pretrained checkpoints.",
        "pretrained-options": "Print the dropouts of a pretrained BART or T5.",
        "options": "List the options of an architecture (--arch).",
        "user-dir": "Print the folder to give as --user-dir.",
        "doctor": "Check the installation, a data folder and a checkpoint.",
    },
}
SUBCOMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_EXAMPLES = """\
  fairseq-mm prepare captions photos.jsonl --features f.h5 --output data-bin/me
  fairseq-mm caption photo.jpg --checkpoint checkpoints/m_rnn
  fairseq-mm score captions.jsonl --data data-bin/me --split valid"""

# Removed name -> what to use instead. A name is a subcommand ("demo"), an action or a choice
# ("convert bart"), an option ("tell --raw", or "--raw" for all subcommands), or the prefix of a
# value with its colon ("open_clip:").
GONE = {
    "prepare --workers": "the command without it: one process binarises the text",
    **dict.fromkeys(
        ("rank --threads", "perplexity --threads"), "the variable OMP_NUM_THREADS of PyTorch"
    ),
    "perplexity --side": "a data folder whose prompts and stories have dictionaries of their own",
    "inspect --batch-size": "the default, 8, or 32 on a GPU",
    "report --bootstrap": "the default, 1000",
    "report --seed": "the default, 1",
    "report --tokenizer": "`score --tokenizer --per-item FILE`, then --scores FILE",
    "retrieve nearest --seed": "the default, 1",
    "score --bert-layer": "the layer that the paper recommends",
    "score --card": "--json, which has the card",
    "score --meteor-task": "meteor(..., task=NAME) of fairseq_mm.metrics.meteor",
    "score --training-text": "--data, whose training split is read",
    "store convert": "`fairseq-mm store merge` of one store, which has --dtype",
    "prepare --seed": 'a "split" in each line, for another choice',
    "prepare vist --images": "--features of `fairseq-mm extract`",
    "prepare vist --verify": "--features of `fairseq-mm extract`, which names unreadable images",
    "--no-binarize": "the folder with its text/: fairseq-preprocess takes seconds",
    "--skip-empty": "data without texts that have no word",
    "prepare captions --max-words": "--threshold",
    "--split-symbols": "data without <s>, </s> and <pad>",
    "--drop-unpaired": "files with as many prompts as stories",
    "prepare flickr30k --captions": "--split-ids, with the release's captions as first argument",
    "prepare iapr_tc12 --captions": "the default, a caption for each sentence",
    "prepare vist --text": "the default, the tokenized text",
    **dict.fromkeys(
        ("--subwords", "--gpt2-encoder-json", "--gpt2-vocab-bpe", "--sentencepiece-model"),
        "--pretrained FOLDER, which has the model's dictionary and subwords",
    ),
    "caption --candidate-batch-size": "--candidates, fewer of which need less memory",
    "caption --list": "`fairseq-mm generate FILE.jsonl`",
    "summarize --transcripts": "--transcript, once for each video",
    **dict.fromkeys(
        ("caption --max-pixels", "summarize --max-pixels"),
        "`fairseq-mm extract --max-pixels`, then --features",
    ),
    "summarize --ids": 'an "id" in each line of FILE.jsonl',
    "tell --ids": "the ids as inputs: `tell ID ID ID ID ID --features STORE`",
    "tell --first-id": "another --seed",
    "tell --prompt-temperature": "the default, 1, as published",
    "tell --prompt-topk": "the default, 10, as published",
    "tell --raw": "--jsonl, whose records have the tokens",
    "tell --truncate-prompt": "shorter prompts",
    "demo": "`make demo`, or `python examples/demo/run_demo.py`, in a clone of the repository",
    "convert --to": "`fairseq-mm export`, or the folder that was converted",
    "gain": "`fairseq-mm score --system FILE --text-only FILE --baseline FILE`",
    **dict.fromkeys(
        ("inspect --generate", "inspect --story"),
        "`fairseq-mm tell --jsonl --output FILE`, then `fairseq-mm inspect FILE`",
    ),
    **dict.fromkeys(
        ("inspect --grid", "inspect --image", "inspect --position", "inspect --part"),
        "the default, which shows every image and the trained part",
    ),
    "inspect --side": "a split whose target side is the text",
    "study": "`python examples/human_evaluation/study.py`, in a clone of the repository",
    "extract --except": "FILE.jsonl with the new images, then `fairseq-mm store merge`",
    **dict.fromkeys(("extract --list", "extract --root"), 'FILE.jsonl with lines {"image": PATH}'),
    "extract --interpolation": "the network's own interpolation",
    **dict.fromkeys(
        ("extract --keep-damaged", "summarize --keep-damaged"),
        "a repaired copy of the video (`ffmpeg -i IN -c copy OUT.mkv`)",
    ),
    "open_clip:": "`--model timm:NAME` (CLIP, SigLIP, DINO, ...)",
    **dict.fromkeys(
        ("rank --all-pairs", "rank --block-rows", "rank --batch-tokens", "rank --folds"),
        "the command without it: --draws repeats the sampling, and batches have the default size",
    ),
    "store import --attribute": "--extractor, --weights, --layer, --grid and --preprocessing",
    **dict.fromkeys(
        ("store import --files", "store import --key", "store import --captions"),
        "a folder of ID.npy files, or an .npz with an array for each id",
    ),
    "store merge --force": "--features with several stores, or `store import` of one array",
    "report --training-log": "tensorboard (fairseq-train --tensorboard-logdir)",
    "report --result": "--metrics, which computes the scores",
    "report --side": "the default, 224",
    "score --no-meteor-norm": "--preset vist, which has no normalisation",
}

# subcommands that look for their checkpoint: `doctor` lists a missing one among other problems,
# `pretrained-options` takes a folder with model.pt, `export` downloads it itself, `serve` has
# several
_LOOK_THEMSELVES = ("doctor", "export", "pretrained-options", "serve")

# errors of a full or broken disk
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# words in the metavars of arguments that are paths
_PATHS = {
    *("CHECKPOINT", "CKPT", "DATA", "DIR", "FILE", "FOLDER", "HYPOTHESES", "OUT", "OUTPUT"),
    *("PATH", "STORE"),
}

# Thresholds of gc: allocations between two collections, and collections of younger generations
# between two collections of an older one. All imports together make fewer objects than the first
# threshold, and these objects stay: searching them for cycles would only cost time.
_COLLECTION_AT_START = (1_000_000, 20, 100)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter of help texts that wraps paragraphs at the terminal's width.

    Indented lines, such as examples of commands, are kept as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        paragraph: list[str] = []
        for line in [*text.strip("\n").splitlines(), ""]:
            if line and not line.startswith(" "):
                paragraph.append(line)
                continue
            lines += textwrap.wrap(" ".join(paragraph), width, break_on_hyphens=False)
            paragraph = []
            lines.append(line)
        return "\n".join(f"{indent}{line}".rstrip() for line in lines[:-1]) + "\n"


_FORMATTER = functools.partial(HelpFormatter, max_help_position=24)


class Parser(argparse.ArgumentParser):
    """Parser of the arguments of ``fairseq-mm`` or of a subcommand.

    Error messages are one line, with a suggestion for a misspelt option. The usage line has only
    the required arguments.
    """

    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _FORMATTER, **options})
        # without a default: the parser of an action such as `store info` would overwrite the value
        # that the parser of `store` has read
        self.add_argument(
            "--user-dir",
            metavar="DIR",
            default=argparse.SUPPRESS,
            help="Package with models and tasks of your own.",
        )

    def format_help(self) -> str:
        names = []
        for action in self._actions:
            shown: Any = action.metavar or action.dest.upper()
            form = self._get_formatter()._format_args(action, shown)
            if not action.option_strings:
                names.append(form)
            elif action.required:
                names.append(f"{action.option_strings[-1]} {form}")
        usage = " ".join([self.prog, "[options]", *names])
        self.usage = self.usage or textwrap.fill(usage, 72, subsequent_indent=" " * 7)
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        namespace, unknown = super().parse_known_args(args, namespace)
        # argparse gives a list of positional arguments nothing that follows an option, as in
        # `search photos --top 5 "a dog"`
        lists = [x.dest for x in self._actions if not x.option_strings and x.nargs == "*"]
        if unknown and lists and not any(word.startswith("-") for word in unknown):
            setattr(namespace, lists[-1], [*getattr(namespace, lists[-1]), *unknown])
            unknown = []
        for action in self._actions:
            # as from `--output "$FILE"` in a script that never sets FILE: where a path is left out
            # by default, nothing would be read or written
            value = getattr(namespace, action.dest, None)
            is_path = _PATHS.intersection(re.findall("[A-Z]+", str(action.metavar)))
            if not is_path or value in (action.default, action.const):
                continue
            if "" in (value if isinstance(value, list) else [value]):
                name = action.option_strings[-1] if action.option_strings else action.metavar
                self.error(f"{name} must be a path, but is empty")
        # not left to parse_args, which argparse does not call for an action such as `store info`;
        # here the message has the name and the options of the action's parser
        if len(unknown) == 1 and getattr(namespace, "out", "") is None and unknown[0][0] != "-":
            namespace.out = unknown.pop()  # argparse gives no `?` a word that follows options
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        choice = re.match(r"argument (\S+): invalid choice: '(.*?)'", message)
        if choice is not None:
            action = next(
                action
                for action in self._actions
                # the names that argparse gives an action in its messages
                if choice[1] in ("/".join(action.option_strings), action.metavar, action.dest)
            )
            known = [str(name) for name in action.choices or ()]
            # argparse's own message lists all choices, which may fill a screen
            if len(known) > 8:
                message = f"argument {choice[1]}: there is no {choice[2]!r}"
            words = [choice[2]]
        else:
            known = [flag for action in self._actions for flag in action.option_strings]
            flags = [word.partition("=")[0] for word in self._given if word.startswith("--")]
            words = [word for word in flags if word not in known]
        hint = f" ({self.prog} --help)."
        command = self.prog.removeprefix("fairseq-mm ")
        for word in words:
            names = (f"{command} {word}", f"{command.split()[0]} {word}", word)
            instead = next((GONE[name] for name in names if name in GONE), None)
            if instead is not None:
                message, hint = f"{word} is gone in 0.3.0", f": use {instead}."
                break
            close = difflib.get_close_matches(word, known, n=1)
            elsewhere = NAMES_ELSEWHERE.get(word.strip("-").replace("-", "_"))
            if elsewhere is not None and arguments.flag(elsewhere) in known:
                close = [arguments.flag(elsewhere)]
            if close:
                message = message if choice is not None else f"there is no option {word}"
                hint = f"; did you mean {close[0]}?"
                break
        self.exit(EXIT_STATUS, f"{self.prog}: {' '.join(message.rstrip('.').split())}{hint}\n")


def main(argv: Optional[list[str]] = None) -> int:
    run_set_up.is_program = argv is None
    words = sys.argv[1:] if argv is None else argv
    try:
        if argv is not None:
            return _run(argv)
        gc.set_threshold(*_COLLECTION_AT_START)
        return _run(words)
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report it
        print(f"fairseq-mm {' '.join(words[:1])}: interrupted", file=sys.stderr)
        return 130
    finally:
        if argv is None:
            # as Python exits, it searches all objects for cycles, .4 s after an import of fairseq
            gc.freeze()


def _run(argv: list[str]) -> int:
    # fairseq's import would set the log level to debugging, and nobody can act on the deprecations
    # of fairseq and fairscale
    logging.basicConfig(level=logging.INFO if is_verbose() else logging.WARNING)
    if not is_verbose():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal may lack characters of ids and words, and names of files may be no valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    prefixes = [re.match(r"(?:--[a-z-]+=)?([a-z_]+:)", word) for word in argv[1:]]
    for name in [*argv[:1], *(prefix[1] for prefix in prefixes if prefix)]:
        if name in GONE:
            print(f"fairseq-mm: {name} is gone in 0.3.0: use {GONE[name]}.", file=sys.stderr)
            return EXIT_STATUS
    width = max(map(len, SUBCOMMANDS))
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", "", *(f"  {name:<{width}} {x}" for name, x in group.items()), ""]
    overview = Parser(
        prog="fairseq-mm",
        usage="%(prog)s SUBCOMMAND ... (SUBCOMMAND --help lists its options)",
        description=f"Multimodal and long-form generation for fairseq.\n\n{_EXAMPLES}",
        epilog="\n".join(lines),
    )
    overview.add_argument("--version", action="version", version=f"fairseq-mm {__version__}")
    overview.add_argument(
        "subcommand", choices=SUBCOMMANDS, metavar="SUBCOMMAND", help="One of the commands below."
    )
    if not argv:
        overview.print_help(sys.stderr)
        return EXIT_STATUS
    chosen = overview.parse_args(argv[:1]).subcommand
    # only the module of the subcommand: `store` does not wait for fairseq, and `doctor` also runs
    # if fairseq is broken
    module = importlib.import_module(f"fairseq_mm.cli.{chosen.replace('-', '_')}")
    parser = Parser(prog=f"fairseq-mm {chosen}", description=module.__doc__)
    module.add_arguments(parser)
    name_kind = getattr(module, "name_kind", list)
    args = parser.parse_args(name_kind(argv[1:]))
    args.prog = parser.prog

    def run() -> Optional[int]:
        arguments.check_names(args)
        arguments.check_inputs_are_kept(args)
        if getattr(args, "user_dir", None) is not None:
            run_set_up.import_user_dir(args.user_dir)
        if chosen not in _LOOK_THEMSELVES:
            # before the slow import of torch; names of models of the hub become local paths
            for name in ("checkpoint", "embedding", "prompt_model"):
                path = getattr(args, name, None)
                if path is not None:
                    setattr(args, name, with_local_paths(path))
        # a missing package is reported before the texts are generated
        if getattr(args, "html", None):
            import_extra("jinja2", extra="report", purpose="an HTML page")
        return module.run(args)

    return exit_status(parser.prog, run)


def exit_status(prog: str, run: Callable[[], Optional[int]]) -> int:
    """Run a program, and return its exit status. Print errors of users or disks as one line."""
    try:
        status = run() or 0
        # flushed here, so that a full disk is reported below; None if it was closed (`>&-`)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except UserError as error:
        message = str(error)
    except OSError as error:
        # the reader of the pipe may have ended, as in `fairseq-mm store ... | head`
        is_broken = isinstance(error, BrokenPipeError)
        if error.filename is None and error.errno not in DISK_ERRORS and not is_broken:
            raise
        # discard output that could not be written: Python would try again when it exits
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_broken:
            return 0
        message = f"{error.filename or 'the output'}: {error.strerror}."
    print(f"{prog}: {message}", file=sys.stderr)
    return EXIT_STATUS


if __name__ == "__main__":
    sys.exit(main())
