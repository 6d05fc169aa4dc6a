"""What ``fairseq-mm tell`` and ``fairseq-mm inspect`` read: prompts, and sequences of five images
from the command line, a file, a feature store or a data folder."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from fairseq_mm.data.story_text import check_encodable
from fairseq_mm.data.visual_story_text import NUM_IMAGES, split_sentences
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.data.feature_store import FeatureStores
    from fairseq_mm.extract.media_list import MediaFile
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.processor import Example

# stands in the place of an image that is missing
NO_IMAGE = "-"
# prompts whose unknown words are named
NAMED = 5


class GivenPrompt(NamedTuple):
    """A prompt, and where it was given, for messages."""

    where: str
    text: str


def given_prompts(texts: list[str], files: list[str]) -> list[GivenPrompt]:
    """
    Args:
        texts: prompts.
        files: with a prompt a line; ``-`` is the standard input.

    Raises:
        UserError: if a file cannot be read, or is empty, or a prompt is no UTF-8 text.
    """
    for number, text in enumerate(texts, start=1):
        check_encodable(text, f"--prompt {number}")
    given = [GivenPrompt(f"prompt {number}", text) for number, text in enumerate(texts, start=1)]
    for path in files:
        try:
            content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
            lines = content.decode("utf-8-sig").split("\n")
        except OSError as error:
            raise UserError(f"--prompts {path}: cannot be read ({error.strerror}).") from None
        except UnicodeDecodeError as error:
            raise UserError(f"--prompts {path}: is no UTF-8 text ({error}).") from None
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise UserError(f"--prompts {path}: must have prompts, but is empty.")
        name = "standard input" if path == "-" else path
        given += [GivenPrompt(f"{name}:{i}", line) for i, line in enumerate(lines, start=1)]
    return given


def read_prompts(
    given: Sequence[GivenPrompt], model: "Generator", *, truncate: bool
) -> "list[Optional[Example]]":
    """The example of each prompt; None for one that cannot be read, which is said on stderr.

    Args:
        given: the prompts.
        model: that reads them.
        truncate: truncate prompts that are too long.

    Raises:
        UserError: if the only one cannot be read.
    """
    examples: list[Optional[Example]] = []
    unknown = []
    found = model.processor.examples([text for _, text in given], truncate=truncate)
    for (where, _), example in zip(given, found):
        if isinstance(example, UserError):
            if len(given) == 1:
                raise example
            warn(f"{where}: {example}")
            examples.append(None)
            continue
        examples.append(example)
        prompt: Any = example.origin
        if prompt.num_truncated:
            warn(
                f"{where}: truncated to {len(prompt.words)} words, {prompt.num_truncated} are "
                "left out"
            )
        if prompt.unknown:
            words = list(dict.fromkeys(prompt.unknown))
            unknown.append(
                f"{where}: {counted(len(words), 'word')} not in the vocabulary, read as <unk>: "
                f"{' '.join(words)}"
            )
    for message in unknown[:NAMED]:
        warn(message)
    if len(unknown) > NAMED:
        more = counted(len(unknown) - NAMED, "further prompt")
        warn(f"{more} with unknown words (--jsonl has them all)")
    return examples


def counted(number: int, one: str, several: Optional[str] = None) -> str:
    """``1 story``, ``1,200 stories``."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def warn(message: str) -> None:
    print(f"fairseq-mm tell: {message}", file=sys.stderr)


