"""Runs ``fairseq-mm inspect`` for visual stories: attention to images, likelihood of words."""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.analysis.visual_story_inspection import (
    get_attention_kinds,
    inspect_visual_story,
)
from fairseq_mm.cli.inspect_output import Inspection, Part, check_line, read_told_lines
from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.feature_store import FeatureStores, open_features, open_folder_features
from fairseq_mm.data.input_files import check_line_counts
from fairseq_mm.data.split_files import read_missing_images, read_visual_ids
from fairseq_mm.data.split_text import read_story_words, story_text_path
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, split_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.pretrained import from_checkpoints
from fairseq_mm.inference.visual_story_processor import NO_IMAGE
from fairseq_mm.report.inspection import make_visual_story_section
from fairseq_mm.report.thumbnails import Thumbnails, jpeg_uri, read_listed
from fairseq_mm.report.visual_story_sections import EmbeddedImage

SIDE = 480  # pixels of an image on the page

Sentences = list[list[str]]


class Subject(NamedTuple):
    """Visual story to inspect.

    Attributes:
        index: Index of the story's line.
        id: Id of the story in its JSON record.
        title: Title of the story's section on the page; empty if there is only one story.
        keys: Ids in the feature store, or paths, of five images; None for a missing image.
        sentences: Words of each sentence.
    """

    index: int
    id: str
    title: str
    keys: list[Optional[str]]
    sentences: Sentences


