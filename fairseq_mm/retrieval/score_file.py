"""Stores log-likelihoods while they are computed, so that a killed run can continue.

Each file records the settings that determine its scores. Only one process may write to a folder.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.data.numpy_files import new_mapped_array
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError


def _check_settings(path: Path, stored: Any, settings: Mapping[str, Any]) -> None:
    """Raise UserError unless the ``stored`` settings of the file ``path`` equal ``settings``."""
    # as they come back from a file: tuples become lists
    settings = json.loads(json.dumps(settings))
    stored = stored if isinstance(stored, dict) else {}
    for key in {**settings, **stored}:
        if stored.get(key) != settings.get(key):
            raise UserError(
                f"{path} holds scores with {key} = {stored.get(key)!r}, but this run has "
                f"{settings.get(key)!r} (another checkpoint, other data or options): give another "
                "--output, or delete that folder."
            )


class ScoreFile:
    """Folder with the scores of all pairs of a sentence and an image, complete or incomplete.

    ``scores.json`` has the settings, ``log_probs.npy`` and ``log_marginals.npy`` the scores. In an
    unfinished folder, the last two names end with ``.partial.npy``, and a marginal that has not
    been computed is NaN.

    Args:
        folder: Path of the folder, which must exist.
        settings: Settings that determine the scores, the sentences and images included, as JSON
            values by name.
        num_sentences: Number of sentences.
        num_images: Number of images.

    Attributes:
        log_probs: Memory-mapped log P(sentence | image), [sentences, images] float32.
        log_marginals: Memory-mapped log P(sentence), [sentences] float64.
    """

    def __init__(
        self, folder: str, settings: Mapping[str, Any], num_sentences: int, num_images: int
    ) -> None:
        path = Path(folder, "scores.json")
        self.finished = [Path(folder, f"log_{x}.npy") for x in ("probs", "marginals")]
        self.partial = [final.with_suffix(".partial.npy") for final in self.finished]
        if path.exists():
            _check_settings(path, parse_json(path.read_text()), settings)
        pairs = list(zip(self.finished, self.partial))
        if not path.exists() or not all(a.exists() or b.exists() for a, b in pairs):
            for file in self.finished:
                file.unlink(missing_ok=True)
            new_mapped_array(self.partial[0], (num_sentences, num_images), np.float32)
            new_mapped_array(self.partial[1], (num_sentences,), np.float64)[:] = np.nan
            # written last: if it exists, the other files are complete
            write_file(str(path), json.dumps(settings, indent=2) + "\n")
        self.log_probs, self.log_marginals = (
            np.load(a if a.exists() else b, mmap_mode="r+") for a, b in pairs
        )

    def has(self, sentences: np.ndarray) -> bool:
        """Return True if the scores of all ``sentences`` (indices) have been written."""
        return not np.isnan(self.log_marginals[sentences]).any()

    def finish(self) -> None:
        """Give the arrays their final names; all scores must have been written."""
        for finished, partial in zip(self.finished, self.partial):
            if not finished.exists():
                partial.rename(finished)

    def write(
        self, sentences: np.ndarray, log_probs: np.ndarray, log_marginals: np.ndarray
    ) -> None:
        """Write the scores of n sentences to disk.

        Args:
            sentences: [n] indices of the sentences.
            log_probs: [n, images] log P(sentence | image).
            log_marginals: [n] log P(sentence).
        """
        self.log_probs[sentences] = log_probs
        # rows first, and only then the marginals: after a crash, a marginal means a complete row
        self.log_probs.flush()
        self.log_marginals[sentences] = log_marginals
        self.log_marginals.flush()


Line = tuple[int, int]


class PairScores:
    """File of log-likelihoods of pairs of a story and a condition (a prompt or image sequence).

    Args:
        folder: Folder of the file, ``likelihoods.jsonl``; it must exist.
        settings: Settings that determine the scores, as JSON values by name.
        condition: Name of the condition in the file, ``prompt`` or ``images``.

    Attributes:
        path: Path of the file.
        scores: Log-likelihood of each pair (line of the story, line of the condition).
    """

    def __init__(
        self, folder: str, settings: Mapping[str, Any], *, condition: str = "prompt"
    ) -> None:
        self.path = Path(folder, "likelihoods.jsonl")
        self.condition = condition
        self.scores: dict[Line, float] = {}
        content = self.path.read_bytes() if self.path.exists() else b""
        # a line without its end was being written when the run was killed
        whole = content.rfind(b"\n") + 1
        if not whole:
            write_file(str(self.path), json.dumps({"scores_of": settings}) + "\n")
            return
        os.truncate(self.path, whole)
        first, *lines = content[:whole].decode().splitlines()
        _check_settings(self.path, parse_json(first).get("scores_of"), settings)
        for entry in map(parse_json, lines):
            self.scores[entry["story"], entry[condition]] = entry["log_likelihood"]

    def append(self, scores: Iterable[tuple[Line, float]]) -> None:
        """Append pairs with their log-likelihoods to the file, where they survive a killed run."""
        lines = []
        for (story, condition), value in scores:
            self.scores[story, condition] = value
            entry = {"story": story, self.condition: condition, "log_likelihood": value}
            lines.append(json.dumps(entry) + "\n")
        # one write of whole lines: a kill in between leaves at most one incomplete line
        with open(self.path, "a") as file:
            file.write("".join(lines))
