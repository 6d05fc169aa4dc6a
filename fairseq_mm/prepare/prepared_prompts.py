"""Writes prompts and stories as a data folder, in fairseq's layout of pairs.

``text/<split>.wp_source`` and ``.wp_target`` (tokenised; stories cut), ``prepare.json`` (what was
read and how), by ``fairseq-preprocess`` ``dict.wp_source.txt``, ``dict.wp_target.txt`` and
``<split>.wp_source-wp_target.{wp_source,wp_target}.{bin,idx}``, and for language models the folders
``prompts`` and ``stories``: the same text and dictionaries in the layout of ``--only-source``.
``<split>.ids`` has the ids of one's own data, line by line.
"""

import logging
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional

from tqdm import tqdm

from fairseq_mm.data.caption_text import RESERVED_TOKENS, reserved_token
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.story_split import LANGUAGE_MODELS, SOURCE, TARGET
from fairseq_mm.data.story_text import NEWLINE
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.prepared import (
    check_output,
    count_unknown,
    partial_folder,
    read_dictionary_words,
    run_preprocess,
    write_report,
)
from fairseq_mm.prepare.prompts import StoryCorpus, StoryPair

logger = logging.getLogger(__name__)


PROMPT_FILES = frozenset(
    [f"dict.{side}.txt" for side in (SOURCE, TARGET)]
    + [f"{folder}/dict.txt" for folder in LANGUAGE_MODELS]
    + [f"{split}.ids" for split in SPLITS]
    + [f"text/{split}.{side}" for split in SPLITS for side in (SOURCE, TARGET)]
    + [
        f"{name}.{end}"
        for split in SPLITS
        for end in ("bin", "idx")
        for name in (
            f"{split}.{SOURCE}-{TARGET}.{SOURCE}",
            f"{split}.{SOURCE}-{TARGET}.{TARGET}",
            *(f"{folder}/{split}" for folder in LANGUAGE_MODELS),
        )
    ]
)


def preprocess_arguments(
    folder: Path,
    splits: list[str],
    *,
    thresholds: dict[str, int],
    dictionaries: dict[str, Optional[Path]],
    workers: int,
) -> list[str]:
    """Arguments of ``fairseq-preprocess`` for the pairs of a data folder.

    ``--padding-factor 1``: fairseq would fill the dictionaries up to a multiple of 8 with words
    that do not exist, and the published models' would not fit.

    Args:
        folder: the data folder, with ``text``.
        splits: those that it has.
        thresholds: side -> words that occur less often in train become unknown.
        dictionaries: side -> one that is taken instead.
        workers: processes.
    """
    arguments = ["--source-lang", SOURCE, "--target-lang", TARGET]
    for split in splits:
        arguments += [f"--{split}pref", str(folder / "text" / split)]
    arguments += ["--destdir", str(folder)]
    for side, short in ((SOURCE, "src"), (TARGET, "tgt")):
        if dictionaries[side] is not None:
            arguments += [f"--{short}dict", str(dictionaries[side])]
        else:
            arguments += [f"--threshold{short}", str(thresholds[side])]
    return [*arguments, "--padding-factor", "1", "--workers", str(workers)]


def language_model_arguments(
    folder: Path, splits: list[str], name: str, *, workers: int
) -> list[str]:
    """Arguments of ``fairseq-preprocess`` for one of the folders of a language model.

    Args:
        folder: the data folder, with ``text`` and dictionaries.
        splits: those that it has.
        name: ``prompts`` or ``stories``.
        workers: processes.
    """
    side = LANGUAGE_MODELS[name]
    arguments = ["--only-source"]
    for split in splits:
        arguments += [f"--{split}pref", str(folder / "text" / f"{split}.{side}")]
    arguments += ["--destdir", str(folder / name), "--srcdict", str(folder / f"dict.{side}.txt")]
    return [*arguments, "--padding-factor", "1", "--workers", str(workers)]


