"""``fairseq-mm inspect`` of models of visual stories: what each word attends to, and
which positions of an image a non-local block relates."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli.inspect_images_output import (
    Chosen,
    Inspected,
    Subject,
    page_of,
    story_entry,
)
from fairseq_mm.cli.tell_inputs import (
    ImageSequence,
    ImageSource,
    Source,
    StoredSource,
    sequences_of_files,
    sequences_of_ids,
    sequences_of_split,
)
from fairseq_mm.data.visual_story_text import NUM_IMAGES, SEPARATOR, split_sentences
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.analysis.visual_story_inspection import Traces
    from fairseq_mm.inference.generator import Generator
    from fairseq_mm.inference.processor import Example

# options that only visual stories have
OPTIONS = ("features", "ids", "images", "weights", "generate", "image", "position", "grid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("visual stories")
    group.add_argument(
        "--features",
        metavar="STORE",
        help="features of the images (default: features.h5 in DATA)",
    )
    group.add_argument(
        "--ids", nargs="+", default=[], metavar="ID", help="five, of images of --features"
    )
    group.add_argument(
        "--generate",
        action="store_true",
        help="Inspect what the model generates of the images of a data folder, not its stories.",
    )
    group.add_argument(
        "--images",
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder or .tar of the images of a store, for the page; may be given again",
    )
    group.add_argument(
        "--weights", metavar="FILE", help="state dict file of the extractor that made the features"
    )
    group.add_argument(
        "--image",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="of 1 to 5, whose grid is shown; may be given again (default: all)",
    )
    group.add_argument(
        "--position",
        type=_two_numbers(","),
        metavar="ROW,COLUMN",
        help="of the grid, from 0 (default: that whose similarities vary most)",
    )
    group.add_argument(
        "--grid",
        type=_two_numbers("x"),
        metavar="ROWSxCOLUMNS",
        help="of the features of an image (default: as many rows as columns)",
    )


def given_options(args: argparse.Namespace) -> list[str]:
    """Options given that are of visual stories alone, as they are written."""
    return [f"--{name}" for name in OPTIONS if getattr(args, name)]


def _two_numbers(sign: str) -> Any:
    def parse(text: str) -> tuple[int, int]:
        first, _, second = text.partition(sign)
        if not (first.isdecimal() and second.isdecimal()):
            raise argparse.ArgumentTypeError(
                f"must be two numbers with {sign!r} between them, but is {text!r}"
            )
        return int(first), int(second)

    return parse


def run(args: argparse.Namespace, states: Mapping[str, dict[str, Any]]) -> None:
    """
    Args:
        args: of ``fairseq-mm inspect``.
        states: the checkpoints, of :func:`.load_states`.

    Raises:
        UserError: if files or options do not fit, or there is nothing to see in the model.
    """
    from fairseq_mm.analysis.visual_story_inspection import inspect_visual_story, traces_of
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.inference.pretrained import from_pretrained

    _check_arguments(args)
    model = from_pretrained(
        list(states), weights=args.weights, device=args.device, states=dict(states)
    )
    traces = traces_of(model)
    chosen = _chosen(args, traces, model)
    given = _given_sentences(args, model)
    subjects, source = _subjects(args, given, model)
    if args.weights and isinstance(source, StoredSource):
        raise UserError("--weights: no image is read where features are given; leave it out.")
    examples = _examples(source)
    inspected = []
    for subject, sentences, example in zip(subjects, _stories(subjects, examples, model), examples):
        _check_sentences(sentences, subject)
        inspected.append(
            Inspected(subject, sentences, inspect_visual_story(model, example, sentences))
        )
    if args.html:
        architecture = str(next(iter(states.values()))["cfg"]["model"]["_name"])
        about = f"{architecture}, {model.files[0]}"
        write_file(
            args.html,
            page_of(inspected, chosen, model.processor.reader.identity, args.images, about),
        )
        print(f"wrote {args.html}", file=sys.stderr)
    if args.jsonl or not args.html:
        lines = "".join(
            json.dumps(story_entry(story, chosen), ensure_ascii=False) + "\n" for story in inspected
        )
        if args.jsonl:
            write_file(args.jsonl, lines)
            print(f"wrote {args.jsonl}", file=sys.stderr)
        else:
            print(lines, end="")


def _check_arguments(args: argparse.Namespace) -> None:
    for name in ("words", "side", "part"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name}: models of visual stories have no such option.")
    if args.layers:
        raise UserError("--layers: models of visual stories have no such option.")
    if args.images and not args.html:
        raise UserError("--images: are shown on the page (--html FILE).")
    if args.ids and not args.features:
        raise UserError("--ids: are of a feature store; name it (--features STORE).")
    if args.ids and args.source:
        raise UserError(f"{args.source[0]} and --ids: leave one of the two out.")
    if not args.ids and not args.source:
        raise UserError(
            "no story: give five images, or a data folder, or what `fairseq-mm tell --jsonl` "
            "wrote, or --features STORE --ids ID ID ID ID ID."
        )
    if len(args.source) > 1:
        for name in ("features", "images", "line", "split"):
            if getattr(args, name):
                raise UserError(f"--{name}: is not for images; leave it out.")
    is_folder = len(args.source) == 1 and os.path.isdir(args.source[0])
    for name in ("generate", "split"):
        if getattr(args, name) and not is_folder:
            raise UserError(f"--{name}: is of a data folder, and there is none.")
    if args.line and args.ids:
        raise UserError("--line: is of a data folder or file, and there is none.")
    if args.generate and (args.story is not None or args.story_file is not None):
        raise UserError("--generate: the story is given; leave one of the two out.")
    for number in args.image:
        if not 1 <= number <= NUM_IMAGES:
            raise UserError(f"--image must be from 1 to {NUM_IMAGES}, but is {number} instead.")


def _chosen(args: argparse.Namespace, traces: "Traces", model: "Generator") -> Optional[Chosen]:
    from fairseq_mm.analysis.visual_story_inspection import grid_shape

    if not traces.grid:
        for name in ("image", "position", "grid"):
            if getattr(args, name):
                raise UserError(
                    f"--{name}: {model.files[0]} has no non-local block (--arch glac_non_local)."
                )
        return None
    shape = grid_shape(model.processor.rows_per_image, args.grid)
    if args.position and not all(x < size for x, size in zip(args.position, shape)):
        raise UserError(
            f"--position must be from 0,0 to {shape[0] - 1},{shape[1] - 1}, but is "
            f"{args.position[0]},{args.position[1]} instead."
        )
    places = sorted({number - 1 for number in args.image}) or list(range(NUM_IMAGES))
    return Chosen(places, args.position, shape)


def _given_sentences(args: argparse.Namespace, model: "Generator") -> Optional[list[list[str]]]:
    """The story of ``--story`` or ``--story-file``."""
    if args.story is None and args.story_file is None:
        return None
    from fairseq_mm.data.caption_text import CaptionTokenizer
    from fairseq_mm.data.story_text import check_encodable

    text = args.story
    if text is None:
        try:
            text = Path(args.story_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--story-file {args.story_file}: cannot be read ({error}).") from None
    check_encodable(text, "story")
    pieces = text.split(SEPARATOR) if SEPARATOR in text else text.strip().splitlines()
    dictionary = model.task.target_dictionary
    words = dictionary.symbols[dictionary.nspecial :]
    tokenize = CaptionTokenizer(
        keep_case=any(word != word.lower() for word in words), keep_punctuation=True
    )
    return [tokenize(piece) for piece in pieces]


def _subjects(
    args: argparse.Namespace,
    given: Optional[list[list[str]]],
    model: "Generator",
) -> tuple[list[Subject], Source]:
    if args.ids:
        sequences, store = sequences_of_ids(args.ids, args.features)
        return [Subject(sequences[0], given, "")], StoredSource(sequences, store, [model])
    if len(args.source) > 1:
        sequences = sequences_of_files(args.source)
        return [Subject(sequences[0], given, "")], ImageSource(sequences, [model])
    if os.path.isdir(args.source[0]):
        return _of_folder(args, given, model)
    return _of_generated(args, given, model)


def _of_folder(
    args: argparse.Namespace, given: Optional[list[list[str]]], model: "Generator"
) -> tuple[list[Subject], Source]:
    from fairseq_mm.data.visual_story_split import read_story_words

    folder, split = args.source[0], args.split or "valid"
    sequences, store = sequences_of_split(
        folder, split, features=args.features, chosen=args.line or [0]
    )
    _check_one(given, sequences)
    stories = read_story_words(folder, split)
    subjects = []
    for sequence in sequences:
        sentences = given
        if given is None and not args.generate:
            line = " ".join(stories[sequence.index])
            sentences = [part.split() for part in split_sentences(line)]
        subjects.append(Subject(sequence, sentences, f"Line {sequence.index} of {split}"))
    return subjects, StoredSource(sequences, store, [model])


def _check_one(given: Optional[list[list[str]]], sequences: Sequence[ImageSequence]) -> None:
    if given is not None and len(sequences) > 1:
        raise UserError(
            f"the story is given, but there are {len(sequences)} lines: give one --line."
        )


def _of_generated(
    args: argparse.Namespace, given: Optional[list[list[str]]], model: "Generator"
) -> tuple[list[Subject], Source]:
    """Lines of what ``fairseq-mm tell --jsonl`` wrote."""
    from fairseq_mm.data.input_files import read_lines

    path = args.source[0]
    entries = [(number, line) for number, line in read_lines(Path(path)) if line.strip()]
    subjects, store = [], None
    for wanted in dict.fromkeys(args.line or [0]):
        if not 0 <= wanted < len(entries):
            raise UserError(
                f"--line must be from 0 to {len(entries) - 1} ({path}), but is {wanted} instead."
            )
        number, line = entries[wanted]
        try:
            entry = json.loads(line)
            images, story = entry["images"], entry["hypothesis"].split()
            if not isinstance(images, list) or not all(isinstance(x, str) for x in images):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path}:{number}: must be a line of `fairseq-mm tell --jsonl` of images, with "
                "`images` and `hypothesis`; images are given five at a time."
            ) from None
        if args.features:
            (sequence,), store = sequences_of_ids(images, args.features)
        else:
            (sequence,) = sequences_of_files(images)
        sentences = [part.split() for part in split_sentences(" ".join(story))]
        sequence = sequence._replace(index=wanted, id=str(entry.get("id", sequence.id)))
        subjects.append(Subject(sequence, given or sentences, f"Line {wanted} of {path}"))
    sequences = [subject.sequence for subject in subjects]
    _check_one(given, sequences)
    if store is None:
        return subjects, ImageSource(sequences, [model])
    return subjects, StoredSource(sequences, store, [model])


def _examples(source: Source) -> "list[Example]":
    """
    Raises:
        UserError: naming the first image that cannot be read.
    """
    examples = []
    for found in source.examples(source.sequences):
        if isinstance(found, UserError):
            raise found
        examples.append(found[0])
    return examples


def _stories(
    subjects: Sequence[Subject], examples: "Sequence[Example]", model: "Generator"
) -> list[list[list[str]]]:
    """Sentences of each story; those that are not given are generated."""
    places = [place for place, subject in enumerate(subjects) if subject.sentences is None]
    found = model.stream(
        [examples[place] for place in places],
        model.config(),
        indices=[subjects[place].sequence.index for place in places],
    )
    generated = {
        place: [part.split() for part in split_sentences(best.line)]
        for place, (best, *_) in zip(places, found)
    }
    return [subject.sentences or generated[place] for place, subject in enumerate(subjects)]


def _check_sentences(sentences: Sequence[Sequence[str]], subject: Subject) -> None:
    from fairseq_mm.data.caption_text import reserved_token

    where = f"{subject.title}: " if subject.title else ""
    if len(sentences) != NUM_IMAGES:
        raise UserError(
            f"{where}a story has {NUM_IMAGES} sentences, {SEPARATOR} between them, but this one "
            f"has {len(sentences)}."
        )
    for number, words in enumerate(sentences, start=1):
        if not words:
            raise UserError(f"{where}sentence {number} of the story has no word.")
        token = reserved_token(list(words))
        if token is not None:
            raise UserError(f"{where}{token!r} is no word of a story.")
