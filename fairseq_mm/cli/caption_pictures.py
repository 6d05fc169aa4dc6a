"""Pictures in, lines out: what ``fairseq-mm caption`` does for all its models."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Callable, NamedTuple, Optional, TextIO

from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import EXIT_STATUS, UserError

# pictures from which on a bar shows how far the work is
MANY = 50
# pictures that are read before the first of them are captioned
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


def check_inputs(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if there are no pictures, options exclude each other, or there is no place to
            write to.
    """
    if not args.pictures and not args.list and not args.features:
        raise UserError("no pictures: give files or folders, or a feature store (--features).")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size must be 1 or more, but is {args.batch_size} instead.")
    if args.features and (args.weights or args.list):
        given = "--weights" if args.weights else "--list"
        raise UserError(f"{given}: with --features no picture is read; leave one of the two out.")
    folder = os.path.dirname(args.output or "")
    if folder and not os.path.isdir(folder):
        raise UserError(f"--output {args.output}: there is no folder {folder}.")


def write_captions(
    args: argparse.Namespace,
    reader: Any,
    lines_of: Callable[[list[str], list[Any]], Iterable[str]],
) -> int:
    """
    Args:
        args: of the command.
        reader: :class:`fairseq_mm.picture_models.PictureModels` whose features are captioned.
        lines_of: names of pictures and their features -> what is printed of each.

    Returns:
        status: 2 if a picture could not be read.
    """
    if args.features:
        inputs, features_of = _stored(args, reader)
    else:
        reader.extractor  # noqa: B018  an extractor that cannot be rebuilt is named first
        inputs = _list_pictures(args.pictures, args.list)

        def features_of(piece: list[Input]) -> Iterator[Any]:
            pictures = [item.picture for item in piece]
            return reader.features_of(
                pictures, batch_size=args.batch_size, max_pixels=args.max_pixels
            )

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
            bar.update(len(piece) - len(found))
            for line in lines_of([item.name for item, _ in found], [rows for _, rows in found]):
                print(line, file=file, flush=True)
                bar.update(1)
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
    args: argparse.Namespace, reader: Any
) -> tuple[list[Input], Callable[[list[Input]], Iterator[Any]]]:
    from fairseq_mm.data.feature_store import open_features

    store = open_features(args.features.split(os.pathsep))
    reader.check_features(store.attributes, store.dim, store.path)
    for key in args.pictures:
        store.rows_of(key)  # an id that is not in the store is named before the work begins
    inputs = [Input(key) for key in args.pictures or store.ids]
    return inputs, lambda piece: (store.read(item.name) for item in piece)


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
