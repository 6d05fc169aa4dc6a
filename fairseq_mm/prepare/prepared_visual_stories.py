"""Writes visual stories as a data folder: everything that a task needs beside the features.

By line of a split: ``text/<split>.txt`` (tokenised, one story a line: five sentences joined by
``<sent>``), ``<split>.visual_ids`` (the five images, by tabs), ``<split>.stories.jsonl`` (story
and album). By photo sequence: ``<split>.references.jsonl`` (its stories, raw) and
``<split>.album_references.jsonl`` (its album's). ``missing_images.txt``, where there are any,
``prepare.json`` (what was read and how), and ``dict.txt``, ``<split>.bin``, ``<split>.idx`` by
``fairseq-preprocess``.
"""

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from tqdm import tqdm

from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.missing_images import MISSING_IMAGES
from fairseq_mm.data.visual_story_text import NUM_IMAGES, SEPARATOR, join_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.prepared import (
    check_output,
    count_unknown,
    partial_folder,
    read_dictionary_words,
    run_preprocess,
    write_report,
)
from fairseq_mm.prepare.prepared_captions import preprocess_arguments
from fairseq_mm.prepare.visual_stories import VisualStory, VisualStoryCorpus

KIND = "visual stories"
IMAGE_STORY_FILES = frozenset(
    ["dict.txt", MISSING_IMAGES]
    + [f"text/{split}.txt" for split in SPLITS]
    + [
        f"{split}.{end}"
        for split in SPLITS
        for end in (
            "bin",
            "idx",
            "visual_ids",
            "references.jsonl",
            "album_references.jsonl",
            "stories.jsonl",
        )
    ]
)


