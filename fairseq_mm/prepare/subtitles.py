"""Reads transcript files: text, or subtitles (``.srt``, ``.vtt``) without times and marks.

In automatic captions of YouTube, each line is shown again as the upper line of the next cue (the
text that is shown at one time). The file therefore has every word two or three times. If at least
half of the cues begin with the end of the previous cue, these repetitions are removed. In other
files, a line that occurs twice was spoken twice, and stays.
"""

import html
import re
from pathlib import Path
from typing import Optional

from fairseq_mm.data.input_files import read_bytes, unreadable
from fairseq_mm.errors import UserError

SUBTITLE_SUFFIXES = (".srt", ".vtt")
TRANSCRIPT_SUFFIXES = (*SUBTITLE_SUFFIXES, ".txt")

_TIME = r"(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d{1,3})?"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s|$)")
# <i>, </font>, <c.colorE5E5E5>, <v Ann>, <00:00:01.320>; but not 3 < 4 or <3
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<\d+:\d[\d:.]*>")
_OVERRIDE = re.compile(r"\{\\[^{}]*\}")  # {\an8}
_ESCAPED_BREAK = re.compile(r"\\[Nnh]")
# byte order marks and direction marks inside a text would become parts of its words
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_BLOCKS = ("NOTE", "STYLE", "REGION")  # blocks of WebVTT whose lines are not spoken
# two neighbouring cues may share up to two words by chance: "and then", "you know"
_CHANCE = 2

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_transcript(path: Path) -> str:
    """Read the spoken text from a file.

    A file ``.srt`` or ``.vtt`` is read as subtitles; the text of a file ``.txt`` or without suffix
    is not changed.
    """
    if path.suffix.lower() not in (*TRANSCRIPT_SUFFIXES, ""):
        endings = ", ".join(TRANSCRIPT_SUFFIXES)
        raise UserError(f"{path}: a transcript must be a file {endings}; convert it first.")
    return decode_transcript(read_bytes(path), str(path))


def decode_transcript(content: bytes, name: str) -> str:
    """Return the spoken text in the content of a file, see :func:`read_transcript`.

    ``name`` is the path or name of the file. Its suffix says whether the content is subtitles.
    """
    marks = [mark for mark in _BYTE_ORDER_MARKS if content.startswith(mark)]
    try:
        text = content.decode(_BYTE_ORDER_MARKS[marks[0]] if marks else "utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(name, error) from None
    if Path(name).suffix.lower() not in SUBTITLE_SUFFIXES:
        return text
    transcript = subtitles_to_text(text)
    if transcript is None:
        raise UserError(
            f"{name}: has no subtitle; a line such as 00:00:01,000 --> 00:00:02,500 goes before "
            "the text of each."
        )
    return transcript


def subtitles_to_text(text: str) -> Optional[str]:
    """Return the words of ``.srt`` or ``.vtt`` subtitles on one line; None without subtitles."""
    cues = [
        [words for words in map(_split_words, lines) if words]
        for lines in _parse_cues(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    ]
    if not cues:
        return None
    cues = [cue for cue in cues if cue]
    repeated = [_repeated_words(before, cue) for before, cue in zip(cues, cues[1:])]
    # a file in which people sometimes repeat themselves has few such cues
    num_repeating = sum(count > 0 for count in repeated)
    if num_repeating < 2 or 2 * num_repeating < len(repeated):
        repeated = [0] * len(repeated)
    words = []
    for cue, count in zip(cues, [0, *repeated]):
        words += [word for line in cue for word in line][count:]
    return " ".join(words)


def _parse_cues(lines: list[str]) -> list[list[str]]:
    """Return the text lines of each cue (a text with its time); skip lines before the first cue."""
    is_webvtt = lines[0].lstrip("\ufeff").startswith("WEBVTT")
    cues: list[list[str]] = []
    in_block = False
    for i, line in enumerate(lines):
        after_blank = i == 0 or not lines[i - 1]
        if _TIMING.match(line):
            # the number or name of a cue stands above its time, after the text of the cue before
            if cues and _is_name(cues[-1], is_webvtt):
                cues[-1].pop()
            cues.append([])
            in_block = False
        elif in_block or (
            is_webvtt and after_blank and line.split(" ")[0].split("\t")[0] in _BLOCKS
        ):
            in_block = bool(line)
        elif cues:
            cues[-1].append(line)
    return cues


def _is_name(lines: list[str], is_webvtt: bool) -> bool:
    """Return True if the last of the lines between two times is the number or name of a cue."""
    if not lines or not lines[-1].strip():
        return False
    after_blank = len(lines) > 1 and not lines[-2]
    return lines[-1].strip().isdecimal() or (is_webvtt and after_blank)


def _split_words(line: str) -> list[str]:
    line = _TAG.sub("", _OVERRIDE.sub("", line))
    line = html.unescape(_ESCAPED_BREAK.sub(" ", line))
    return _INVISIBLE.sub("", line).split()


def _repeated_words(before: list[list[str]], cue: list[list[str]]) -> int:
    """Count the words at the beginning of a cue that repeat the end of the previous cue: whole
    lines of one of the two cues, or more words than two cues share by chance."""
    tail, head = ([word for line in lines for word in line] for lines in (before, cue))
    whole = {sum(map(len, before[i:])) for i in range(len(before))}
    whole |= {sum(map(len, cue[: i + 1])) for i in range(len(cue))}
    for count in range(min(len(tail), len(head)), 0, -1):
        if (count in whole or count > _CHANCE) and tail[-count:] == head[:count]:
            return count
    return 0
