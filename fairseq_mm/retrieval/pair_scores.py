"""Stores log-likelihoods of stories under prompts or images, so that each pair is computed once.

``likelihoods.jsonl`` begins with a line ``{"scores_of": {...}}``, the settings of the scores. Each
further line has the score of one pair, ``{"story": line, "prompt": line, "log_likelihood": ...}``,
where ``line`` is a line number in the split, from 0. For image sequences, the name ``images``
replaces ``prompt``. A prompt or image sequence that occurs in several lines has the number of the
first such line. The score of a pair does not depend on which pairs a run selects, so that runs with
other ``--seed``, ``--draws`` or ``--stories`` can share the file.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError

FILE = "likelihoods.jsonl"
Line = tuple[int, int]


class PairScores:
    """File of log-likelihoods of pairs of a story and a condition (a prompt or image sequence).

    Only one process may write to the file. The folder is created if it does not exist. Raises
    UserError if the file cannot be written, or has scores with other settings.

    Args:
        folder: Folder of the file.
        identity: Settings that determine the scores, as JSON values by name.
        condition: Name of the condition in the file, ``prompt`` or ``images``.

    Attributes:
        path: Path of the file.
        scores: Log-likelihood of each pair (line of the story, line of the condition).
    """

    def __init__(self, folder: str, identity: dict[str, Any], *, condition: str = "prompt") -> None:
        self.path = Path(folder) / FILE
        self.condition = condition
        self.scores: dict[Line, float] = {}
        # as it comes back from the file: tuples become lists
        identity = json.loads(json.dumps(identity))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self._read(identity):
                return
            # by a rename, so that the first line of an existing file is complete
            temporary = self.path.with_name(FILE + ".tmp")
            temporary.write_text(json.dumps({"scores_of": identity}) + "\n")
            os.replace(temporary, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}).") from None

    def append(self, scores: Iterable[tuple[Line, float]]) -> None:
        """Append scores to the file, so that they are kept if the run is interrupted.

        ``scores`` are (pair, log-likelihood), where a pair is (line of the story, line of the
        condition).
        """
        lines = []
        for (story, condition), value in scores:
            self.scores[story, condition] = value
            entry = {"story": story, self.condition: condition, "log_likelihood": value}
            lines.append(json.dumps(entry) + "\n")
        # one write of whole lines: a kill in between leaves at most one incomplete line
        with open(self.path, "a") as file:
            file.write("".join(lines))

    def _read(self, identity: dict[str, Any]) -> bool:
        """Read the scores of the file, and remove an incomplete last line.

        Returns False if the file has no complete line. Raises UserError if its settings differ from
        ``identity``.
        """
        content = self.path.read_bytes()
        # a line without its end was being written when the run was killed
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        if not whole:
            return False
        first, *lines = content[:whole].decode(errors="replace").split("\n")[:-1]
        try:
            stored = dict(parse_json(first)["scores_of"])
            for line in lines:
                entry = parse_json(line)
                self.scores[entry["story"], entry[self.condition]] = float(entry["log_likelihood"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.path}: is no file of likelihoods; delete it to start anew."
            ) from None
        for key in {**identity, **stored}:
            if stored.get(key) != identity.get(key):
                raise UserError(
                    f"{self.path} holds likelihoods with {key} = {stored.get(key)!r}, but this run "
                    f"has {identity.get(key)!r}: give another --output, or delete that file."
                )
        return True
