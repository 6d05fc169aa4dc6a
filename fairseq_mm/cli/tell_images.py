"""Generates visual stories for ``fairseq-mm tell``: inputs, text, JSON, tables and HTML pages."""

import argparse
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.generate import Input, TextRun
from fairseq_mm.cli.records import compute_digests, counted, heading, json_line, rank_fields
from fairseq_mm.cli.tell_prompts import check_repeats, make_config
from fairseq_mm.data.story_text import SEPARATOR, detokenize_story, split_sentences
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.data.feature_store import FeatureStores
    from fairseq_mm.extract.media_list import MediaFile
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.report.visual_story_sections import Strip

# name of the references in tables and records
PEOPLE = "people"
# width of a table if the output is no terminal, and least width of its columns
_WIDE, _NARROWEST = 160, 12
SIDE = 400  # pixels of an image on the page
_POOL = 256  # image sequences from which --best-by ranking samples others
# on the command line and in records; None in Python
NO_IMAGE = "-"


def visual_stories(
    args: argparse.Namespace,
    systems: "Mapping[str, Sequence[Checkpoint]]",
    options: Mapping[str, Any],
    _: Sequence[Input],
) -> int:
    """Generate and write stories of image sequences; return the exit status.

    ``systems`` has the checkpoints of each system, ``options`` the given options of generation.
    """
    from fairseq_mm.inference.pretrained import from_checkpoints

    models: dict[str, Any] = {
        name: from_checkpoints(checkpoints, weights=args.weights, device=args.device)
        for name, checkpoints in systems.items()
    }
    configs = [make_config(args, model, options) for model in models.values()]
    check_repeats(args, configs[0])
    store: Any = None
    if args.split:
        sequences, store = sequences_of_split(
            args.data, args.split, features=args.features, chosen=args.line, limit=args.limit
        )
        return write_visual_stories(args, models, configs, sequences, store)
    if args.ids:
        sequence, store = sequence_of_ids(args.ids, args.features)
    else:
        from fairseq_mm.extract.media_list import MediaFile

        keys = _check_images(args.inputs)
        media = [None if key is None else MediaFile(key, key) for key in keys]
        sequence = ImageSequence(0, "\t".join(args.inputs), "", keys, media, [])
    sequences = [sequence._replace(index=index) for index in range(args.n or 1)]
    return write_visual_stories(args, models, configs, sequences, store)


