"""Makes a data folder from a published release or from your own JSON lines, for
fairseq-train.

NAME is a kind of data or a release. Each NAME has its own help, which shows the
format of the data:

  fairseq-mm prepare captions --help
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli.prepare_options import DEFAULTS, FOLDER, KINDS, OWN, Kind, add_options
from fairseq_mm.cli.records import list_first
from fairseq_mm.errors import UserError
from fairseq_mm.prepare import join, upgrade
from fairseq_mm.prepare.captions import TEXTS
from fairseq_mm.prepare.corpus import Corpus
from fairseq_mm.prepare.jsonl import read_jsonl
from fairseq_mm.prepare.releases import (
    coco,
    flickr8k,
    flickr30k,
    how2,
    iapr_tc12,
    sbu,
    vist,
    writingprompts,
)


class Release(NamedTuple):
    """Official release of a dataset."""

    kind: str  # key of ``KINDS``
    # module with ``add_arguments(parser)`` and ``read(args)``; its docstring is the help
    module: ModuleType
    options: str = "--features --missing"  # options about data that the release accepts
    fixed_options: str = ""  # options whose value the release fixes
    # fixed value, or default for the release, by name of the option
    values: Optional[dict[str, Any]] = None


_SIZES = "--valid-size --test-size"
_CASE = "--keep-case --keep-punctuation"
RELEASES = {
    "flickr8k": Release("captions", flickr8k, f"{_SIZES} --features --missing"),
    "flickr30k": Release("captions", flickr30k, f"{_SIZES} --features --missing"),
    "coco": Release("captions", coco),
    "iapr_tc12": Release("captions", iapr_tc12, "--valid-size --features --missing", _CASE),
    "sbu": Release("captions", sbu, f"{_SIZES} --features --missing", _CASE),
    "vist": Release(
        "stories",
        vist,
        "--features --missing",
        fixed_options="--tokenizer --keep-case",
        # keep_punctuation: descriptions in isolation are captions, not stories
        values={
            "tokenizer": "whitespace",
            "missing_by_default": "drop",
            "by_stem": True,
            "keep_punctuation": True,
        },
    ),
    "writingprompts": Release(
        "prompts",
        writingprompts,
        "",
        fixed_options="--tokenizer",
        values={"tokenizer": "whitespace"},
    ),
    "how2": Release("videos", how2, "--missing", values={"tokenizer_of_words": "none"}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, kind in KINDS.items():
        summary = f"your own {kind.records.name}, for the task {kind.task}"
        name_parser = names.add_parser(name, help=summary, description=kind.module.__doc__)
        name_parser.add_argument(
            "data",
            type=Path,
            nargs="+",
            metavar="data.jsonl",
            help="JSON lines, as described above.",
        )
        data, text = [*OWN, *kind.own_options.split()], kind.text_options.split()
        _add_groups(name_parser, kind, data, text, read=_read_own)
    for name, release in RELEASES.items():
        kind, module = KINDS[release.kind], release.module
        summary = str(module.__doc__).partition("\n")[0].rstrip(".:")
        name_parser = names.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(name_parser)
        data, fixed = release.options.split(), release.fixed_options.split()
        text = [option for option in kind.text_options.split() if option not in fixed]
        # a text without a word is left out and counted: nobody may change a release's files
        values = {**(release.values or {}), "skip_empty": True, "read": module.read}
        # --strict compares with published sizes, which own data have not
        _add_groups(name_parser, kind, data, text, (*FOLDER, "--strict"), **values)
    kind, summary = KINDS["captions"], "several folders of captions, for one training"
    name_parser = names.add_parser("join", help=summary, description=join.__doc__)
    join.add_arguments(name_parser)
    text = ["--threshold", "--dictionary"]
    _add_groups(name_parser, kind, (), text, caption_writer=join.JoinedWriter, read=join.read)
    summary = "an older data folder, whose splits become files of records"
    name_parser = names.add_parser("upgrade", help=summary, description=upgrade.__doc__)
    upgrade.add_arguments(name_parser)


def _add_groups(
    parser: argparse.ArgumentParser,
    kind: Kind,
    data: Iterable[str],
    text: Iterable[str],
    folder: Iterable[str] = FOLDER,
    **values: Any,
) -> None:
    """Add the options about data, text and folder; ``values`` override ``DEFAULTS``."""
    own = {"tokenizer": kind.tokenizer, "default_threshold": kind.threshold}
    defaults = {**DEFAULTS, **own, **values}
    add_options(parser, kind, data, defaults)
    add_options(parser.add_argument_group("text"), kind, text, defaults)
    add_options(parser.add_argument_group("folder"), kind, folder, defaults)
    # last: set_defaults wins over the defaults of the options above
    parser.set_defaults(**defaults)


def _read_own(args: argparse.Namespace) -> Corpus:
    # None: the lines themselves name their split
    paths = {None: args.data, "valid": args.valid, "test": args.test}
    kind = KINDS[args.name].records
    if args.without_images:
        kind = TEXTS
        if args.features:
            raise UserError("--features: is of images, and --without-images ignores them.")
    return read_jsonl(kind, paths, keys=args.keys)


def run(args: argparse.Namespace) -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    if args.name == "upgrade":
        files = ", ".join(upgrade.upgrade_folder(args.folder))
        print(f"{args.folder}: {f'wrote {files}' if files else 'nothing is to do'}")
        return
    corpus = args.read(args)
    # before images are checked, so that missing images do not change the splits
    for split in ("valid", "test"):
        corpus.draw(split, getattr(args, f"{split}_size"))
    if corpus.write_features is None:  # a release without features of its own
        if args.features:
            keys, names = corpus.visual_keys(), args.features
            renamed, missing = keys_in_stores(keys, names, by_stem=args.by_stem)
            for example in (example for split in corpus.splits.values() for example in split):
                example.visual = [renamed.get(key, key) for key in example.visual]
                # a caption is joined with its image by the id
                if corpus.kind.id_is_key:
                    example.id = example.visual[0]
            corpus.leave_out_missing(missing, policy=args.missing or args.missing_by_default)
        elif args.missing is not None:
            raise UserError("--missing needs --features, to say what is missing.")
    kind = next(kind for kind in KINDS.values() if kind.records.name == corpus.kind.name)
    writer = kind.writer(args)
    report = writer.write(corpus, args.output, strict=args.strict, overwrite=args.overwrite)
    for line in [*report["notes"], *report["deviations"]]:
        print(line, file=sys.stderr)
    if "valid" not in report["counts"] and "train" in report["counts"]:
        print("no valid split: train with --disable-validation", file=sys.stderr)
    for split, counts in report["counts"].items():
        print(f"{split}: {writer.describe(counts)}")
    for what, ids in report["exceptions"].items():
        print(f"exception, {what}: {len(ids):,} ({list_first(ids, 3)}; all in prepare.json)")
    sizes = report["dictionary_words"]
    if not isinstance(sizes, dict):
        sizes = {" = ".join(writer.dictionary_files()): sizes}
    numbered = report["options"].get("numbered_unknowns")
    indexed = f", {numbered:,} of them indexed OOV tokens" if numbered else ""
    for name, words in sizes.items():
        print(f"{name}: {words:,} words, {words + 4:,} types with fairseq's symbols{indexed}")
    print(f"wrote {args.output}")
    if corpus.features_written:
        print(corpus.features_written)


def keys_in_stores(
    names: Iterable[str], paths: Sequence[str], *, by_stem: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Look images up in feature stores. Return the id of each image that was found (with
    ``by_stem``, ``12`` also matches ``a/12.jpg``), and a message for each other image."""
    from fairseq_mm.data.feature_store import open_features

    store = open_features(list(paths))
    by_name: dict[str, list[str]] = {}
    if by_stem:
        for key in store.ids:
            by_name.setdefault(PurePosixPath(key).stem, []).append(key)
    keys, missing = {}, {}
    for name in names:
        # an exact key takes precedence over a stem
        found = [name] if name in store else by_name.get(name, [])
        if len(found) > 1:
            raise UserError(
                f"--features {' '.join(paths)}: {found[0]} and {found[1]} could both be image "
                f"{name}."
            )
        if found:
            keys[name] = found[0]
        else:
            missing[name] = "not in the feature store"
    return keys, missing
