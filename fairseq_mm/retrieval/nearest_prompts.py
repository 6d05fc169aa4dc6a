"""Finds the nearest training prompts: the KNN baseline of Fan et al. 2018, section 5.1 (4).

A prompt is represented by a TF-IDF vector of its words, and prompts are compared by the cosine of
their vectors. The paper says only "TF-IDF vector using fasttext". This module has the weighting of
scikit-learn: a word that occurs tf times in the prompt, and in df of n training prompts, has the
weight ``tf * (ln((1 + n) / (1 + df)) + 1)``, and vectors are scaled to length 1. Words are
lower-cased white-space tokens. Tags such as ``[ WP ]`` at the beginning of a prompt are ignored.
Otherwise all prompts with the same tag would be similar, because no word has the weight 0.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np

# Cosines of prompts with a word in common are larger.
_NO_COMMON_WORD = 1e-9
# Sums of the same terms in another order agree in so many digits, and must be ties.
_DIGITS = 12

_TAG = re.compile(r"(?:\s*\[\s+\S+\s+\])+\s*")


class NearPrompt(NamedTuple):
    """Training prompt that is near to a query: its line from 0, and the cosine (0 to 1)."""

    line: int
    similarity: float


def prompt_words(prompt: str) -> list[str]:
    """Return the lower-cased words of a prompt, without tags such as ``[ WP ]`` at its beginning,
    unless it consists only of tags."""
    tag = _TAG.match(prompt)
    rest = prompt[tag.end() :] if tag else prompt
    return (rest if rest.strip() else prompt).lower().split()


class NearestPrompts:
    """Search index of training prompts; equally near prompts are ordered by their line number."""

    def __init__(self, prompts: Sequence[str]) -> None:
        # lines with the same words share a row
        lines_by_words: dict[tuple[str, ...], list[int]] = {}
        for line, prompt in enumerate(prompts):
            lines_by_words.setdefault(tuple(prompt_words(prompt)), []).append(line)
        self._lines = list(lines_by_words.values())
        self._row_by_words = {words: row for row, words in enumerate(lines_by_words)}
        self._number_by_word: dict[str, int] = {}
        rows, words, counts = [], [], []  # one entry for each word of a row
        for row, row_words in enumerate(lines_by_words):
            for word, count in Counter(row_words).items():
                rows.append(row)
                words.append(self._number_by_word.setdefault(word, len(self._number_by_word)))
                counts.append(count)
        row_array, word_array = np.array(rows), np.array(words)
        # document frequencies are over lines: a row counts as often as it has lines
        num_lines = np.array([len(lines) for lines in self._lines])
        frequencies = np.bincount(word_array, weights=num_lines[row_array])
        self._idf = np.log((1 + len(prompts)) / (1 + frequencies)) + 1
        weights = np.array(counts) * self._idf[word_array]
        weights /= np.sqrt(np.bincount(row_array, weights=weights**2))[row_array]
        by_word = np.argsort(word_array, kind="stable")
        # rows and weights of word w are at starts[w]:starts[w + 1]
        self._rows, self._weights = row_array[by_word], weights[by_word]
        self._starts = np.concatenate([[0], np.bincount(word_array).cumsum()])

    def search(
        self,
        prompts: Sequence[str],
        k: int,
        *,
        leave_out_same: bool = False,
        progress: Optional[Callable[[int], object]] = None,
    ) -> list[list[NearPrompt]]:
        """Return the k nearest training prompts of each query, nearest first; fewer if no more
        share a word with it. With ``leave_out_same``, prompts with the same words as the query are
        left out."""
        results = []
        for prompt in prompts:
            words = prompt_words(prompt)
            counts = Counter(word for word in words if word in self._number_by_word)
            cosines = np.zeros(len(self._lines))  # to each distinct training prompt
            if counts:
                numbers = [self._number_by_word[word] for word in counts]
                weights = np.array(list(counts.values())) * self._idf[numbers]
                weights /= np.linalg.norm(weights)
                # a product has terms only where both vectors have the word
                entries = [slice(self._starts[x], self._starts[x + 1]) for x in numbers]
                products = [self._weights[entry] * x for entry, x in zip(entries, weights)]
                places = np.concatenate([self._rows[entry] for entry in entries])
                sums = np.bincount(places, np.concatenate(products), minlength=len(self._lines))
                cosines = np.round(sums, _DIGITS)
            if leave_out_same and tuple(words) in self._row_by_words:
                cosines[self._row_by_words[tuple(words)]] = 0.0
            rows = np.flatnonzero(cosines > _NO_COMMON_WORD)
            # ties with the kth stay until lines are sorted: a row may have several lines
            if len(rows) > k:
                rows = rows[cosines[rows] >= np.partition(cosines[rows], -k)[-k]]
            near = [
                NearPrompt(line, cosine)
                for row, cosine in zip(rows.tolist(), cosines[rows].tolist())
                for line in self._lines[row]
            ]
            near.sort(key=lambda prompt: (-prompt.similarity, prompt.line))
            results.append(near[:k])
            if progress is not None:
                progress(1)
        return results
