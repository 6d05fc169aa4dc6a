"""Inspects, verifies, imports, merges and converts feature stores.

fairseq-mm store info features.h5
fairseq-mm store verify features.h5
fairseq-mm store import features.npy features.h5 --ids image_ids.txt
fairseq-mm store import folder_of_npy/ features.h5 --key '*.jpg'
fairseq-mm store merge shard0.h5 shard1.h5 features.h5
fairseq-mm store convert features.h5 small.h5 --dtype float16 --pool mean
"""

import argparse
import functools
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Callable, Optional

from fairseq_mm.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    info = actions.add_parser("info", help="what a store holds, and who made it")
    info.add_argument("path", help="the feature store")
    info.add_argument("--ids", action="store_true", help="list the ids and their rows instead")
    info.add_argument("--json", action="store_true", help="one JSON object (a line)")
    info.set_defaults(action_function=_info)

    verify = actions.add_parser(
        "verify", help="check structure and every row, and print a checksum of the content"
    )
    verify.add_argument("paths", nargs="+", metavar="PATH", help="feature stores")
    verify.add_argument(
        "--repair",
        action="store_true",
        help="Add the checksum of its metadata to a store that has no error and no checksum.",
    )
    verify.set_defaults(action_function=_verify)

    _add_import(actions)

    merge = actions.add_parser("merge", help="several stores -> one")
    merge.add_argument("paths", nargs="+", metavar="PATH", help="the stores to read")
    merge.add_argument("out", help="the store to make")
    merge.add_argument(
        "--force", action="store_true", help="merge what different extractors have made"
    )
    _add_overwrite(merge)
    merge.set_defaults(action_function=_merge)

    convert = actions.add_parser("convert", help="store -> another dtype, some ids, or one row")
    convert.add_argument("path", help="the store to read")
    convert.add_argument("out", help="the store to make")
    convert.add_argument("--dtype", choices=("float16", "float32"), help="of the new store")
    convert.add_argument("--select", metavar="FILE", help="ids to take, one a line")
    convert.add_argument("--pool", choices=("mean",), help="average the rows of each item")
    _add_overwrite(convert)
    convert.set_defaults(action_function=_convert)


def _add_import(actions: Any) -> None:
    importing = actions.add_parser(
        "import",
        help="numpy files -> store",
        description="Reads a folder of .npy or .npz files (one an item), an .npz, an .npy array "
        "with a list of ids, or VSE++'s x_ims.npy beside x_caps.txt. An interrupted import "
        "continues when started again. Give --extractor, --weights, --layer and --preprocessing, "
        "if a model trained on the features is to caption images later.",
    )
    importing.add_argument("source", help="folder, .npz or .npy file")
    importing.add_argument("out", help="the store to make")
    importing.add_argument("--ids", metavar="FILE", help="one id a line, for an .npy array")
    importing.add_argument(
        "--captions",
        metavar="FILE",
        help="captions, one a line, for an .npy array whose rows stand once an image or once a "
        "caption (default: x_caps.txt beside x_ims.npy); ids are the images' numbers",
    )
    importing.add_argument(
        "--files", metavar="PATTERN", help="files of a folder, with one * (default: *.npy)"
    )
    importing.add_argument(
        "--key",
        metavar="TEMPLATE",
        default="*",
        help="id to give, with * for what * matches in a file's name or for the id found; "
        "'*.jpg' adds a suffix (default: *)",
    )
    importing.add_argument("--array", metavar="NAME", help="which array of a folder's .npz files")
    importing.add_argument(
        "--dtype", choices=("float16", "float32"), help="of the store (default: as the source)"
    )
    importing.add_argument("--extractor", metavar="NAME", help="network that made the features")
    importing.add_argument(
        "--weights",
        metavar="FILE",
        help="its state dict file, whose SHA-256 is kept, or a name such as "
        "torchvision:IMAGENET1K_V1",
    )
    importing.add_argument("--layer", metavar="NAME", help="its layer")
    importing.add_argument("--grid", action="store_true", help="the layer's grid, not averaged")
    importing.add_argument(
        "--preprocessing",
        metavar="JSON",
        help="what was done to the images before, as fairseq-mm extract records it; what is left "
        'out is its default: \'{"resize": "squash", "resize_size": 224, "crop": "none"}\'',
    )
    importing.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further attribute of the store; may be repeated",
    )
    _add_overwrite(importing)
    importing.set_defaults(action_function=_import)