def inspect(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> Inspection:
    """Compute attention and likelihood at each word of visual stories with one model."""
    model: Any = from_checkpoints(checkpoints, weights=args.weights, device=args.device)
    shape = None
    if get_attention_kinds(model).grid:
        number = model.processor.rows_per_image
        shape = (math.isqrt(number), math.isqrt(number))
        if shape[0] * shape[1] != number:
            raise UserError(f"the features have {number} positions an image, which are no square.")
    subjects, store, missing = _read_subjects(args)
    if store is not None:
        model.processor.reader.check_features(store.attributes, store.dim, store.path)
    subjects = [
        subject._replace(keys=[None if key in missing else key for key in subject.keys])
        for subject in subjects
    ]
    # The processor reads the file of a path; None is a missing image.
    inputs = [
        [key if key is None or store is None else store.read(key) for key in subject.keys]
        for subject in subjects
    ]
    examples = model._read(inputs, None)
    images = _StoryImages(args.images, is_stored=store is not None)
    number = len(subjects)
    title = f"Attention of {'a visual story' if number == 1 else f'{number} visual stories'}"
    subtitle = f"{model.architectures[0]}, {model.files[0]}"

    def parts() -> Iterator[Part]:
        for subject, example in zip(subjects, examples):
            _check_sentences(subject.sentences, subject.title)
            yield _build_part(model, subject, example, shape, images)
        if args.html:
            images.check()

    return Inspection(title, subtitle, parts())


def _build_part(
    model: Any,
    subject: Subject,
    example: Any,
    shape: Optional[tuple[int, int]],
    images: "_StoryImages",
) -> Part:
    sentences = subject.sentences
    inspected = inspect_visual_story(model, example, sentences)
    names = [NO_IMAGE if key is None else key for key in subject.keys]
    record = {
        "id": subject.id,
        "item": subject.index,
        "images": names,
        "generated": False,
        "sentences": [" ".join(sentence) for sentence in sentences],
        **inspected.record(shape),
    }

    def draw() -> list[Any]:
        return [
            make_visual_story_section(
                inspected,
                sentences,
                [None if key is None else images.get(key) for key in subject.keys],
                [Path(name).name for name in names],
                title=subject.title,
                shape=shape,
                identity=model.processor.reader.identity,
            )
        ]

    return Part([record], draw)


def _read_subjects(
    args: argparse.Namespace,
) -> tuple[list[Subject], Optional[FeatureStores], frozenset[str]]:
    """Read the stories that the command line names.

    Returns:
        subjects: One subject per story.
        store: Feature store of the images; None if the images are files.
        missing: Ids of images without features, from ``missing_images.txt`` of the data folder.
    """
    if args.data:
        if args.weights:  # no extractor runs if there are features
            raise UserError("--weights: no image is read where features are given; leave it out.")
        store = open_folder_features(args.data, args.features)
        return _read_folder(args), store, read_missing_images(args.data)
    told_store = open_features(args.features.split(os.pathsep)) if args.features else None
    path, lines = args.source, list(dict.fromkeys(args.lines or [0]))
    needed = " of images, with `images` and `hypothesis`."
    told = read_told_lines(path, lines, _parse_told, needed)
    subjects = [subject._replace(index=i, title=f"Line {i} of {path}") for i, subject in told]
    return subjects, told_store, frozenset()


def _read_folder(args: argparse.Namespace) -> list[Subject]:
    split = args.split or "valid"
    path = os.path.join(args.data, f"{split}.visual_ids")
    keys, stories = read_visual_ids(path), read_story_words(args.data, split)
    check_line_counts({str(story_text_path(args.data, split)): len(stories), path: len(keys)})
    subjects = []
    for line in dict.fromkeys(args.lines or [0]):
        check_line(line, len(keys), path)
        sentences = _split_words(" ".join(stories[line]))
        title = f"Line {line} of {split}"
        subjects.append(Subject(line, keys[line], title, [*keys[line].split("\t")], sentences))
    return subjects


def _parse_told(record: Any) -> Subject:
    images, sentences = record["images"], _split_words(record["hypothesis"])
    if not isinstance(images, list):
        raise TypeError
    # join raises a TypeError if an image is not a string
    key = str(record.get("id", "\t".join(images)))
    return Subject(0, key, "", [None if x == NO_IMAGE else x for x in images], sentences)


def _split_words(line: str) -> Sentences:
    return [words.split() for words in split_sentences(line)]


def _check_sentences(sentences: Sentences, title: str) -> None:
    problems = []
    if len(sentences) != NUM_IMAGES:
        problems.append(
            f"a story has {NUM_IMAGES} sentences, {SEPARATOR} between them, but this one has "
            f"{len(sentences)}"
        )
    for number, words in enumerate(sentences, start=1):
        token = reserved_token(words)
        if not words:
            problems.append(f"sentence {number} of the story has no word")
        elif token is not None:
            problems.append(f"{token!r} is no word of a story")
    if problems:
        raise UserError(f"{title}: {problems[0]}." if title else f"{problems[0]}.")


class _StoryImages:
    """Images of the stories as data URIs for the HTML page; each file is read only once.

    Args:
        folders: Folders or archives in which the images of a feature store are searched.
        is_stored: True if stories name images by ids of a feature store, False if by paths.
    """

    def __init__(self, folders: list[str], *, is_stored: bool) -> None:
        self.folders = folders
        self.thumbnails = Thumbnails(folders, SIDE) if folders else None
        self.is_stored = is_stored
        self._embedded: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return the image with the id or path ``key``, reduced, with its original size.

        The result is None if the folders of ``--images`` have no such image.
        """
        if key not in self._embedded:
            file = None if self.is_stored else MediaFile(key, key)
            if self.thumbnails is not None and key in self.thumbnails:
                file = self.thumbnails.image(key)
            self._embedded[key] = None
            if file is not None:
                pixels = read_listed(file)
                self._embedded[key] = EmbeddedImage(jpeg_uri(pixels, side=SIDE), *pixels.size)
        return self._embedded[key]

    def check(self) -> None:
        """Raise UserError if ``--images`` is given, but has no image of the stories."""
        # A folder may lack some images, but a folder without any image of the stories is wrong.
        if self.folders and not any(self._embedded.values()):
            raise UserError(f"--images {' '.join(self.folders)}: has none of the stories' images.")
