"""Reads the image sequences of ``fairseq-mm tell``."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from fairseq_mm.data.story_text import NUM_IMAGES, split_sentences
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.data.feature_store import FeatureStores
    from fairseq_mm.extract.media_list import MediaFile

# on the command line and in records; None in Python
NO_IMAGE = "-"


class ImageSequence(NamedTuple):
    """Five images in the order of a story that the model will generate.

    Attributes:
        index: Index of the story. If the story is sampled, the random numbers depend on the index.
        id: Id of the story in its JSON record: its line in the split's ``visual_ids``, its id in
            the file of inputs, or the paths of the images.
        where: Name of the sequence in messages.
        keys: Id in the feature store, or path, of each image; None for a missing image.
        images: File of each image; None for a missing image. Empty if features are read from a
            store.
        references: Stories that people wrote for the sequence; a story is a list of sentences, a
            sentence a list of words.
    """

    index: int
    id: str
    where: str
    keys: "list[Optional[str]]"
    images: "list[Optional[MediaFile]]"
    references: list[list[list[str]]]

    @property
    def names(self) -> list[str]:
        return [NO_IMAGE if key is None else key for key in self.keys]


def sequence_of_files(images: Sequence[Optional[str]]) -> ImageSequence:
    """Build the image sequence of five files.

    Args:
        images: Five paths; None or ``-`` for a missing image.
    """
    from fairseq_mm.extract.media_list import MediaFile

    keys = _check_images(images)
    media = [None if key is None else MediaFile(key, key) for key in keys]
    name = "\t".join(NO_IMAGE if key is None else key for key in keys)
    return ImageSequence(0, name, "", keys, media, [])


def sequences_of_ids(
    ids: Sequence[str], features: str
) -> "tuple[list[ImageSequence], FeatureStores]":
    """Build the image sequence of five ids, and open the feature stores.

    Args:
        ids: Five ids of images; ``-`` for a missing image.
        features: Paths of feature stores, separated by the system's path separator.

    Returns:
        sequences: List with one image sequence.
        store: All stores as one.
    """
    from fairseq_mm.data.feature_store import open_features

    keys = _check_images(ids, "--ids")
    store = open_features(features.split(os.pathsep))
    for key in keys:
        if key is not None:
            # reports an id that is not in the store, before stories are generated
            store.count_rows(key)
    return [ImageSequence(0, "\t".join(ids), "", keys, [], [])], store


def sequences_of_split(
    folder: str,
    split: str,
    *,
    features: Optional[str] = None,
    chosen: Sequence[int] = (),
    limit: Optional[int] = None,
) -> "tuple[list[ImageSequence], FeatureStores]":
    """List image sequences of a split, and open the feature stores.

    Each sequence has as references the stories that people wrote for it.

    Args:
        folder: Path of the data folder.
        split: Name of the split.
        features: Paths of feature stores (default: the stores of the folder).
        chosen: Lines of the split whose image sequences are listed, counted from 0 (default: the
            first line of each image sequence).
        limit: Maximum number of sequences (default: no maximum).

    Returns:
        sequences: The image sequences.
        store: All stores as one.
    """
    from fairseq_mm.data.feature_store import open_folder_features
    from fairseq_mm.data.input_files import check_line_counts
    from fairseq_mm.data.split_files import first_lines, read_missing_images, read_visual_ids
    from fairseq_mm.data.split_text import read_story_words, story_text_path

    path = os.path.join(folder, f"{split}.visual_ids")
    lines = read_visual_ids(path)
    words = read_story_words(folder, split)
    check_line_counts({str(story_text_path(folder, split)): len(words), path: len(lines)})
    references: dict[str, list[list[list[str]]]] = {}
    for line, story in zip(lines, words):
        references.setdefault(line, []).append(
            [sentence.split() for sentence in split_sentences(" ".join(story))]
        )
    for number in chosen:
        if not 0 <= number < len(lines):
            raise UserError(
                f"--line {number}: {path} has lines 0 to {len(lines) - 1}, counted from 0."
            )
    # a sequence has several lines, one for each of its stories
    firsts = [number for number, is_first in enumerate(first_lines(lines)) if is_first]
    numbers = (list(dict.fromkeys(chosen)) or firsts)[:limit]
    store = open_folder_features(folder, features)
    missing = read_missing_images(folder)
    sequences = []
    for number in numbers:
        where, line = f"{path}:{number + 1}", lines[number]
        keys = [None if key in missing else key for key in _check_images(line.split("\t"), where)]
        try:
            for key in keys:
                if key is not None:
                    store.count_rows(key)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        sequences.append(ImageSequence(number, line, where, keys, [], references[line]))
    return sequences, store


def _check_images(images: Sequence[Optional[str]], where: str = "") -> list[Optional[str]]:
    """Return the images with None in place of ``-``, which stands for a missing image.

    Raise UserError if there are not five images, or all are missing. ``where`` is the name of the
    sequence in messages; empty for no name.
    """
    place = f"{where}: " if where else ""
    if len(images) != NUM_IMAGES:
        verb = "is 1" if len(images) == 1 else f"are {len(images)}"
        raise UserError(f"{place}a story has {NUM_IMAGES} images, but there {verb}.")
    keys = [None if image == NO_IMAGE else image for image in images]
    if not any(keys):
        raise UserError(f"{place}all {NUM_IMAGES} images are missing.")
    return keys
