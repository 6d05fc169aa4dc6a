"""Writes transcripts and summaries of videos as a data folder: all but the features.

By line of a split: ``text/<split>.tran`` and ``.desc`` (tokens), ``<split>.visual_ids`` (the
video), ``<split>.references.jsonl`` and ``<split>.transcripts.jsonl`` (both texts as they were),
with numbered unknowns ``<split>.unknowns.jsonl`` (the words that ``<unk-0>``, ``<unk-1>``, ... of
the line stand for). ``subwords.json`` and the files that it takes (how text became tokens),
``prepare.json`` (what was read and how), and by ``fairseq-preprocess`` ``dict.tran.txt``,
``dict.desc.txt`` (the same words) and ``<split>.tran-desc.{tran,desc}.{bin,idx}``.
"""

import json
import shlex
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Optional

from tqdm import tqdm

from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.input_files import SPLITS
from fairseq_mm.data.numbered_unknowns import number_unknowns, number_with, numbered_unknown
from fairseq_mm.data.subwords import SUBWORD_FILES, Subwords
from fairseq_mm.data.transcript_text import NOT_AVAILABLE, SOURCE, TARGET, is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.prepared import (
    check_output,
    count_unknown,
    partial_folder,
    read_dictionary_words,
    run_preprocess,
    write_report,
)
from fairseq_mm.prepare.videos_file import Video, VideoCorpus

KIND = "videos"
SIDES = (SOURCE, TARGET)
# what the paper cuts texts to, </s> included
MAX_TOKENS = {SOURCE: 512, TARGET: 64}

VIDEO_FILES = (
    SUBWORD_FILES
    | {f"dict.{side}.txt" for side in SIDES}
    | {f"text/{split}.{side}" for split in SPLITS for side in SIDES}
    | {
        f"{split}.{SOURCE}-{TARGET}.{side}.{end}"
        for split in SPLITS
        for side in SIDES
        for end in ("bin", "idx")
    }
    | {
        f"{split}.{end}"
        for split in SPLITS
        for end in ("visual_ids", "references.jsonl", "transcripts.jsonl", "unknowns.jsonl")
    }
)


def preprocess_arguments(
    folder: Path,
    splits: list[str],
    *,
    threshold: int,
    max_words: int,
    dictionary: Optional[Path],
    workers: int,
) -> list[str]:
    """Arguments of ``fairseq-preprocess`` for the pairs of a data folder.

    ``--padding-factor 1``: fairseq would fill the dictionary up to a multiple of 8 with words that
    do not exist, and a pretrained model's embeddings would not fit.

    Args:
        folder: the data folder, with ``text``.
        splits: those that it has.
        threshold: tokens that occur less often in train become unknown.
        max_words: size of the dictionary without fairseq's symbols; 0 for any.
        dictionary: one that is taken instead.
        workers: processes.
    """
    arguments = ["--source-lang", SOURCE, "--target-lang", TARGET, "--joined-dictionary"]
    for split in splits:
        arguments += [f"--{split}pref", str(folder / "text" / split)]
    arguments += ["--destdir", str(folder)]
    if dictionary is not None:
        arguments += ["--srcdict", str(dictionary)]
    else:
        arguments += ["--thresholdsrc", str(threshold)]
        if max_words:
            arguments += ["--nwordssrc", str(max_words + 4)]  # fairseq counts its symbols
    return [*arguments, "--padding-factor", "1", "--workers", str(workers)]


