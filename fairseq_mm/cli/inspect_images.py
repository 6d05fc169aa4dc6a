"""Runs ``fairseq-mm inspect`` for visual stories: attention to images, likelihood of words."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from fairseq_mm.analysis.visual_story_inspection import (
    AttentionKinds,
    GridPositions,
    get_attention_kinds,
    grid_shape,
    inspect_visual_story,
)
from fairseq_mm.cli.inspect_output import Inspection, Part, check_line, read_told_lines
from fairseq_mm.cli.tell_inputs import NO_IMAGE
from fairseq_mm.data.caption_text import CaptionTokenizer, reserved_token
from fairseq_mm.data.feature_store import FeatureStores, open_features, open_folder_features
from fairseq_mm.data.input_files import check_line_counts
from fairseq_mm.data.split_files import read_missing_images, read_visual_ids
from fairseq_mm.data.split_text import read_story_words, story_text_path
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, check_encodable, split_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.pretrained import from_checkpoints
from fairseq_mm.report.inspection import make_visual_story_section
from fairseq_mm.report.thumbnails import Thumbnails
from fairseq_mm.report.visual_story_sections import embed_image

SIDE = 480  # pixels of an image on the page

Sentences = list[list[str]]


class Subject(NamedTuple):
    """Visual story to inspect.

    Attributes:
        index: Index of the story. If the model samples the story, the random numbers depend on it.
        id: Id of the story in its JSON record.
        title: Title of the story's section on the page; empty if there is only one story.
        keys: Ids in the feature store, or paths, of five images; None for a missing image.
        sentences: Words of each sentence; None if the model must first generate the story.
    """

    index: int
    id: str
    title: str
    keys: list[Optional[str]]
    sentences: Optional[Sentences]


def inspect(args: argparse.Namespace, checkpoints: Sequence[Checkpoint]) -> Inspection:
    """Compute attention and likelihood at each word of visual stories with one model."""
    model: Any = from_checkpoints(checkpoints, weights=args.weights, device=args.device)
    positions = _choose_positions(args, get_attention_kinds(model), model)
    subjects, store, missing = _read_subjects(args)
    if args.story is not None:
        if len(subjects) > 1:
            raise UserError(
                f"the story is given, but there are {len(subjects)} lines: give one of --lines."
            )
        subjects = [subjects[0]._replace(sentences=_tokenize(args.story, model))]
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
            sentences = subject.sentences
            if sentences is None:
                # One story is generated at a time, because each is written when it is complete.
                ((best, *_),) = model.stream([example], model.config(), indices=[subject.index])
                sentences = _split_words(best.line)
            _check_sentences(sentences, subject.title)
            yield _build_part(model, subject, example, sentences, positions, images)
        if args.html:
            images.check()

    return Inspection(title, subtitle, parts())


def _build_part(
    model: Any,
    subject: Subject,
    example: Any,
    sentences: Sentences,
    positions: Optional[GridPositions],
    images: "_StoryImages",
) -> Part:
    inspected = inspect_visual_story(model, example, sentences)
    names = [NO_IMAGE if key is None else key for key in subject.keys]
    record = {
        "id": subject.id,
        "item": subject.index,
        "images": names,
        "generated": subject.sentences is None,
        "sentences": [" ".join(sentence) for sentence in sentences],
        **inspected.record(positions),
    }

    def draw() -> list[Any]:
        return [
            make_visual_story_section(
                inspected,
                sentences,
                [None if key is None else images.get(key) for key in subject.keys],
                [Path(name).name for name in names],
                title=subject.title,
                note="generated by the model" if subject.sentences is None else "",
                positions=positions,
                identity=model.processor.reader.identity,
            )
        ]

    return Part([record], draw)


def _choose_positions(
    args: argparse.Namespace, kinds: AttentionKinds, model: Any
) -> Optional[GridPositions]:
    if not kinds.grid:
        for name in ("image", "position", "grid"):
            if getattr(args, name):
                raise UserError(
                    f"--{name}: {model.files[0]} has no non-local block (--arch glac_non_local)."
                )
        return None
    for number in args.image:
        if not 1 <= number <= NUM_IMAGES:
            raise UserError(f"--image must be from 1 to {NUM_IMAGES}, but is {number} instead.")
    shape = grid_shape(model.processor.rows_per_image, args.grid)
    if args.position and not all(x < size for x, size in zip(args.position, shape)):
        raise UserError(
            f"--position must be from 0,0 to {shape[0] - 1},{shape[1] - 1}, but is "
            f"{args.position[0]},{args.position[1]} instead."
        )
    places = sorted({number - 1 for number in args.image}) or list(range(NUM_IMAGES))
    return GridPositions(places, args.position, shape)


def _read_subjects(
    args: argparse.Namespace,
) -> tuple[list[Subject], Optional[FeatureStores], frozenset[str]]:
    """Read the stories that the command line names.

    Returns:
        subjects: One subject per story.
        store: Feature store of the images; None if the images are files.
        missing: Ids of images without features, from ``missing_images.txt`` of the data folder.
    """
    if args.images and not args.html:
        raise UserError("--images: are shown on the page (--html FILE).")
    if args.data:
        if args.weights:  # no extractor runs if there are features
            raise UserError("--weights: no image is read where features are given; leave it out.")
        store = open_folder_features(args.data, args.features)
        return _read_folder(args), store, read_missing_images(args.data)
    if args.generate or args.split:
        name = "--generate" if args.generate else "--split"
        raise UserError(f"{name}: is of a data folder, and there is none.")
    if not args.source:
        raise UserError(
            "no story: give five images, or a data folder, or what `fairseq-mm tell --jsonl` wrote."
        )
    if len(args.source) > 1:
        for name in ("features", "images", "lines"):
            if getattr(args, name):
                raise UserError(f"--{name}: is not for images; leave it out.")
        keys = [None if path == NO_IMAGE else path for path in args.source]
        return [Subject(0, "\t".join(args.source), "", keys, None)], None, frozenset()
    told_store = open_features(args.features.split(os.pathsep)) if args.features else None
    path, lines = args.source[0], list(dict.fromkeys(args.lines or [0]))
    needed = " of images, with `images` and `hypothesis`; images are given five at a time."
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
        sentences = None if args.generate else _split_words(" ".join(stories[line]))
        if args.generate and args.story is not None:
            raise UserError("--generate: the story is given; leave one of the two out.")
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


def _tokenize(text: str, model: Any) -> Sentences:
    check_encodable(text, "story")
    pieces = text.split(SEPARATOR) if SEPARATOR in text else text.strip().splitlines()
    # The checkpoint does not record whether its training text was lower-cased; its words show it.
    words = model.dictionary.symbols[model.dictionary.nspecial :]
    keeps_case = any(word != word.lower() for word in words)
    return [*map(CaptionTokenizer(keep_case=keeps_case, keep_punctuation=True), pieces)]


def _check_sentences(sentences: Sentences, title: str) -> None:
    where = f"{title}: " if title else ""
    if len(sentences) != NUM_IMAGES:
        raise UserError(
            f"{where}a story has {NUM_IMAGES} sentences, {SEPARATOR} between them, but this one "
            f"has {len(sentences)}."
        )
    for number, words in enumerate(sentences, start=1):
        if not words:
            raise UserError(f"{where}sentence {number} of the story has no word.")
        token = reserved_token(words)
        if token is not None:
            raise UserError(f"{where}{token!r} is no word of a story.")


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
            self._embedded[key] = None if file is None else embed_image(file, SIDE)
        return self._embedded[key]

    def check(self) -> None:
        """Raise UserError if ``--images`` is given, but has no image of the stories."""
        # A folder may lack some images, but a folder without any image of the stories is wrong.
        if self.folders and not any(self._embedded.values()):
            raise UserError(f"--images {' '.join(self.folders)}: has none of the stories' images.")