class ImageSequence(NamedTuple):
    """Five images in the order of the story.

    Attributes:
        index: on which the draws of the story depend.
        id: of its record: a line of ``visual_ids``, that of the file, or the images' paths.
        where: for messages.
        keys: of the images, or their paths; None for one that is missing.
        images: where they lie, as ``keys``; empty where their features are in a store.
        references: by people, sentence by sentence.
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


class ImageSource:
    """Image sequences whose features are extracted.

    Args:
        sequences: of images.
        models: that read them; their extractors must be known.
    """

    # sequences whose features are held at a time
    piece = 16

    def __init__(self, sequences: list[ImageSequence], models: "Sequence[Generator]") -> None:
        self.sequences = sequences
        self.models = models
        for model in models:
            model.processor.reader.extractor  # noqa: B018  one that cannot be built is named first

    def examples(self, piece: list[ImageSequence]) -> "Iterator[Union[list[Example], UserError]]":
        """For each sequence what each model reads, or why an image of it cannot be read."""
        # models that were trained with one extractor share what it gives
        found: dict[str, list[Any]] = {}
        keys = [
            json.dumps(model.processor.reader.identity, sort_keys=True) for model in self.models
        ]
        for key, model in zip(keys, self.models):
            if key not in found:
                found[key] = list(_extracted(piece, model))
        for number, sequence in enumerate(piece):
            of_models = [found[key][number] for key in keys]
            errors = [features for features in of_models if isinstance(features, UserError)]
            yield errors[0] if errors else _examples_of(sequence, of_models, self.models)


def _extracted(piece: list[ImageSequence], model: "Generator") -> Iterator[Any]:
    images = [image for sequence in piece for image in sequence.images if image is not None]
    # an image of several sequences is read once
    places = {image: place for place, image in enumerate(dict.fromkeys(images))}
    rows = list(model.processor.reader.features_of(list(places)))
    for sequence in piece:
        found: list[Any] = []
        error: Optional[UserError] = None
        for image in sequence.images:
            value = None if image is None else rows[places[image]]
            if isinstance(value, UserError) and image is not None:
                where = f"{sequence.where}: " if sequence.where else ""
                error = error or UserError(f"{where}{image.name}: {value}")
            found.append(value)
        yield error or found


def _examples_of(
    sequence: ImageSequence, features: Sequence[Any], models: "Sequence[Generator]"
) -> "list[Example]":
    return [
        model.processor.example_of(sequence.index, rows) for model, rows in zip(models, features)
    ]


class StoredSource:
    """Image sequences whose features are in a store.

    Args:
        sequences: with keys of the store.
        store: the features.
        models: that read them.

    Raises:
        UserError: if a model was trained on other features than the store's.
    """

    piece = 256

    def __init__(
        self,
        sequences: list[ImageSequence],
        store: "FeatureStores",
        models: "Sequence[Generator]",
    ) -> None:
        self.sequences = sequences
        self.store = store
        self.models = models
        for model in models:
            model.processor.reader.check_features(store.attributes, store.dim, store.path)
            self._check_rows(model)

    def _check_rows(self, model: "Generator") -> None:
        expected = model.processor.rows_per_image
        for sequence in self.sequences:
            for key in sequence.keys:
                if key is not None and self.store.rows_of(key) != expected:
                    raise UserError(
                        f"{self.store.path}: image {key!r} has "
                        f"{counted(self.store.rows_of(key), 'row')} of features, but "
                        f"{model.files[0]} was trained on {expected} an image."
                    )

    def examples(self, piece: list[ImageSequence]) -> "Iterator[list[Example]]":
        """For each sequence what each model reads."""
        for sequence in piece:
            rows = [None if key is None else self.store.read(key) for key in sequence.keys]
            yield _examples_of(sequence, [rows] * len(self.models), self.models)


Source = Union[ImageSource, StoredSource]


def sequences_of_files(
    images: Sequence[str], files: Sequence[str] = (), *, count: int = 1, first: int = 0
) -> list[ImageSequence]:
    """
    Args:
        images: paths of five images, or none.
        files: JSONL with image sequences.
        count: stories of each sequence.
        first: index of the first story.

    Raises:
        UserError: if there are not five images, or a file cannot be read.
    """
    from fairseq_mm.extract.media_list import MediaFile

    found: list[tuple[str, str, Sequence[str]]] = [("", "", images)] if images else []
    for path in files:
        found += _sequences_of(path)
    sequences = []
    for number, (key, where, paths) in enumerate(found):
        _check_count(paths, where)
        keys = [None if path == NO_IMAGE else path for path in paths]
        media = [None if key is None else MediaFile(key, key) for key in keys]
        for again in range(count):
            index = first + number * count + again
            sequences.append(ImageSequence(index, key or "\t".join(paths), where, keys, media, []))
    return sequences


def _sequences_of(path: str) -> Iterator[tuple[str, str, list[str]]]:
    """Id, place and paths of each line of a file."""
    from fairseq_mm.data.input_files import read_lines

    folder = os.path.dirname(path)
    is_empty = True
    for number, line in read_lines(Path(path)):
        if not line.strip():
            continue
        is_empty = False
        where = f"{path}:{number}"
        try:
            entry = json.loads(line)
            images, key = entry["images"], entry.get("id", "")
            if isinstance(key, int):
                key = str(key)
        except (ValueError, TypeError, KeyError, AttributeError):
            images, key = None, ""
        is_list = isinstance(images, list) and all(isinstance(x, str) and x for x in images)
        if not is_list or not isinstance(key, str):
            raise UserError(
                f'{where}: must be {{"images": [five paths]}}, with an "id" if you like, but is '
                f"{line[:80]!r}."
            )
        paths = [x if x == NO_IMAGE else os.path.join(folder, x) for x in images]
        yield key, where, paths
    if is_empty:
        raise UserError(f"{path}: must have image sequences, one a line, but is empty.")


def sequences_of_ids(
    ids: Sequence[str], features: str, *, count: int = 1, first: int = 0
) -> "tuple[list[ImageSequence], FeatureStores]":
    """The images of five ids of a feature store, ``count`` times.

    Raises:
        UserError: if there are not five ids, or one is not in the stores.
    """
    from fairseq_mm.data.feature_store import open_features

    _check_count(ids, "--ids")
    store = open_features(features.split(os.pathsep))
    keys = [None if key == NO_IMAGE else key for key in ids]
    for key in keys:
        if key is not None:
            store.rows_of(key)
    indices = range(first, first + count)
    return [ImageSequence(i, "\t".join(ids), "", keys, [], []) for i in indices], store


def sequences_of_split(
    folder: str,
    split: str,
    *,
    features: Optional[str] = None,
    chosen: Sequence[int] = (),
    limit: Optional[int] = None,
) -> "tuple[list[ImageSequence], FeatureStores]":
    """The image sequences of a split, each once, with the stories that people have told.

    Args:
        folder: the data folder.
        split: its name.
        features: feature stores, if not ``features.h5`` in the folder.
        chosen: lines, from 0, whose sequences are meant; else the first line of each.
        limit: only the first so many of them.

    Raises:
        UserError: if the data folder is not complete, or lacks a line.
    """
    from fairseq_mm.data.feature_store import open_features
    from fairseq_mm.data.missing_images import read_missing_images
    from fairseq_mm.data.multimodal_dataset import check_line_counts
    from fairseq_mm.data.visual_ids import first_lines, read_visual_ids
    from fairseq_mm.data.visual_story_split import read_story_words, story_text_path

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
    firsts = [number for number, is_first in enumerate(first_lines(lines)) if is_first]
    numbers = (list(dict.fromkeys(chosen)) or firsts)[:limit]
    store = open_features((features or os.path.join(folder, "features.h5")).split(os.pathsep))
    missing = read_missing_images(folder)
    sequences = []
    for number in numbers:
        where, keys = f"{path}:{number + 1}", lines[number].split("\t")
        _check_count(keys, where)
        known = [None if key in missing else key for key in keys]
        for key in known:
            try:
                if key is not None:
                    store.rows_of(key)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
        told = references[lines[number]]
        sequences.append(ImageSequence(number, lines[number], where, known, [], told))
    return sequences, store


def _check_count(images: Sequence[str], where: str) -> None:
    place = f"{where}: " if where else ""
    if len(images) != NUM_IMAGES:
        verb = "is 1" if len(images) == 1 else f"are {len(images)}"
        raise UserError(f"{place}a story has {NUM_IMAGES} images, but there {verb}.")
    if all(image == NO_IMAGE for image in images):
        raise UserError(f"{place}all {NUM_IMAGES} images are missing.")