def write_video_folder(
    corpus: VideoCorpus,
    output: Path,
    *,
    tokenize: Callable[[str], str],
    subwords: Subwords,
    settings: dict[str, object],
    threshold: int = 1,
    max_words: int = 0,
    dictionary: Optional[Path] = None,
    skip_empty: bool = False,
    workers: int = 1,
    binarize: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``corpus`` as a data folder; an interrupted run leaves none.

    Args:
        corpus: videos by split. Without training videos a dictionary must be given.
        output: the folder. Other files in it, such as ``features.h5``, stay.
        tokenize: text -> the text that ``subwords`` encode.
        subwords: text -> tokens; with their number of numbered unknowns.
        settings: further ones for ``prepare.json``.
        threshold: tokens that occur less often in the training text become unknown.
        max_words: the dictionary's most frequent words that stay; 0 for all.
        dictionary: a ``dict.txt`` to take for both sides instead of making one.
        skip_empty: leave out, and list, videos whose transcript or summary has no word instead of
            refusing them.
        workers: processes of fairseq-preprocess; the result does not depend on it.
        binarize: run fairseq-preprocess.
        overwrite: replace prepared data that stands there.

    Returns:
        The content of ``prepare.json``.

    Raises:
        UserError: if the folder has prepared data, a text has no word or holds a control symbol,
            or the dictionary does not fit.
    """
    check_output(output, VIDEO_FILES, kind=KIND, overwrite=overwrite)
    known = None if dictionary is None else read_dictionary_words(dictionary)
    _check_numbered(known, subwords.numbered_unknowns, dictionary)
    if known is None and "train" not in corpus.videos:
        raise UserError(
            f"{', '.join(corpus.files)}: no training videos; without them --dictionary must give "
            "the words."
        )
    with partial_folder(output, VIDEO_FILES, kind=KIND, overwrite=overwrite) as partial:
        (partial / "text").mkdir()
        counts: dict[str, dict[str, int]] = {}
        exceptions = dict(corpus.exceptions)
        for split, videos in corpus.videos.items():
            counts[split], left_out = _write_split(
                partial, split, videos, lambda text: subwords.encode(tokenize(text)), skip_empty
            )
            if left_out:
                exceptions[f"{split} videos left out, a text has no word"] = left_out
            if not counts[split]["videos"]:
                raise UserError(f"{', '.join(corpus.files)}: no videos are left for {split}.")
        subwords.save(partial)
        splits = list(counts)
        command: dict[str, Any] = {
            "threshold": threshold,
            "max_words": max_words,
            "workers": workers,
        }
        made = dictionary
        if subwords.numbered_unknowns:
            made = Path(f"dict.{SOURCE}.txt")
            known = _write_numbered_dictionary(
                partial / made,
                partial / "text",
                dictionary,
                number=subwords.numbered_unknowns,
                threshold=threshold,
                max_words=max_words,
            )
            for split in splits:
                counts[split].update(
                    _number_unknowns(partial, split, known, subwords.numbered_unknowns)
                )

        def arguments_in(folder: Path) -> list[str]:
            # a dictionary of our own stands in the folder itself
            inside = folder / made if made is not None and made is not dictionary else made
            return preprocess_arguments(folder, splits, dictionary=inside, **command)

        report: dict[str, Any] = {
            "data_set": corpus.name,
            "split": corpus.split,
            "files": corpus.files,
            "options": {
                **settings,
                "subwords": subwords.kind,
                "subwords_fingerprint": subwords.fingerprint,
                "numbered_unknowns": subwords.numbered_unknowns,
                "threshold": None if dictionary else threshold,
                "max_words": None if dictionary else max_words,
                "dictionary": str(dictionary) if dictionary else None,
                "skip_empty": skip_empty,
            },
            "counts": counts,
            "deviations": corpus.deviations(),
            "exceptions": exceptions,
            "notes": corpus.notes,
            "command": shlex.join(["fairseq-preprocess", *arguments_in(output)]),
        }
        if binarize:
            run_preprocess(arguments_in(partial))
            known = read_dictionary_words(partial / f"dict.{SOURCE}.txt")
            if not known:
                raise UserError(
                    f"no token occurs {threshold} times or more in the training text; give a "
                    "smaller --threshold."
                )
            report["dictionary_words"] = len(known)
        if known is not None:
            _count_unknown(counts, partial / "text", known, dictionary, subwords)
        return write_report(partial, KIND, report)


def _check_numbered(known: Optional[set[str]], number: int, dictionary: Optional[Path]) -> None:
    """A given dictionary may have the symbols of numbered unknowns: all of them, then."""
    if known is None:
        return
    found = [numbered_unknown(k) for k in range(number + 1) if numbered_unknown(k) in known]
    expected = [numbered_unknown(k) for k in range(number)]
    if found and found != expected:
        raise UserError(
            f"--dictionary {dictionary}: has {found[-1]}, but --numbered-unknowns is {number}; "
            "give as many as the dictionary has."
        )


def _write_split(
    folder: Path,
    split: str,
    videos: list[Video],
    encode: Callable[[str], list[str]],
    skip_empty: bool,
) -> tuple[dict[str, int], list[str]]:
    """Writes a split's texts and ids.

    Returns:
        Counts for ``prepare.json``, and the videos that were left out.
    """
    counts = dict.fromkeys(
        (
            "videos",
            "transcripts_not_available",
            "transcript_tokens",
            "summary_tokens",
            "transcripts_cut",
            "summaries_cut",
        ),
        0,
    )
    left_out: list[str] = []
    with ExitStack() as files:

        def create(name: str) -> Any:
            return files.enter_context(open(folder / name, "w", encoding="utf-8", newline="\n"))

        text = {side: create(f"text/{split}.{side}") for side in SIDES}
        ids = create(f"{split}.visual_ids")
        references = create(f"{split}.references.jsonl")
        transcripts = create(f"{split}.transcripts.jsonl")
        for video in tqdm(videos, desc=split, unit=" videos", disable=None):  # on a terminal only
            tokens = {
                SOURCE: _checked_tokens(encode, video, "transcript", skip_empty),
                TARGET: _checked_tokens(encode, video, "summary", skip_empty),
            }
            if not all(tokens.values()):
                left_out.append(video.id)
                continue
            for side in SIDES:
                text[side].write(" ".join(tokens[side]) + "\n")
            ids.write(f"{video.id}\n")
            summary = " ".join(video.summary.split())
            references.write(_json({"id": video.id, "references": [summary]}))
            transcripts.write(_json({"id": video.id, "transcript": video.transcript}))
            counts["videos"] += 1
            counts["transcripts_not_available"] += is_not_available(video.transcript)
            counts["transcript_tokens"] += len(tokens[SOURCE])
            counts["summary_tokens"] += len(tokens[TARGET])
            counts["transcripts_cut"] += len(tokens[SOURCE]) >= MAX_TOKENS[SOURCE]
            counts["summaries_cut"] += len(tokens[TARGET]) >= MAX_TOKENS[TARGET]
    return counts, left_out


def _checked_tokens(
    encode: Callable[[str], list[str]], video: Video, name: str, skip_empty: bool
) -> list[str]:
    """
    Args:
        encode: text -> tokens.
        video: of the text.
        name: ``transcript`` or ``summary``.
        skip_empty: a text without any token is no error.
    """
    text, where = {
        "transcript": (video.transcript, video.where[0]),
        "summary": (video.summary, video.where[1]),
    }[name]
    tokens = encode(text)
    if not tokens and not skip_empty:
        instead = f', and one may read "{NOT_AVAILABLE}"' if name == "transcript" else ""
        raise UserError(
            f"{where}: the {name} of {video.id} has no word; --skip-empty leaves such videos out"
            f"{instead}."
        )
    symbol = reserved_token(tokens)
    if symbol is not None:
        raise UserError(
            f"{where}: the {name} of {video.id} holds fairseq's control symbol {symbol}, which "
            "would be read as such."
        )
    return tokens


def _write_numbered_dictionary(
    path: Path,
    text: Path,
    dictionary: Optional[Path],
    *,
    number: int,
    threshold: int,
    max_words: int,
) -> set[str]:
    """Writes train's words, as fairseq-preprocess would find them, or those of ``dictionary``, and
    behind them the symbols of numbered unknowns; returns all of them."""
    from fairseq.data import Dictionary

    if dictionary is not None:
        words = Dictionary.load(str(dictionary))
    else:
        words = Dictionary()
        frequencies: Counter[str] = Counter()
        for side in SIDES:
            with open(text / f"train.{side}", encoding="utf-8", newline="\n") as file:
                for line in file:
                    frequencies.update(line.split())
        for symbol in ("<unk>", *map(numbered_unknown, range(number))):
            frequencies.pop(symbol, None)  # no words, though the text has them
        for word, count in frequencies.items():
            words.add_symbol(word, n=count)
        limit = max_words + words.nspecial if max_words else -1
        words.finalize(threshold=threshold, nwords=limit, padding_factor=1)
    for k in range(number):
        words.add_symbol(numbered_unknown(k), n=0)
    words.save(str(path))
    return set(words.symbols[words.nspecial :])


def _number_unknowns(folder: Path, split: str, known: set[str], number: int) -> dict[str, int]:
    """Rewrites a split's text with numbered unknowns, and lists what they stand for."""
    counts = {"numbered_in_transcripts": 0, "numbered_in_summaries": 0}
    paths = [folder / "text" / f"{split}.{side}" for side in SIDES]
    texts = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in paths]
    with ExitStack() as files:
        source, target, listed = (
            files.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
            for path in (*paths, folder / f"{split}.unknowns.jsonl")
        )
        for transcript, summary in zip(*texts):
            words, unknowns = number_unknowns(transcript.split(), known, number)
            summary_words = number_with(summary.split(), known, unknowns)
            symbols = {numbered_unknown(k) for k in range(len(unknowns))}
            counts["numbered_in_transcripts"] += sum(word in symbols for word in words)
            counts["numbered_in_summaries"] += sum(word in symbols for word in summary_words)
            source.write(" ".join(words) + "\n")
            target.write(" ".join(summary_words) + "\n")
            listed.write(_json(unknowns))
    return counts


def _count_unknown(
    counts: dict[str, dict[str, int]],
    text: Path,
    known: set[str],
    dictionary: Optional[Path],
    subwords: Subwords,
) -> None:
    """
    Raises:
        UserError: if most of the tokens are not in a dictionary that was given.
    """
    for split in counts:
        for side, name in ((SOURCE, "transcript"), (TARGET, "summary")):
            unknown = count_unknown(text / f"{split}.{side}", known)
            counts[split][f"unknown_{name}_tokens"] = unknown
            total = counts[split][f"{name}_tokens"]
            if dictionary is not None and 2 * unknown > total:
                raise UserError(
                    f"--dictionary {dictionary}: {unknown:,} of {total:,} tokens of the {split} "
                    f"split's {name} texts are not in it; is it of other subwords than "
                    f"{subwords.kind}?"
                )


def _json(entry: object) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"