class ImageSequence(NamedTuple):
    """Five images in the order of a story that the model will generate.

    Attributes:
        index: Index of the story. If the story is sampled, the random numbers depend on the index.
        id: Id of the story in its JSON record: its line in the split's ``visual_ids``, or the paths
            of the images.
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


def sequence_of_ids(ids: Sequence[str], features: str) -> "tuple[ImageSequence, FeatureStores]":
    """Build the image sequence of five ids (``-`` for a missing image); open the feature stores."""
    from fairseq_mm.data.feature_store import open_features

    keys = _check_images(ids, "--ids")
    store = open_features(features.split(os.pathsep))
    for key in keys:
        if key is not None:
            # reports an id that is not in the store, before stories are generated
            store.count_rows(key)
    return ImageSequence(0, "\t".join(ids), "", keys, [], []), store


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


def _check_images(images: Sequence[str], where: str = "") -> list[Optional[str]]:
    """Return five images with None in place of ``-``, which stands for a missing image.

    ``where`` is the name of the sequence in messages; empty for no name.
    """
    from fairseq_mm.inference.visual_story_processor import check_sequence

    keys = [None if image == NO_IMAGE else image for image in images]
    check_sequence(keys, f"{where}: " if where else "")
    return keys


def write_visual_stories(
    args: argparse.Namespace,
    systems: dict[str, Any],
    configs: Sequence[Any],
    sequences: Sequence[ImageSequence],
    store: Any = None,
) -> int:
    """Generate and write the stories of image sequences; return the exit status.

    Args:
        systems: Dict from the name of a system to its generator.
        configs: Generation config of each system.
        sequences: Image sequences, one for each story.
        store: Feature store; None to read the image files.
    """
    for model in systems.values():
        reader = model.processor.reader
        if store is None:
            # an extractor that cannot be rebuilt is reported before any image is read
            reader.load_extractor()
        else:
            reader.check_features(store.attributes, store.dim, store.path)
    inputs = [Input(x.id, x.index, x, where=x.where) for x in sequences]
    texts = TextRun("tell", args, [*systems.values()], configs, inputs, copies=args.n or 1)
    facts = dict(zip(systems, texts.provenance()))
    rankings = _open_rankings(args, systems, configs, sequences, store)
    page = Page(args.images) if args.html else None
    # if only --html is given, the page is the output, and nothing is printed
    has_text = not args.html or args.output or args.jsonl
    # number of sequences that are read at a time; reading images takes longer than reading a store
    size = 16 if store is None else 256

    def read(inputs: Sequence[Input]) -> Iterator[Any]:
        return _read_sequences([item.value for item in inputs], systems, store)

    with texts.open_outputs(is_written=bool(has_text)):
        for item, examples, hypotheses in texts.generate(read, size=size):
            margins: dict[str, list[Any]] = {}
            for place, (name, ranking) in enumerate(rankings.items()):
                ranked = ranking.rank(
                    examples[place],
                    hypotheses[place],
                    index=item.index,
                    batch_size=args.batch_size,
                )[: args.nbest or 1]
                hypotheses[place] = [story.hypothesis for story in ranked]
                margins[name] = ranked
            stories = dict(zip(systems, hypotheses))
            if texts.form == "jsonl":
                lines = [*_records(args, item.value, stories, facts, margins)]
            else:
                lines = _format_stories(args, item.value, stories)
                if len(inputs) > 1:
                    lines = [f"{heading(item.index, item.name)}\n{text}\n" for text in lines]
            texts.write(lines, sum(map(len, hypotheses)))
            if page is not None:
                page.add(item.value, stories)
    if page is None:
        return texts.finish()
    page.write(args.html, f"generated by {', '.join(systems)}", _describe_run(systems, configs))
    absent = f"; {counted(page.num_absent, 'image')} not found"
    absent = absent if args.images and page.num_absent else ""
    number = counted(texts.num_texts, *texts.text_names)
    size_in_mb = os.path.getsize(args.html) / 1e6
    return texts.finish(page=f"{number}, {size_in_mb:.1f} MB{absent}")


def _open_rankings(
    args: argparse.Namespace,
    systems: Mapping[str, Any],
    configs: Sequence[Any],
    sequences: Sequence[ImageSequence],
    store: Any,
) -> dict[str, Any]:
    """Return a dict from each system's name to the object that ranks its stories.

    The dict is empty without ``--best-by ranking``. A story's likelihood under its own images is
    compared with its likelihood under other image sequences, among the first ``_POOL`` of the run.
    """
    if args.best_by != "ranking":
        return {}
    from fairseq_mm.inference.prompt_ranking import PromptRanking

    distinct = {tuple(sequence.keys): sequence for sequence in sequences}
    pool = [
        examples
        for examples in _read_sequences([*distinct.values()][:_POOL], systems, store)
        if not isinstance(examples, UserError)
    ]
    rankings = {
        name: PromptRanking(model, [examples[i] for examples in pool], seed=config.seed)
        for i, ((name, model), config) in enumerate(zip(systems.items(), configs))
    }
    for ranking in rankings.values() if pool else ():
        # if there is no other sequence, this fails before any story is generated
        ranking.draw_others(next(iter(ranking.prompts.values())), 0)
    return rankings


def _read_sequences(
    sequences: Sequence[ImageSequence], systems: Mapping[str, Any], store: Any
) -> Iterator[Any]:
    """Yield for each image sequence a list with one example per system.

    If an image cannot be read, a UserError is yielded in place of the list. If ``store`` is None,
    the image files are read.
    """
    processors = [model.processor for model in systems.values()]
    extractors = [json.dumps(x.extractor_identity, sort_keys=True) for x in processors]
    # an image of several sequences is read once, and once for all systems with one extractor
    features: dict[str, dict[Any, Any]] = {}
    if store is None:
        images = list(dict.fromkeys(x for s in sequences for x in s.images if x is not None))
        for extractor, processor in zip(extractors, processors):
            if extractor not in features:
                features[extractor] = dict(zip(images, processor.reader.read_features(images)))
    for sequence in sequences:
        if store is None:
            rows = [[features[x].get(image) for image in sequence.images] for x in extractors]
        else:
            # read once, because every system has been compared with the store
            rows = [[None if key is None else store.read(key) for key in sequence.keys]]
            rows *= len(processors)
        errors = [
            UserError(f"{image.name}: {value}")
            for values in rows
            for image, value in zip(sequence.images, values)
            if image is not None and isinstance(value, UserError)
        ]
        if errors:
            yield errors[0]
        else:
            yield [x.build_example(sequence.index, values) for x, values in zip(processors, rows)]


def _format_stories(
    args: argparse.Namespace, sequence: ImageSequence, stories: Mapping[str, Any]
) -> list[str]:
    """Return the stories of an image sequence as texts.

    With ``--compare``, the list has one text: a table of the references and of all stories.
    ``stories`` has each system's hypotheses, best first.
    """
    if not args.compare:
        (hypotheses,) = stories.values()
        return ["\n".join(hypothesis.sentences) for hypothesis in hypotheses]
    rows = [(PEOPLE, detokenize(reference)) for reference in sequence.references]
    rows += [(name, story.sentences) for name, system in stories.items() for story in system]
    is_screen = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size((_WIDE, 24)).columns if is_screen else _WIDE
    return [_table(rows, width)]


def _records(
    args: argparse.Namespace,
    sequence: ImageSequence,
    stories: Mapping[str, Any],
    facts: Mapping[str, dict[str, Any]],
    margins: Mapping[str, Sequence[Any]],
) -> Iterator[str]:
    """Yield the JSON records of an image sequence: one per system.

    With ``--compare``, there is also one record per reference.

    Args:
        stories: Hypotheses of each system, best first.
        facts: Fields of each system about its checkpoint and options.
        margins: Ranked stories of each system; empty without ranking.
    """
    about: dict[str, Any] = {"item": sequence.index, "images": sequence.names}
    if args.compare:
        for reference in sequence.references:
            others = {"system": PEOPLE, "sentences": detokenize(reference)}
            yield json.dumps({"id": sequence.id, **about, **others}, ensure_ascii=False)
    for name, hypotheses in stories.items():
        system = {"system": name} if args.compare else {}
        best, words = hypotheses[0], hypotheses[0].line.split()
        others = {"sentences": best.sentences, "words": len(words) - words.count(SEPARATOR)}
        fields = {**about, **system, **others, **facts[name]}
        ranks = rank_fields(args, hypotheses)
        for rank, story in zip(ranks, margins.get(name, ())):
            rank["images_margin"] = round(story.margin, 4)
            rank["images_rank"] = story.prompt_rank
        yield json_line(sequence.id, hypotheses, fields, as_line=True, each=ranks)


def _describe_run(systems: Mapping[str, Any], configs: Sequence[Any]) -> list[tuple[str, str]]:
    """Return (name, value) rows for the page: command, options, checkpoints and extractor.

    The options are those of the first system.
    """
    options = {k: v for k, v in configs[0].to_dict().items() if v is not None}
    rows = [
        ("command", shlex.join(["fairseq-mm", *sys.argv[1:]])),
        ("generation", ", ".join(f"{name} {value}" for name, value in options.items())),
    ]
    for name, model in systems.items():
        files = [f"{file}, sha256 {compute_digests([file])[:16]}" for file in model.files]
        rows.append((name, ", ".join(files)))
    identities = [model.processor.reader.identity for model in systems.values()]
    extractors = {str(identity.get("extractor", "not recorded")) for identity in identities}
    return [*rows, ("extractor", ", ".join(sorted(extractors)))]


def detokenize(sentences: Sequence[Sequence[str]]) -> list[str]:
    """Return sentences, which are lists of words, as texts."""
    return [detokenize_story(list(words)).strip() for words in sentences]


def _table(rows: Sequence[tuple[str, Sequence[str]]], width: int) -> str:
    """Format a table with a row per story and a column per sentence (Li et al. 2020, Figure 6).

    ``rows`` has the name of the system, and the sentences, of each story.
    """
    first = max(len(name) for name, _ in rows)
    count = max(len(sentences) for _, sentences in rows)
    column = max(_NARROWEST, (width - first) // count - 2)
    blocks = []
    for name, sentences in rows:
        cells = [[name]] + [textwrap.wrap(sentence, column) or [""] for sentence in sentences]
        height = max(map(len, cells))
        lines = []
        for line in range(height):
            words = [cell[line] if line < len(cell) else "" for cell in cells]
            padded = [words[0].ljust(first)] + [word.ljust(column) for word in words[1:]]
            lines.append("  ".join(padded).rstrip())
        blocks.append("\n".join(lines))
    rule = "-" * (first + count * (column + 2))
    return f"\n{rule}\n".join(blocks)


class Page:
    """HTML page of image sequences and their stories.

    Args:
        folders: Folders in which the images of a feature store are searched; empty to show no
            images.

    Attributes:
        num_absent: Number of images, among those added so far, that are in no folder.
    """

    def __init__(self, folders: list[str]) -> None:
        from fairseq_mm.report.thumbnails import Thumbnails

        self.folders = folders
        self.thumbnails = Thumbnails(folders, SIDE) if folders else None
        self._strips: list[Strip] = []
        self._uris: dict[str, str] = {}
        self.num_absent = 0

    def add(self, sequence: ImageSequence, stories: dict[str, Any]) -> None:
        """Add an image sequence with its stories.

        Args:
            stories: Dict from the name of a system to its hypotheses.
        """
        from fairseq_mm.report.visual_story_sections import StoryRow, Strip

        has_names = len(stories) > 1 or bool(sequence.references)
        rows = [
            StoryRow(PEOPLE, detokenize(reference), by_people=True)
            for reference in sequence.references
        ]
        for name, hypotheses in stories.items():
            for hypothesis in hypotheses:
                note = f"{hypothesis.score:.3f} a word" if has_names else ""
                rows.append(StoryRow(name if has_names else "", hypothesis.sentences, note))
        title = "" if "\t" in sequence.id else sequence.id
        uris = [self._uri(sequence, place) for place in range(len(sequence.keys))]
        self._strips.append(Strip(title, [Path(x).name for x in sequence.names], uris, rows))

    def _uri(self, sequence: ImageSequence, place: int) -> Optional[str]:
        from fairseq_mm.report.thumbnails import thumbnail_uri

        key = sequence.keys[place]
        if key is None:
            return None
        if key not in self._uris:
            image = sequence.images[place] if sequence.images else None
            if image is not None:
                self._uris[key] = thumbnail_uri(image, SIDE)
            elif self.thumbnails is not None and key in self.thumbnails:
                self._uris[key] = self.thumbnails.data_uri(key)
            else:
                self.num_absent += 1
                return None
        return self._uris[key]

    def write(self, path: str, subtitle: str, card: Sequence[tuple[str, str]]) -> None:
        """Write the page.

        Args:
            card: Rows (name, value) that describe the run.
        """
        from fairseq_mm.report.html_page import render_page, section, write_page
        from fairseq_mm.report.visual_story_sections import stories_section

        if self.folders and not self._uris:
            raise UserError(f"--images {' '.join(self.folders)}: has none of the stories' images.")
        number = len(self._strips)
        title = "A story of five images" if number == 1 else f"{number:,} visual stories"
        sections = [stories_section(self._strips), section("", "run.html", rows=card)]
        write_page(Path(path), render_page(title, sections, subtitle=subtitle))
