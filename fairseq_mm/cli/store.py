"""Shows, verifies, imports, merges and converts feature stores.

  fairseq-mm store info features.h5
  fairseq-mm store verify features.h5
  fairseq-mm store import features.npy --ids image_ids.txt --output features.h5
  fairseq-mm store merge shard0.h5 shard1.h5 --output features.h5
  fairseq-mm store convert features.h5 --output small.h5 --dtype float16

Each ACTION has its own help: fairseq-mm store import --help
"""

import argparse
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterable
from typing import Callable, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows
from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import EXIT_STATUS, UserError

# longest attribute that `store info` prints whole; preprocessing of videos has 300 characters
_MAX_SHOWN = 500
_FILE = {"metavar": "FILE"}
_NAME = {"metavar": "NAME"}
_DTYPES = {"choices": ("float16", "float32")}
# earlier versions took the store to make as the last argument; scripts still give it so
_OUT: Rows = {
    "out": ("Feature store to make, where --output is not given.", {"metavar": "OUT", "nargs": "?"})
}
_OUTPUT: Rows = {"--output": ("Feature store to make.", _FILE)}
_OVERWRITE: Rows = {"--overwrite": ("Replace a finished store.", FLAG)}
_PATHS: Rows = {"paths": ("Feature stores to read.", {"nargs": "+", "metavar": "PATH"})}
ACTIONS: dict[str, tuple[str, Rows]] = {
    "info": (
        "Show what a store holds, and which extractor made it.",
        {
            "path": ("Feature store.", {"metavar": "PATH"}),
            "--ids": ("List the ids and their numbers of rows instead.", FLAG),
            "--json": ("Print a JSON object (with --ids one a line).", FLAG),
        },
    ),
    "verify": (
        "Check structure and all rows, and print a checksum of the content.",
        {
            **_PATHS,
            "--repair": (
                "Add the checksum of its metadata to a store that has no error and no checksum.",
                FLAG,
            ),
        },
    ),
    "import": (
        "Make a store of a folder of .npy or .npz files (one an item), an .npz, an .npy array "
        "with a list of ids, or VSE++'s x_ims.npy beside x_caps.txt. An interrupted import "
        "continues. Give --extractor, --weights, --layer and --preprocessing if a model that is "
        "trained on the features is to caption image files.",
        {
            "source": ("Folder, .npz or .npy file.", {"metavar": "SOURCE"}),
            **_OUT,
            **_OUTPUT,
            "--ids": ("Ids of an .npy array's rows, one a line.", _FILE),
            "--array": ("Array of a folder's .npz files.", _NAME),
            "--dtype": ("Type of the store's numbers (default: the source's).", _DTYPES),
            "--extractor": ("Network that made the features.", _NAME),
            "--weights": (
                "State dict file of the network, whose SHA-256 is recorded, or a name such as "
                "torchvision:IMAGENET1K_V1.",
                _FILE,
            ),
            "--layer": ("Layer of the network.", _NAME),
            "--grid": ("The features are the layer's grid, not averaged.", FLAG),
            "--preprocessing": (
                "Preprocessing of the images, as fairseq-mm extract records it; what is left out "
                'has its default: \'{"resize": "squash", "resize_size": 224, "crop": "none"}\'.',
                {"metavar": "JSON"},
            ),
            **_OVERWRITE,
        },
    ),
    "merge": (
        "Merge several stores into one.",
        {
            "paths": (
                "Feature stores to read; without --output the last one is made.",
                {"nargs": "+", "metavar": "PATH"},
            ),
            **_OUTPUT,
            "--incomplete": (
                "Merge some of the parts that fairseq-mm extract --shard has made; without it, all "
                "parts of a list must be given.",
                FLAG,
            ),
            **_OVERWRITE,
        },
    ),
    "convert": (
        "Change the type of the numbers.",
        {
            "path": ("Feature store to read.", {"metavar": "PATH"}),
            **_OUT,
            **_OUTPUT,
            "--dtype": ("Type of the new store's numbers.", _DTYPES),
            **_OVERWRITE,
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> Optional[int]:
    if args.action in ("import", "merge", "convert"):
        _set_output(args)
    run_action = {
        "info": _info,
        "verify": _verify,
        "import": _import,
        "merge": _merge,
        "convert": _convert,
    }
    return run_action[args.action](args)


def _set_output(args: argparse.Namespace) -> None:
    """If ``--output`` is not given, set ``args.output`` to the last argument, as in ``cp``."""
    if args.action == "merge":
        if args.output is None:
            args.output = args.paths.pop()
            if not args.paths:
                raise UserError(
                    f"merge {args.output}: needs the stores to read, and --output with the store "
                    "to make."
                )
    elif args.output is None:
        args.output = args.out
    elif args.out is not None:
        raise UserError(f"{args.out} and --output {args.output}: name the store to make once.")
    if args.output is None:
        raise UserError(f"{args.action}: needs --output with the store to make.")
    arguments.check_names(args)  # again: main checked before the output had its name
    arguments.check_writable("--output", args.output)


def _info(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_store_inspection import describe_store, rows_by_id

    if args.ids:
        for key, rows in rows_by_id(args.path):
            print(json.dumps({"id": key, "rows": rows}) if args.json else f"{key}\t{rows}")
        return
    facts = describe_store(args.path)
    if args.json:
        print(json.dumps(facts))
        return
    # --json has the fields as they are; people read one line a fact
    low, high = facts.pop("rows_per_item")
    facts["rows"] = f"{facts['rows']} ({low if low == high else f'{low} to {high}'} an item)"
    attributes = facts.pop("attributes")  # printed last, as there may be many
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<26} {value}")
    for name, value in sorted(attributes.items()):
        text = str(value)
        if len(text) > _MAX_SHOWN:  # the config of a network of transformers has thousands
            text = f"{text[:60]}... ({len(text):,} characters; --json shows all)"
        print(f"  {name:<24} {text}")


def _verify(args: argparse.Namespace) -> int:
    from fairseq_mm.data.feature_store_inspection import verify_store

    failed = 0
    for path in args.paths:
        try:
            report = verify_store(path, _progress_bar(f"verify {path}"), repair=args.repair)
        except UserError as error:  # the other stores are verified all the same
            failed += 1
            print(f"fairseq-mm store: {error}", file=sys.stderr)
        else:
            print(f"{report['checksum']}  {path}  {report['items']} items: no error")
            if report["is_repaired"]:
                print(f"{path}: the checksum of its metadata was added", file=sys.stderr)
            elif not report["has_checksum"]:
                print(f"{path}: has no checksum of its metadata: --repair adds it", file=sys.stderr)
            if not report["has_content_checksum"]:
                print(
                    f"{path}: an earlier version wrote it without a checksum of ids and rows, so "
                    "that exchanged ids go unseen: `fairseq-mm store convert` writes one that has "
                    "it",
                    file=sys.stderr,
                )
    if failed:
        print(f"{failed} of {len(args.paths)} stores have errors", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _import(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_importers import (
        extractor_attributes,
        import_features,
        open_source,
    )

    source = open_source(
        args.source,
        ids_path=args.ids,
        array=args.array,
    )
    attributes = extractor_attributes(
        extractor=args.extractor,
        weights=args.weights,
        layer=args.layer,
        grid=args.grid,
        preprocessing=_complete_preprocessing(args.preprocessing),
    )
    if args.extractor and args.layer:
        from fairseq_mm.extract.networks import check_layer

        check_layer(args.extractor, args.layer)
    import_features(
        source,
        args.output,
        attributes=attributes,
        dtype=args.dtype,
        overwrite=args.overwrite,
        progress=_progress_bar("import"),
    )
    _report_store(args.output)
    missing = [name for name in ("extractor", "weights") if name not in attributes]
    if missing:
        options = " and ".join(f"--{name}" for name in missing)
        print(
            f"{args.output}: without {options}, models that are trained on it cannot caption or "
            "summarize files that are not in it",
            file=sys.stderr,
        )


def _merge(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_store_copy import merge_stores

    # merge_stores accepts an output that was merged from the same stores before
    was_merged = os.path.exists(args.output) and not args.overwrite
    merge_stores(
        args.paths,
        args.output,
        ignore_missing_parts=args.incomplete,
        overwrite=args.overwrite,
        progress=_progress_bar("merge"),
    )
    if was_merged:
        print(f"{args.output}: is complete: these stores were merged to it before")
        return
    _report_store(args.output)


def _convert(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_store_copy import convert_store

    convert_store(
        args.path,
        args.output,
        dtype=args.dtype,
        overwrite=args.overwrite,
        progress=_progress_bar("convert"),
    )
    _report_store(args.output)


def _complete_preprocessing(text: Optional[str]) -> Optional[str]:
    """Fill missing fields in the JSON object of ``--preprocessing`` with extract's defaults."""
    from fairseq_mm.extract.preprocessing import Preprocessing

    if text is None:
        return None
    try:
        values = {**dataclasses.asdict(Preprocessing()), **parse_json(text)}
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--preprocessing must be a JSON object, but is {text!r}: {error}"
        ) from None
    # through from_json, which checks the values, and back to the form that extract writes
    return Preprocessing.from_json(json.dumps(values)).to_json()


def _progress_bar(label: str) -> Callable[[Iterable[str]], Iterable[str]]:
    """Return a function that iterates over its argument with a progress bar on stderr."""
    from tqdm.auto import tqdm

    return functools.partial(tqdm, desc=label, unit=" items", file=sys.stderr, mininterval=0.5)


def _report_store(path: str) -> None:
    from fairseq_mm.data.feature_store import FeatureStore

    store = FeatureStore(path)
    print(
        f"wrote {path}: {len(store)} items, dim {store.dim}, {store.dtype.name}, "
        f"{os.path.getsize(path) / 1e6:.1f} MB"
    )
