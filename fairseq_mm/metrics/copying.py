"""Finds the longest run of words that each generated story shares with a training story.

Fan et al. 2018, section 7.1, report an "average longest common subsequence" of 8.9 words for 500
stories of 150 words. Only contiguous runs can be that short: a true subsequence, which may skip
words, is several times longer. Therefore the longest contiguous run is measured here.

All n-grams of a block of training text are hashed, and the hashes are compared with those of the
stories' n-grams. A hash is the difference of two values of a running sum, so that one pass over the
block serves every n. For each story, n is one word more than the longest run found so far. If
hashes are equal, the words themselves are compared, so the result is exact.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, Optional

import numpy as np

BLOCK_CHARACTERS = 1 << 22  # text that is read at once: about 0.8 M words
_FIRST_BLOCK = 1 << 13  # size of the first block; blocks grow, since early ones have most matches
_UNKNOWN, _LINE_END = 0, 1  # reserved numbers: words of generated stories begin at 2
_SEPARATOR = "\udcff"  # a lone surrogate: no UTF-8 text holds one
HASH_BITS = 64  # used bits of a hash; with fewer, more words are compared for the same result
_FILTER_BITS = 21
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


class CopiedRun(NamedTuple):
    """Longest run of words that a story shares with one training story."""

    length: int  # number of words; 0 if no word of the story occurs in the training text
    start: int  # index of the first word of the run in the generated story
    words: tuple[str, ...]  # words of the run
    file: Optional[str]  # training file with the run; None if ``length`` is 0
    line: int  # number, from 1, of one of the lines of ``file`` with the run; 0 if ``length`` is 0

    def to_dict(self) -> dict[str, object]:
        return {
            "copied_words": self.length,
            "copied": " ".join(self.words),
            "copied_from": f"{Path(self.file).name}:{self.line}" if self.file else None,
        }


class _Ngrams(NamedTuple):
    """K n-grams, sorted by hash, from the generated stories whose longest shared run so far has n -
    1 words."""

    hashes: np.ndarray  # [K] uint64
    places: np.ndarray  # [K], index into the words of all stories
    stories: np.ndarray  # [K]
    present: np.ndarray  # [2 ** _FILTER_BITS] bool: True if a hash begins with these bits


class CopiedRuns:
    """Search for the longest run of words that each generated story shares with training text. Only
    a block of the training text is in memory at a time."""

    def __init__(self, stories: Sequence[Sequence[str]]) -> None:
        self._stories = [list(words) for words in stories]
        self._word_numbers: dict[str, int] = {_SEPARATOR: _LINE_END}
        for words in self._stories:
            for word in words:
                self._word_numbers.setdefault(word, len(self._word_numbers) + 1)
        self._keep = np.uint64((1 << 64) - (1 << (64 - HASH_BITS)))
        # random values of words; a sequence of words is hashed as a polynomial modulo 2**64, which
        # needs no division: uint64 wraps around by itself
        generator = np.random.default_rng(0)
        values = generator.integers(1 << 64, size=len(self._word_numbers) + 1, dtype=np.uint64)
        self._values = values
        self._powers = _powers(_MULTIPLIER, 1)
        self._inverses = _powers(pow(_MULTIPLIER, -1, 1 << 64), 1)
        lengths = [len(words) for words in self._stories]
        self._lengths = np.array(lengths, dtype=np.int64)  # [S]
        self._starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)  # [S]
        flat = [self._word_numbers[word] for words in self._stories for word in words]
        self._words = np.array(flat, dtype=np.int32)
        self._sums = self._running_sums(self._words)
        self._best = np.zeros(len(lengths), dtype=np.int64)  # longest run so far, [S]
        self._runs: list[tuple[int, str, int]] = [(0, "", 0)] * len(lengths)  # start, file, line
        self._ngrams: dict[int, _Ngrams] = {}
        self._lines_read = 0
        self.words_read = 0

    def read(self, lines: Iterable[str], path: str, *, block: int = BLOCK_CHARACTERS) -> None:
        """Search training stories, one per line, with words separated by white space.

        ``path`` is the file's name in the results; about ``block`` characters are searched at once.
        """
        self._lines_read = 0
        size = min(_FIRST_BLOCK, block)
        part: list[str] = []
        characters = 0
        for line in lines:
            part.append(line)
            characters += len(line) + 1
            # a run must not be cut at the end of a block: only whole lines are searched
            if characters >= size:
                self._read_block("\n".join([*part, ""]), path)
                part, characters, size = [], 0, min(2 * size, block)
        if part:
            self._read_block("\n".join([*part, ""]), path)

    def results(self) -> list[CopiedRun]:
        """Return the longest shared run of words of each story, in the order of the stories."""
        runs = []
        for words, length, (start, file, line) in zip(self._stories, self._best, self._runs):
            run = tuple(words[start : start + length])
            runs.append(CopiedRun(int(length), start, run, file if length else None, line))
        return runs

    def _read_block(self, text: str, path: str) -> None:
        tokens = text.replace("\n", f" {_SEPARATOR} ").split()
        numbers = np.array(
            list(map(self._word_numbers.get, tokens, repeat(_UNKNOWN))), dtype=np.int32
        )
        ends = np.flatnonzero(numbers == _LINE_END)
        self._match(numbers, ends, path)
        self._lines_read += len(ends)
        self.words_read += len(numbers) - len(ends)

    def _match(self, block: np.ndarray, ends: np.ndarray, path: str) -> None:
        """Search a block of training text (word ids, and indices of line ends) for longer runs."""
        if not len(block):
            return
        sums = self._running_sums(block)
        n = 0
        while True:
            # n only grows: a run is extended as far as possible, so that a better run in this block
            # is at least one word longer
            improvable = self._best[self._best < self._lengths] + 1
            improvable = improvable[improvable > n]
            if not len(improvable) or improvable.min() > len(block):
                return
            n = int(improvable.min())
            ngrams = self._get_ngrams(n)
            hashes = self._hashes(sums, n)
            places = np.flatnonzero(ngrams.present[hashes >> np.uint64(64 - _FILTER_BITS)])
            first = np.searchsorted(ngrams.hashes, hashes[places], side="left")
            hit = ngrams.hashes[np.minimum(first, len(ngrams.hashes) - 1)] == hashes[places]
            self._compare(block, ends, path, n, places[hit], first[hit])

    def _compare(
        self,
        block: np.ndarray,
        ends: np.ndarray,
        path: str,
        n: int,
        places: np.ndarray,
        first: np.ndarray,
    ) -> None:
        """Compare n words of training lines with n words of stories that have the same hash.

        If the words are equal as well, the run of equal words is extended as far as possible, and
        recorded as the story's longest run. ``places`` are the indices in ``block`` at which n
        words have the hash of an n-gram of a story, ``first`` the index in ``_Ngrams`` of the first
        such n-gram.
        """
        ngrams = self._get_ngrams(n)
        seen: set[bytes] = set()
        changed: set[int] = set()
        for place, entry in zip(places.tolist(), first.tolist()):
            # a block repeats frequent n-grams many times: the first one has improved all it can
            words = block[place : place + n].tobytes()
            if words in seen:
                continue
            seen.add(words)
            wanted = ngrams.hashes[entry]
            while entry < len(ngrams.hashes) and ngrams.hashes[entry] == wanted:
                story, start = int(ngrams.stories[entry]), int(ngrams.places[entry])
                entry += 1
                if self._best[story] >= n or self._words[start : start + n].tobytes() != words:
                    continue
                story_end = int(self._starts[story] + self._lengths[story])
                length = n
                while (
                    start + length < story_end
                    and place + length < len(block)
                    and self._words[start + length] == block[place + length]
                ):
                    length += 1
                line = self._lines_read + int(np.searchsorted(ends, place)) + 1
                # n-grams of a story are listed under the length that would improve it: both lists
                # are stale
                changed.update((n, length + 1))
                self._best[story] = length
                self._runs[story] = (start - int(self._starts[story]), path, line)
        for order in changed:
            self._ngrams.pop(order, None)

    def _get_ngrams(self, n: int) -> _Ngrams:
        if n not in self._ngrams:
            chosen = np.flatnonzero((self._best == n - 1) & (self._lengths >= n))
            counts = self._lengths[chosen] - n + 1
            stories = np.repeat(chosen, counts)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            places = self._starts[stories] + offsets
            # hashes cannot be computed if no story has n words
            empty = np.zeros(0, dtype=np.uint64)
            hashes = self._hashes(self._sums, n)[places] if len(places) else empty
            order = np.argsort(hashes, kind="stable")
            present = np.zeros(1 << _FILTER_BITS, dtype=bool)
            present[hashes >> np.uint64(64 - _FILTER_BITS)] = True
            self._ngrams[n] = _Ngrams(hashes[order], places[order], stories[order], present)
        return self._ngrams[n]

    def _running_sums(self, words: np.ndarray) -> np.ndarray:
        """Return the cumulative sums of ``value * multiplier ** index`` over word ids, where
        ``value`` is the random number of a word and ``index`` its position."""
        W = len(words)
        if len(self._powers) < W + 1:
            self._powers = _powers(_MULTIPLIER, W + 1)
            self._inverses = _powers(pow(_MULTIPLIER, -1, 1 << 64), W + 1)
        sums = np.zeros(W + 1, dtype=np.uint64)
        np.cumsum(self._values[words] * self._powers[:W], out=sums[1:])
        return sums

    def _hashes(self, sums: np.ndarray, n: int) -> np.ndarray:
        """Return the hash of the n words that begin at each index of a sequence of running sums."""
        W = len(sums) - 1
        # the inverse power makes the hash independent of the index
        hashes = (sums[n:] - sums[: W - n + 1]) * self._inverses[: W - n + 1]
        # polynomials modulo 2**64 have weak low bits; this product carries them into the high bits
        hashes *= np.uint64(_MULTIPLIER)
        hashes &= self._keep
        return hashes


def _powers(base: int, count: int) -> np.ndarray:
    """Return ``base ** index`` modulo 2**64 for each index below ``count``."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)
