"""Shows, verifies, imports and merges feature stores.

  fairseq-mm store info features.h5
  fairseq-mm store verify features.h5
  fairseq-mm store import features.npy --ids image_ids.txt --output features.h5
  fairseq-mm store merge shard0.h5 shard1.h5 --output features.h5
  fairseq-mm store merge features.h5 --output small.h5 --dtype float16

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
from fairseq_mm.data.input_files import parse_object
from fairseq_mm.errors import EXIT_STATUS, UserError

# longest attribute that `store info` prints whole; preprocessing of videos has 300 characters
_MAX_SHOWN = 500
_FILE = {"metavar": "FILE"}
_NAME = {"metavar": "NAME"}
_TYPES = {"choices": ("float16", "float32")}
_DTYPE: Rows = {"--dtype": ("Type of the numbers (default: as they are).", _TYPES)}
_OUTPUT: Rows = {
    "--output": ("Feature store to make.", {"required": True, **_FILE}),
    "--overwrite": ("Replace a finished store.", FLAG),
}
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
    "verify": ("Check structure and all rows, and print a digest of the content.", _PATHS),
    "import": (
        "Make a store of a folder of .npy or .npz files (one an item), an .npz, an .npy array "
        "with a list of ids, or VSE++'s x_ims.npy beside x_caps.txt. "
        "Give --extractor, --weights, --layer and --preprocessing if a model that is "
        "trained on the features is to caption image files.",
        {
            "source": ("Folder, .npz or .npy file.", {"metavar": "SOURCE"}),
            **_OUTPUT,
            "--ids": ("Ids of an .npy array's rows, one a line.", _FILE),
            "--array": ("Array of a folder's .npz files.", _NAME),
            **_DTYPE,
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
        },
    ),
    "merge": (
        "Merge stores into one, or write a store anew with another type of its numbers.",
        {
            **_PATHS,
            **_OUTPUT,
            **_DTYPE,
            "--incomplete": ("Merge only some of the parts of fairseq-mm extract --shard.", FLAG),
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> Optional[int]:
    actions = {"info": _info, "verify": _verify, "import": _import, "merge": _merge}
    return actions[args.action](args)


def _merge(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_importers import merge_stores

    arguments.check_writable("--output", args.output)
    merge_stores(
        args.paths,
        args.output,
        dtype=args.dtype,
        ignore_missing_parts=args.incomplete,
        overwrite=args.overwrite,
        progress=_progress_bar("merge"),
    )
    _report_store(args.output)


def _info(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_store import FeatureStore

    store = FeatureStore(args.path)
    rows = {key: store.count_rows(key) for key in store.ids}
    if args.ids:
        for key, count in rows.items():
            print(json.dumps({"id": key, "rows": count}) if args.json else f"{key}\t{count}")
        return
    low, high = (min(rows.values()), max(rows.values())) if rows else (0, 0)
    facts = {
        "path": args.path,
        "items": len(store),
        "rows": sum(rows.values()),
        "rows_per_item": [low, high],
        "dim": store.dim,
        "dtype": store.dtype.name,
        "bytes": os.path.getsize(args.path),
        "files_recorded": sum(store.get_source(key) is not None for key in rows),
    }
    if args.json:
        print(json.dumps({**facts, "digest": store.digest, "attributes": store.attributes}))
        return
    # --json has the fields as they are; people read one line a fact
    del facts["rows_per_item"]
    facts["rows"] = f"{facts['rows']} ({low if low == high else f'{low} to {high}'} an item)"
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<26} {value}")
    for name, value in sorted(store.attributes.items()):
        text = str(value)
        if len(text) > _MAX_SHOWN:  # the config of a network of transformers has thousands
            text = f"{text[:60]}... ({len(text):,} characters; --json shows all)"
        print(f"  {name:<24} {text}")


def _verify(args: argparse.Namespace) -> int:
    from fairseq_mm.data.feature_store import FeatureStore

    failed = 0
    for path in args.paths:
        try:
            store = FeatureStore(path)
            store.check_finite(reread=True)
            digest = store.check_content(_progress_bar(f"verify {path}"))
        except UserError as error:  # the other stores are verified all the same
            failed += 1
            print(f"fairseq-mm store: {error}", file=sys.stderr)
            continue
        print(f"{digest}  {path}  {len(store)} items: no error")
        if not store.digest:
            print(
                f"{path}: was written without a digest, so that exchanged ids go unseen: "
                "`fairseq-mm store merge` writes a store that has one",
                file=sys.stderr,
            )
    if failed:
        print(f"{failed} of {len(args.paths)} stores have errors", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _import(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_importers import extractor_attributes, import_features, open_source
    from fairseq_mm.extract.preprocessing import Preprocessing

    arguments.check_writable("--output", args.output)
    source = open_source(args.source, ids_path=args.ids, array=args.array)
    preprocessing = args.preprocessing
    if preprocessing is not None:
        values = parse_object(preprocessing, "--preprocessing")
        values = {**dataclasses.asdict(Preprocessing()), **values}
        # through from_json, which checks the values, and back to the form that extract writes
        preprocessing = Preprocessing.from_json(json.dumps(values)).to_json()
    attributes = extractor_attributes(
        extractor=args.extractor,
        weights=args.weights,
        layer=args.layer,
        grid=args.grid,
        preprocessing=preprocessing,
    )
    if args.extractor and args.layer:
        from fairseq_mm.extract.extractor import check_layer

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