def write_prompt_folder(
    corpus: StoryCorpus,
    output: Path,
    *,
    tokenize: Callable[[str], list[str]],
    settings: dict[str, object],
    story_words: int = 1000,
    source_threshold: int = 10,
    target_threshold: int = 10,
    source_dictionary: Optional[Path] = None,
    target_dictionary: Optional[Path] = None,
    skip_empty: bool = False,
    split_symbols: bool = False,
    workers: int = 1,
    strict: bool = False,
    binarize: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``corpus`` as a data folder; an interrupted run leaves none.

    Args:
        corpus: pairs by split. Without training pairs both dictionaries must be given.
        output: the folder. Other files in it stay.
        tokenize: text -> words.
        settings: of the tokeniser, for ``prepare.json``.
        story_words: stories are cut to so many words; 0 leaves them whole.
        source_threshold: words that occur less often in the training prompts become unknown.
        target_threshold: the same for the training stories.
        source_dictionary: a ``dict.wp_source.txt`` to take instead of making one.
        target_dictionary: the same for stories.
        skip_empty: leave out pairs of which a half has no word (counted) instead of refusing
            them.
        split_symbols: write fairseq's control symbols in the text as three words, as the release
            writes such marks, instead of refusing them.
        workers: processes of fairseq-preprocess; the result does not depend on it.
        strict: refuse dictionaries that do not have the published sizes.
        binarize: run fairseq-preprocess.
        overwrite: replace prepared data that stands there.

    Returns:
        The content of ``prepare.json``.

    Raises:
        UserError: if the folder has prepared data, a prompt or story has no word or holds a control
            symbol, or no word is frequent enough.
    """
    check_output(output, PROMPT_FILES, kind="prompts", overwrite=overwrite)
    thresholds = {SOURCE: source_threshold, TARGET: target_threshold}
    dictionaries = {SOURCE: source_dictionary, TARGET: target_dictionary}
    splits = list(corpus.num_pairs)
    if "train" not in splits and None in dictionaries.values():
        raise UserError(
            f"{', '.join(corpus.files)}: no training pairs; without them --source-dictionary and "
            "--target-dictionary must give the words."
        )
    with partial_folder(output, PROMPT_FILES, kind="prompts", overwrite=overwrite) as partial:
        counts = _write_text(
            corpus,
            partial,
            tokenize=tokenize,
            story_words=story_words,
            skip_empty=skip_empty,
            split_symbols=split_symbols,
        )
        command: dict[str, Any] = {
            "thresholds": thresholds,
            "dictionaries": dictionaries,
            "workers": workers,
        }
        report: dict[str, Any] = {
            "data_set": corpus.name,
            "split": corpus.split,
            "files": corpus.files,
            "options": {
                **settings,
                "story_words": story_words,
                "source_threshold": None if source_dictionary else source_threshold,
                "target_threshold": None if target_dictionary else target_threshold,
                "source_dictionary": str(source_dictionary) if source_dictionary else None,
                "target_dictionary": str(target_dictionary) if target_dictionary else None,
                "skip_empty": skip_empty,
                "split_symbols": split_symbols,
            },
            "counts": counts,
            "deviations": corpus.deviations(),
            "commands": [
                shlex.join(["fairseq-preprocess", *arguments])
                for arguments in (
                    preprocess_arguments(output, splits, **command),
                    *(
                        language_model_arguments(output, splits, name, workers=workers)
                        for name in LANGUAGE_MODELS
                    ),
                )
            ],
        }
        if binarize:
            words = sum(c["prompt_words"] + c["story_words"] for c in counts.values())
            if words > _WORDS_A_MINUTE:
                minutes = round(words / _WORDS_A_MINUTE)
                logger.info(
                    f"binarising {words:,} words, about {minutes} minutes of one core's time"
                )
            run_preprocess(preprocess_arguments(partial, splits, **command))
            _count_known(report, partial, thresholds)
            deviations = corpus.vocabulary_deviations(
                report["options"],
                {name: words + 4 for name, words in report["dictionary_words"].items()},
            )
            if deviations and strict:
                raise UserError(f"--strict: {'; '.join(deviations)}.")
            report["deviations"] += deviations
            _write_language_models(partial, splits)
        return write_report(partial, "prompts", report)


# fairseq-preprocess, which says nothing meanwhile, counts and binarises about as many in a minute
_WORDS_A_MINUTE = 20_000_000

_COUNTS = (
    "pairs",
    "prompts",  # different ones
    "prompt_words",
    "story_words",
    "stories_cut",
    "words_cut",
    "empty_pairs_skipped",
    "unpaired_lines",
    "duplicate_pairs",
    "symbols_split",
)


class _SplitWriter:
    """The files of a split, and its counts."""

    def __init__(self, folder: Path, split: str, *, ids: bool, files: ExitStack) -> None:
        def create(name: str):
            return files.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n"))

        self.prompts = create(f"text/{split}.{SOURCE}")
        self.stories = create(f"text/{split}.{TARGET}")
        self.ids = create(f"{split}.ids") if ids else None
        self.seen_prompts: set[int] = set()
        self.seen_pairs: set[int] = set()
        self.counts = dict.fromkeys(_COUNTS, 0)

    def write(self, pair: StoryPair, prompt: list[str], story: list[str]) -> None:
        source, target = " ".join(prompt), " ".join(story)
        self.prompts.write(source + "\n")
        self.stories.write(target + "\n")
        if self.ids is not None:
            self.ids.write(f"{pair.id}\n")
        self.counts["pairs"] += 1
        self.counts["prompt_words"] += len(prompt)
        self.counts["story_words"] += len(story)
        # hashes: the texts themselves would not fit into a laptop's memory
        self.seen_prompts.add(hash(source))
        both = hash((source, target))
        self.counts["duplicate_pairs"] += both in self.seen_pairs
        self.seen_pairs.add(both)


def _write_text(
    corpus: StoryCorpus,
    folder: Path,
    *,
    tokenize: Callable[[str], list[str]],
    story_words: int,
    skip_empty: bool,
    split_symbols: bool,
) -> dict[str, dict[str, int]]:
    """Writes the text of all splits; returns their counts."""
    (folder / "text").mkdir()
    with ExitStack() as files:
        writers = {
            split: _SplitWriter(folder, split, ids=corpus.has_ids, files=files)
            for split in corpus.num_pairs
        }
        total = sum(corpus.num_pairs.values())
        # on a terminal only
        for pair in tqdm(corpus.read(), desc="text", total=total, unit=" pairs", disable=None):
            writer = writers[pair.split]
            halves = []
            for half, text, where in zip(
                ("prompt", "story"), (pair.prompt, pair.story), pair.where
            ):
                words = _checked_words(
                    tokenize(text),
                    half,
                    where,
                    skip_empty=skip_empty,
                    split_symbols=split_symbols,
                )
                symbols = sum(map(words.count, RESERVED_TOKENS))
                if symbols:
                    writer.counts["symbols_split"] += symbols
                    words = [part for word in words for part in _split_symbol(word)]
                halves.append(words)
            prompt, story = halves
            if not prompt or not story:
                writer.counts["empty_pairs_skipped"] += 1
                continue
            if 0 < story_words < len(story):
                writer.counts["stories_cut"] += 1
                writer.counts["words_cut"] += len(story) - story_words
                story = story[:story_words]
            writer.write(pair, prompt, story)
    for split, writer in writers.items():
        if not writer.counts["pairs"]:
            raise UserError(f"{', '.join(corpus.files)}: no pairs for {split}.")
        writer.counts["prompts"] = len(writer.seen_prompts)
        writer.counts["unpaired_lines"] = corpus.unpaired.get(split, 0)
        if split != "train" and "train" in writers:
            seen = writer.seen_prompts & writers["train"].seen_prompts
            writer.counts["prompts_in_train"] = len(seen)
    return {split: writer.counts for split, writer in writers.items()}


def _checked_words(
    words: list[str], half: str, where: str, *, skip_empty: bool, split_symbols: bool
) -> list[str]:
    """The words of a prompt or story, none where it has but line breaks."""
    if all(word == NEWLINE for word in words):
        if not skip_empty:
            raise UserError(f"{where}: the {half} has no word; --skip-empty leaves such pairs out.")
        return []
    symbol = reserved_token(words)
    if symbol is not None and not split_symbols:
        raise UserError(
            f"{where}: the {half} holds fairseq's control symbol {symbol}, which would be read as "
            f"such; --split-symbols writes it as {' '.join(_split_symbol(symbol))} instead."
        )
    return words


def _split_symbol(word: str) -> list[str]:
    """``</s>`` -> ``<``, ``/s``, ``>``; any other word as it is."""
    return ["<", word[1:-1], ">"] if word in RESERVED_TOKENS else [word]


def _count_known(report: dict[str, Any], folder: Path, thresholds: dict[str, int]) -> None:
    report["dictionary_words"] = {}
    for half, side in (("prompt", SOURCE), ("story", TARGET)):
        name = f"dict.{side}.txt"
        known = read_dictionary_words(folder / name)
        if not known:
            plural = {"prompt": "prompts", "story": "stories"}[half]
            raise UserError(
                f"no word occurs {thresholds[side]} times or more in the training {plural}; give "
                f"a smaller --{side.replace('wp_', '')}-threshold."
            )
        report["dictionary_words"][name] = len(known)
        for split, counts in report["counts"].items():
            counts[f"unknown_{half}_words"] = count_unknown(
                folder / "text" / f"{split}.{side}", known
            )


def _write_language_models(folder: Path, splits: list[str]) -> None:
    """What :func:`language_model_arguments` would give: fairseq binarises both layouts alike.

    Copies, not links: fairseq-preprocess, run again in one of the folders, would write into the
    file that a link shares with the pairs.
    """
    for name, side in LANGUAGE_MODELS.items():
        (folder / name).mkdir()
        shutil.copyfile(folder / f"dict.{side}.txt", folder / name / "dict.txt")
        for split in splits:
            for end in ("bin", "idx"):
                pair = f"{split}.{SOURCE}-{TARGET}.{side}.{end}"
                shutil.copyfile(folder / pair, folder / name / f"{split}.{end}")