def write_visual_story_folder(
    corpus: VisualStoryCorpus,
    output: Path,
    *,
    tokenize: Callable[[str], list[str]],
    settings: dict[str, object],
    threshold: int = 10,
    dictionary: Optional[Path] = None,
    skip_empty: bool = False,
    binarize: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``corpus`` as a data folder; an interrupted run leaves none.

    Args:
        corpus: stories by split. Without training stories a dictionary must be given.
        output: the folder. Other files in it, such as ``features.h5``, stay.
        tokenize: sentence -> tokens.
        settings: of the tokeniser, for ``prepare.json``.
        threshold: words that occur less often in train become unknown; 10 in the paper's code.
        dictionary: a ``dict.txt`` to take instead of making one.
        skip_empty: leave out, and list, stories with a sentence that has no word instead of
            refusing them; they stay references.
        binarize: run fairseq-preprocess.
        overwrite: replace prepared data that stands there.

    Returns:
        The content of ``prepare.json``.

    Raises:
        UserError: if the folder has prepared data, a sentence has no word or holds a control symbol
            or the separator, or the dictionary would lack the separator or all words.
    """
    check_output(output, IMAGE_STORY_FILES, kind=KIND, overwrite=overwrite)
    if dictionary is not None and SEPARATOR not in read_dictionary_words(dictionary):
        raise UserError(
            f"--dictionary {dictionary}: lacks {SEPARATOR}, which stands between a story's "
            "sentences."
        )
    if dictionary is None and "train" not in corpus.stories:
        raise UserError(
            f"{', '.join(corpus.files)}: no training stories; without them --dictionary must give "
            "the words."
        )
    with partial_folder(output, IMAGE_STORY_FILES, kind=KIND, overwrite=overwrite) as partial:
        (partial / "text").mkdir()
        counts: dict[str, dict[str, int]] = {}
        exceptions = dict(corpus.exceptions)
        masked: dict[str, None] = {}
        for split, stories in corpus.stories.items():
            written = _write_split(
                partial,
                split,
                stories,
                further=corpus.references_only.get(split, []),
                tokenize=tokenize,
                skip_empty=skip_empty,
            )
            counts[split] = written.counts
            if written.left_out:
                exceptions[f"{split} stories left out, a sentence has no word"] = written.left_out
            if not written.images:
                raise UserError(f"{', '.join(corpus.files)}: no stories are left for {split}.")
            if split == "train" and dictionary is None:
                _check_frequencies(written.frequencies, counts[split]["stories"], threshold)
            masked.update((image, None) for image in written.images if image in corpus.missing)
        if masked:
            _write_lines(partial / MISSING_IMAGES, list(masked))
        command: dict[str, Any] = {"threshold": threshold, "dictionary": dictionary}
        splits = list(counts)
        if binarize:
            run_preprocess(preprocess_arguments(partial, splits, **command))
        report: dict[str, Any] = {
            "data_set": corpus.name,
            "split": corpus.split,
            "files": corpus.files,
            "options": {
                **settings,
                "threshold": None if dictionary else threshold,
                "dictionary": str(dictionary) if dictionary else None,
                "skip_empty": skip_empty,
            },
            "counts": counts,
            "deviations": corpus.deviations(),
            "exceptions": exceptions,
            "missing": corpus.missing,
            "masked": list(masked),
            "notes": corpus.notes,
            "command": shlex.join(
                ["fairseq-preprocess", *preprocess_arguments(output, splits, **command)]
            ),
        }
        if binarize:
            known = read_dictionary_words(partial / "dict.txt")
            report["dictionary_words"] = len(known)
            for split in splits:
                path = partial / "text" / f"{split}.txt"
                counts[split]["unknown"] = count_unknown(path, known)
        return write_report(partial, KIND, report)


class _Written(NamedTuple):
    """What was written of a split.

    Attributes:
        counts: for ``prepare.json``.
        frequencies: word -> how often it occurs.
        images: of the stories, each once.
        left_out: ids of stories.
    """

    counts: dict[str, int]
    frequencies: "Counter[str]"
    images: list[str]
    left_out: list[str]


def _check_frequencies(words: "Counter[str]", stories: int, threshold: int) -> None:
    """fairseq-preprocess would leave the separator out as it leaves out any rare word."""
    separators = stories * (NUM_IMAGES - 1)
    if min(words.most_common(1)[0][1], separators) < threshold:
        raise UserError(
            f"no word or not even {SEPARATOR} occurs {threshold} times or more in the {stories:,} "
            "training stories; give a smaller --threshold."
        )


def _write_split(
    folder: Path,
    split: str,
    stories: list[VisualStory],
    *,
    further: list[VisualStory],
    tokenize: Callable[[str], list[str]],
    skip_empty: bool,
) -> _Written:
    """Writes a split's text, ids and references.

    Args:
        folder: data folder.
        split: name.
        stories: of the split.
        further: stories that are references alone.
        tokenize: sentence -> tokens.
        skip_empty: leave out stories with a sentence that has no word.
    """
    frequencies: Counter[str] = Counter()
    text: list[str] = []
    kept: list[VisualStory] = []
    left_out: list[str] = []
    for story in tqdm(stories, desc=split, unit=" stories", disable=None):  # on a terminal only
        sentences = [_checked_words(tokenize, story, k) for k in range(len(story.sentences))]
        if not all(sentences):
            if not skip_empty:
                k = sentences.index([])
                raise UserError(
                    f"{story.where}: sentence {k + 1} of story {story.id} has no word: "
                    f"{story.sentences[k]!r}; --skip-empty leaves such stories out."
                )
            left_out.append(story.id)
            continue
        for words in sentences:
            frequencies.update(words)
        text.append(join_sentences([" ".join(words) for words in sentences]))
        kept.append(story)
    ids = ["\t".join(story.images) for story in kept]
    _write_lines(folder / "text" / f"{split}.txt", text)
    _write_lines(folder / f"{split}.visual_ids", ids)
    _write_lines(
        folder / f"{split}.stories.jsonl",
        [_json({"story_id": story.id, "album_id": story.album}) for story in kept],
    )
    album_of: dict[str, str] = {}
    for key, story in zip(ids, kept):
        album_of.setdefault(key, story.album)
    _write_references(folder, split, album_of, [*stories, *further])
    images = list(dict.fromkeys(image for story in kept for image in story.images))
    counts = {
        "stories": len(kept),
        "albums": len({story.album for story in kept}),
        "photo_sequences": len(album_of),
        "images": len(images),
        "words": sum(frequencies.values()),
    }
    return _Written(counts, frequencies, images, left_out)


def _checked_words(tokenize: Callable[[str], list[str]], story: VisualStory, k: int) -> list[str]:
    """The words of a story's sentence ``k``, counted from 0."""
    words = tokenize(story.sentences[k])
    symbol = reserved_token(words) or (SEPARATOR if SEPARATOR in words else None)
    if symbol is not None:
        what = "the separator of sentences" if symbol == SEPARATOR else "fairseq's control symbol"
        raise UserError(
            f"{story.where}: sentence {k + 1} of story {story.id} holds {what} {symbol}, which "
            "would be read as such."
        )
    return words


def _write_references(
    folder: Path, split: str, album_of: dict[str, str], stories: list[VisualStory]
) -> None:
    """
    Args:
        folder: data folder.
        split: name.
        album_of: line of visual_ids -> album.
        stories: all that were told, those that are left out too.
    """
    by_sequence: dict[str, list[str]] = {}
    by_album: dict[str, list[str]] = {}
    for story in stories:
        told = " ".join(filter(None, map(str.strip, story.sentences)))
        if told:
            by_sequence.setdefault("\t".join(story.images), []).append(told)
            by_album.setdefault(story.album, []).append(told)
    _write_lines(
        folder / f"{split}.references.jsonl",
        [_json({"id": key, "references": by_sequence[key]}) for key in album_of],
    )
    _write_lines(
        folder / f"{split}.album_references.jsonl",
        [
            _json({"id": key, "album": album, "references": by_album[album]})
            for key, album in album_of.items()
        ],
    )


def _json(entry: dict[str, object]) -> str:
    return json.dumps(entry, ensure_ascii=False)


def _write_lines(path: Path, lines: list[str]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
