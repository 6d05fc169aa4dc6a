"""Runs ``fairseq-mm inspect`` for visual stories: attention to images, likelihood of words."""

import argparse
import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.analysis.visual_story_inspection import get_attention_kinds, inspect_visual_story
from fairseq_mm.cli.inspect import Inspection, Part, check_line, read_told_line
from fairseq_mm.data.feature_store import FeatureStores, open_features, open_folder_features
from fairseq_mm.data.records import open_split
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, split_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import MediaFile
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.pretrained import from_checkpoints
from fairseq_mm.inference.visual_story_processor import NO_IMAGE
from fairseq_mm.report.inspection import make_visual_story_section
from fairseq_mm.report.thumbnails import Thumbnails, jpeg_uri, read_listed
from fairseq_mm.report.visual_story_sections import EmbeddedImage

SIDE = 480  # pixels of an image on the page


class Subject(NamedTuple):
    """Visual story to inspect."""

    line: int  # index of the story's line
    id: str  # id of the story in its JSON record
    title: str  # title of the story's section on the page
    # ids in the feature store, or paths, of five images; None for a missing image
    keys: list[Optional[str]]
    sentences: list[list[str]]  # words of each sentence


def inspect(args: argparse.Namespace, checkpoint: Checkpoint) -> Inspection:
    """Compute attention and likelihood at each word of visual stories with one model."""
    model: Any = from_checkpoints([checkpoint], weights=args.weights, device=args.device)
    shape = None
    if get_attention_kinds(model).grid:
        side = math.isqrt(model.processor.rows_per_image)
        shape = (side, side)
    subjects, store = _read_subjects(args)
    if store is not None:
        model.processor.reader.check_features(store.attributes, store.dim, store.path)
    # The processor reads the file of a path; None is a missing image.
    inputs = [
        [key if key is None or store is None else store.read(key) for key in subject.keys]
        for subject in subjects
    ]
    examples = model.read(inputs, None)
    thumbnails = Thumbnails(args.images, SIDE)

    @lru_cache(None)
    def read_image(key: str) -> Optional[EmbeddedImage]:
        if key not in thumbnails and store is not None:
            return None
        pixels = read_listed(thumbnails.image(key) if key in thumbnails else MediaFile(key, key))
        return EmbeddedImage(jpeg_uri(pixels, side=SIDE), *pixels.size)

    number = len(subjects)
    title = f"Attention of {'a visual story' if number == 1 else f'{number} visual stories'}"

    def parts() -> Iterator[Part]:
        for subject, example in zip(subjects, examples):
            if len(subject.sentences) != NUM_IMAGES:
                raise UserError(
                    f"{subject.title}: a story has {NUM_IMAGES} sentences, {SEPARATOR} between "
                    f"them, but this one has {len(subject.sentences)}."
                )
            inspected = inspect_visual_story(model, example, subject.sentences)
            names = [NO_IMAGE if key is None else key for key in subject.keys]
            record = {
                "id": subject.id,
                "item": subject.line,
                "images": names,
                "generated": False,
                "sentences": [" ".join(sentence) for sentence in subject.sentences],
                **inspected.record(shape),
            }

            # Default values bind this story's data; a closure would see the data of the last one.
            def draw(inspected: Any = inspected, subject: Subject = subject) -> list[Any]:
                return [
                    make_visual_story_section(
                        inspected,
                        subject.sentences,
                        [None if key is None else read_image(key) for key in subject.keys],
                        [Path(key or NO_IMAGE).name for key in subject.keys],
                        title=subject.title if number > 1 or args.data else "",
                        shape=shape,
                        identity=model.processor.reader.identity,
                    )
                ]

            yield Part([record], draw)

    return Inspection(title, f"{model.architectures[0]}, {model.files[0]}", parts())


def _read_subjects(args: argparse.Namespace) -> tuple[list[Subject], Optional[FeatureStores]]:
    """Read the stories that the command line names, and open the store of their images.

    The store is None if the images are files.
    """
    lines = list(dict.fromkeys(args.lines or [0]))
    subjects = []
    if not args.data:
        store = open_features(args.features.split(os.pathsep)) if args.features else None
        for line in lines:
            needed = " of images, with `images` and `hypothesis`."
            told = read_told_line(args.source, line, _parse_told, needed)
            subjects.append(told._replace(line=line, title=f"Line {line} of {args.source}"))
        return subjects, store
    store = open_folder_features(args.data, args.features)
    split = open_split(args.data, args.split or "valid")
    stories = split.tokens()
    for line in lines:
        check_line(line, len(stories), split.path)
        key = split.items[line]
        images = [None if image in split.missing else image for image in key.split("\t")]
        sentences = _split_words(" ".join(stories[line]))
        subjects.append(Subject(line, key, f"Line {line} of {split.name}", images, sentences))
    return subjects, store


def _parse_told(record: Any) -> Subject:
    images, sentences = record["images"], _split_words(record["hypothesis"])
    if not isinstance(images, list):
        raise TypeError
    # join raises a TypeError if an image is not a string
    key = str(record.get("id", "\t".join(images)))
    return Subject(0, key, "", [None if x == NO_IMAGE else x for x in images], sentences)


def _split_words(line: str) -> list[list[str]]:
    return [words.split() for words in split_sentences(line)]
