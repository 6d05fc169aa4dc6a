"""Images in, lines out: the inputs of ``fairseq-mm caption``, whichever its model."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.progress import progress_bar
from fairseq_mm.cli.records import opened
from fairseq_mm.errors import EXIT_STATUS, UserError

# images that are read before the first of them are captioned
PIECE = 100


class Input(NamedTuple):
    """An image, or an id of a feature store.

    Attributes:
        name: what is printed.
        index: on which the draws of ``--sampling`` depend: the first line of its image in a
            split, else the position among the inputs.
        image: where it lies; None for an id.
        error: the reason why there is none.
    """

    name: str
    index: int
    image: Any = None
    error: Optional[UserError] = None


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name images."""
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="Image, folder (with its subfolders) or .tar of images; with --split a data folder; "
        "with --features an id of the store.",
    )
    arguments.add(parser, "split", "features")
    parser.add_argument(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="File with the path of an image a line; may be given again.",
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        metavar="N",
        help="Larger JPEGs are decoded at reduced scale, other images refused (default: 64000000).",
    )


def check_inputs(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if there are no images, options exclude each other, or there is no place to
            write to.
    """
    if args.split is not None:
        _check_split(args)
    elif not args.images and not args.list and not args.features:
        raise UserError("no images: give files or folders, or a feature store (--features).")
    arguments.check_batch_size(args)
    if args.features and (args.weights or args.list):
        given = "--weights" if args.weights else "--list"
        raise UserError(f"{given}: with --features no image is read; leave one of the two out.")
    arguments.check_writable("--output", args.output)


def _check_split(args: argparse.Namespace) -> None:
    if len(args.images) != 1:
        raise UserError(
            f"--split {args.split}: needs the data folder it is of, and nothing else, but "
            f"{len(args.images)} paths are given: fairseq-mm caption DATA --split {args.split}."
        )
    for name in ("list", "weights"):
        if getattr(args, name):
            raise UserError(
                f"--{name}: the images of a --split are features already; leave it out."
            )


def write_captions(
    args: argparse.Namespace,
    reader: Any,
    lines_of: Callable[[list[Input], list[Any]], Iterable[str]],
) -> int:
    """
    Args:
        args: of the command.
        reader: :class:`.ImageReader` whose features are captioned.
        lines_of: images and their features -> what is printed of each.

    Returns:
        status: 2 if an image could not be read.
    """
    if args.split is not None or args.features:
        inputs, features_of = _stored(args, reader)
    else:
        reader.extractor  # noqa: B018  an extractor that cannot be rebuilt is named first
        inputs = _list_images(args.images, args.list)

        def features_of(piece: list[Input]) -> Iterator[Any]:
            options = {} if args.max_pixels is None else {"max_pixels": args.max_pixels}
            images = [item.image for item in piece]
            return reader.features_of(images, batch_size=args.batch_size, **options)

    failed = 0
    with opened(args.output) as file, progress_bar(len(inputs), "images") as bar:
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
            bar.update(len(piece) - len(found))
            for line in lines_of([item for item, _ in found], [rows for _, rows in found]):
                print(line, file=file, flush=True)
                bar.update(1)
    if args.output:
        print(f"wrote {args.output}: captions of {len(inputs) - failed} images", file=sys.stderr)
    if failed and len(inputs) > 1:
        print(f"{failed} of {len(inputs)} images could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


def _list_images(paths: list[str], lists: list[str]) -> list[Input]:
    from fairseq_mm.extract.media_list import list_images

    found: list[tuple[str, Any, Optional[UserError]]] = []
    for path in paths:
        try:
            images = list_images([path], ids="path")
        except UserError as error:
            found.append((path, None, UserError(_without_name(str(error), path))))
        else:
            found += [(image.name, image, None) for image in images]
    if lists:
        images = list_images([], lists=lists, ids="path")
        found += [(image.name, image, None) for image in images]
    return [Input(name, number, image, error) for number, (name, image, error) in enumerate(found)]


def _without_name(message: str, path: str) -> str:
    return message[len(path) + 2 :] if message.startswith(f"{path}: ") else message


def _stored(
    args: argparse.Namespace, reader: Any
) -> tuple[list[Input], Callable[[list[Input]], Iterator[Any]]]:
    from fairseq_mm.data.feature_store import open_features, open_folder_features

    if args.split is not None:
        store = open_folder_features(args.images[0], args.features)
        inputs = _inputs_of_split(args.images[0], args.split)
    else:
        store = open_features(args.features.split(os.pathsep))
        inputs = [Input(key, number) for number, key in enumerate(args.images or store.ids)]
    reader.check_features(store.attributes, store.dim, store.path)
    for item in inputs:
        store.rows_of(item.name)  # an id that is not in the store is named before the work begins
    return inputs, lambda piece: (store.read(item.name) for item in piece)


def _inputs_of_split(folder: str, split: str) -> list[Input]:
    """The images of a split, each once, in the order of their first lines.

    Raises:
        UserError: if the folder has no such split, or its items are no images.
    """
    from fairseq_mm.data.visual_ids import first_lines, read_visual_ids

    path = os.path.join(folder, f"{split}.visual_ids")
    lines = read_visual_ids(path)
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            raise UserError(
                f"{path}:{number}: must have the key of one image, but has "
                f"{len(line.split())}: stories of image sequences are generated by fairseq-mm tell."
            )
    return [Input(lines[i], i) for i, first in enumerate(first_lines(lines)) if first]
