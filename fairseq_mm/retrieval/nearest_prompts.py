"""The training prompts nearest to a prompt: the KNN baseline of Fan et al. 2018, section 5.1 (4).

A prompt is a TF-IDF vector of its words, nearness is the cosine, and faiss searches. The paper's
"TF-IDF vector using fasttext" leaves open what was done; here it is scikit-learn's weighting
(smoothed idf, vectors of length 1) of the white-space tokens, lower-cased. Tags such as ``[ WP ]``
at the beginning of a prompt do not count: idf never falls to 0, so two prompts would be near for
having a tag in common.

Vectors of the full release (272,600 x about 60,000) do not fit into memory as dense rows, which
faiss wants. An inner product only has terms where the query is not 0, so for a few queries at a
time the columns of their words are enough, and the rows pass in slices: the result is that of
whole vectors.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import import_extra

QUERIES_AT_ONCE = 64
CHUNK_BYTES = 1 << 28  # of dense rows
_TIE = 1e-5  # far above the rounding of a float32 cosine, far below what tells prompts apart
_NOTHING = 1e-9  # cosines of prompts without a common word are below, all others above

_TAG = re.compile(r"(?:\s*\[\s+\S+\s+\])+\s*")


class NearPrompt(NamedTuple):
    """A training line.

    Attributes:
        line: its number, counted from 0.
        similarity: cosine of the two TF-IDF vectors, 0 to 1.
    """

    line: int
    similarity: float


def prompt_words(prompt: str) -> list[str]:
    """What is compared: lower-cased white-space tokens after the tags that the prompt begins with.

    A tag is one token between brackets that stand alone, ``[ WP ]``. A prompt of nothing else
    keeps it.
    """
    tag = _TAG.match(prompt)
    rest = prompt[tag.end() :] if tag else prompt
    return (rest if rest.strip() else prompt).lower().split()


class NearestPrompts:
    """Finds the training lines whose prompts have the highest cosine to a prompt.

    Lines with equal words share a vector; they, and other lines of equal cosine, are ordered by
    number.

    Args:
        prompts: of the training lines.
        chunk_bytes: of the dense rows that are made at once.

    Raises:
        UserError: if faiss or scikit-learn is missing.
        ValueError: if there are no prompts, or none has a word.
    """

    def __init__(self, prompts: Sequence[str], *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._faiss = import_extra("faiss", extra="knn", purpose="the search for nearest prompts")
        text = import_extra(
            "sklearn.feature_extraction.text", extra="knn", purpose="the search for nearest prompts"
        )
        if not any(prompt.strip() for prompt in prompts):
            raise ValueError("`prompts` must have a prompt with a word, but has none.")
        rows: dict[tuple[str, ...], list[int]] = {}  # words -> lines
        for line, prompt in enumerate(prompts):
            rows.setdefault(tuple(prompt_words(prompt)), []).append(line)
        self._lines = list(rows.values())  # of each row
        self._row_of = {words: row for row, words in enumerate(rows)}
        # document frequencies are over lines, so each row is counted as often as it has lines
        self._vectorizer = text.TfidfVectorizer(analyzer=_same, norm="l2")
        self._vectorizer.fit(prompt_words(prompt) for prompt in prompts)
        self._vectors = self._vectorizer.transform(rows)  # [R, V] CSR, float64
        self._columns = self._vectors.tocsc().astype(np.float32)
        self._chunk_bytes = chunk_bytes

    def search(
        self,
        prompts: Sequence[str],
        k: int,
        *,
        leave_out_same: bool = False,
        progress: Optional[Callable[[int], object]] = None,
    ) -> list[list[NearPrompt]]:
        """The k nearest training lines of each prompt, nearest first.

        Args:
            prompts: the queries.
            k: how many. Fewer are returned where fewer have a word in common with the prompt.
            leave_out_same: leave out lines with the same words, for prompts that are training
                prompts themselves.
            progress: called with the number of queries after each step.
        """
        found: list[list[NearPrompt]] = []
        for i in range(0, len(prompts), QUERIES_AT_ONCE):
            words = [tuple(prompt_words(prompt)) for prompt in prompts[i : i + QUERIES_AT_ONCE]]
            queries = self._vectorizer.transform(words)
            own = [self._row_of.get(key) if leave_out_same else None for key in words]
            for q, rows in enumerate(self._nearest_rows(queries, k + leave_out_same)):
                found.append(self._nearest_lines(queries[q], rows, k, own[q]))
            if progress is not None:
                progress(len(words))
        return found

    def _nearest_rows(self, queries: Any, k: int) -> list[np.ndarray]:
        """For each query the rows that can be among its k nearest: k by their float32 cosines,
        and all that come within rounding of the kth."""
        columns = np.unique(queries.indices)
        if not len(columns):
            return [np.zeros(0, dtype=np.int64)] * queries.shape[0]
        dense = np.ascontiguousarray(queries[:, columns].toarray(), dtype=np.float32)  # [Q, C]
        candidates = self._columns[:, columns].tocsr()
        R = len(self._lines)
        wanted = min(k + 16, R)
        while True:
            cosines, rows = self._search_chunks(dense, candidates, wanted)
            least = np.maximum(cosines[:, [min(k, R) - 1]] - _TIE, _NOTHING)
            if wanted == R or (cosines[:, [-1]] < least).all():
                return [row[near] for row, near in zip(rows, cosines >= least)]
            wanted = min(4 * wanted, R)

    def _search_chunks(
        self, queries: np.ndarray, candidates: Any, wanted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cosines ``[Q, wanted]``, falling, and their rows."""
        Q, C = queries.shape
        R = candidates.shape[0]
        step = max(1, self._chunk_bytes // (4 * C))
        best = np.zeros((Q, 0), dtype=np.float32)
        best_rows = np.zeros((Q, 0), dtype=np.int64)
        for start in range(0, R, step):
            block = np.ascontiguousarray(candidates[start : start + step].toarray())
            cosines, rows = self._faiss.knn(
                queries,
                block,
                min(wanted, len(block)),
                metric=self._faiss.METRIC_INNER_PRODUCT,
            )
            best = np.concatenate([best, cosines], axis=1)
            best_rows = np.concatenate([best_rows, rows + start], axis=1)
            order = np.argsort(-best, axis=1, kind="stable")[:, :wanted]
            best = np.take_along_axis(best, order, axis=1)
            best_rows = np.take_along_axis(best_rows, order, axis=1)
        return best, best_rows

    def _nearest_lines(
        self, query: Any, rows: np.ndarray, k: int, own: Optional[int]
    ) -> list[NearPrompt]:
        """Orders rows by their float64 cosines, then lines by number."""
        rows = rows[rows != own] if own is not None else rows
        cosines = (self._vectors[rows] @ query.T).toarray()[:, 0]
        # sums of the same terms in another order are equal
        cosines = np.round(cosines, 12)
        near = [
            NearPrompt(line, float(cosine))
            for row, cosine in zip(rows.tolist(), cosines)
            for line in self._lines[row]
        ]
        near.sort(key=lambda found: (-found.similarity, found.line))
        return near[:k]


def _same(words: Iterable[str]) -> Iterable[str]:
    return words