def _add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace a finished store")


def run(args: argparse.Namespace) -> Optional[int]:
    return args.action_function(args)


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
    low, high = facts.pop("rows_per_item")
    facts["rows"] = f"{facts['rows']} ({low if low == high else f'{low} to {high}'} an item)"
    attributes = facts.pop("attributes")
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<26} {value}")
    for name, value in sorted(attributes.items()):
        print(f"  {name:<24} {value}")


def _verify(args: argparse.Namespace) -> int:
    from fairseq_mm.data.feature_store_inspection import verify_store
    from fairseq_mm.errors import EXIT_STATUS

    failed = 0
    for path in args.paths:
        try:
            found = verify_store(path, _progress_bar(f"verify {path}"), repair=args.repair)
        except UserError as error:
            failed += 1
            print(f"fairseq-mm store: {error}", file=sys.stderr)
        else:
            print(f"{found['checksum']}  {path}  {found['items']} items: no error")
            if not found["has_checksum"]:
                print(f"{path}: has no checksum of its metadata: --repair adds it", file=sys.stderr)
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
        captions_path=args.captions,
        files=args.files,
        key=args.key,
        array=args.array,
    )
    attributes = extractor_attributes(
        extractor=args.extractor,
        weights=args.weights,
        layer=args.layer,
        grid=args.grid,
        preprocessing=_preprocessing(args.preprocessing),
    )
    attributes.update(_parse_attribute(text) for text in args.attribute)
    import_features(
        source,
        args.out,
        attributes=attributes,
        dtype=args.dtype,
        overwrite=args.overwrite,
        progress=_progress_bar("import"),
    )
    _say_what_was_written(args.out)


def _merge(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_store_copy import merge_stores

    merge_stores(
        args.paths,
        args.out,
        ignore_extractors=args.force,
        overwrite=args.overwrite,
        progress=_progress_bar("merge"),
    )
    _say_what_was_written(args.out)


def _convert(args: argparse.Namespace) -> None:
    from fairseq_mm.data.feature_importers import read_ids
    from fairseq_mm.data.feature_store_copy import convert_store

    convert_store(
        args.path,
        args.out,
        dtype=args.dtype,
        select=read_ids(args.select) if args.select else None,
        pool=args.pool,
        overwrite=args.overwrite,
        progress=_progress_bar("convert"),
    )
    _say_what_was_written(args.out)


def _parse_attribute(text: str) -> tuple[str, object]:
    """``name=value``; numbers, true and false become what they say."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UserError(f"--attribute must be NAME=VALUE, but is {text!r} instead.")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, parsed if isinstance(parsed, (bool, int, float)) else value


def _preprocessing(text: Optional[str]) -> Optional[str]:
    """As ``fairseq-mm extract`` writes it, with its defaults for what is left out."""
    from fairseq_mm.extract.preprocessing import Preprocessing

    if text is None:
        return None
    try:
        given = json.loads(text)
        values = {**json.loads(Preprocessing().to_json()), **given}
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--preprocessing must be a JSON object, but is {text!r}: {error}"
        ) from None
    return Preprocessing.from_json(json.dumps(values)).to_json()


def _progress_bar(what: str) -> Callable[[Iterable[str]], Iterable[str]]:
    """Wraps an iteration over ids with a bar on stderr."""
    from tqdm import tqdm

    return functools.partial(tqdm, desc=what, unit=" items", file=sys.stderr, mininterval=0.5)


def _say_what_was_written(path: str) -> None:
    from fairseq_mm.data.feature_store import FeatureStore

    store = FeatureStore(path)
    print(
        f"wrote {path}: {len(store)} items, dim {store.dim}, {store.dtype.name}, "
        f"{os.path.getsize(path) / 1e6:.1f} MB"
    )
