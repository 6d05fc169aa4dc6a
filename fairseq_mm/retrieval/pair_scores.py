"""Log-likelihoods of pairs of story and prompt, or story and images, on disk, so that no pair is
computed twice.

``likelihoods.jsonl`` begins with a line ``{"scores_of": {...}}``, what decides the scores; then
``{"story": line, "prompt": line, "log_likelihood": ...}``, a line a pair, in the order in which
they were computed. Lines are those of the split, from 0; a prompt (or ``images``, a photo
sequence) is named by the first line that has it. Seed, draws and number of stories do not decide a
pair's score, so runs that differ in them share the file.
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
    """
    Args:
        folder: made if it is not there; one process at a time may write to it.
        identity: names and JSON values.
        condition: what the file calls what a story is told from.

    Attributes:
        path: of the file.
        scores: (story, what it is told from) -> log-likelihood.

    Raises:
        UserError: if the folder holds scores of something else, or cannot be written.
    """

    def __init__(self, folder: str, identity: dict[str, Any], *, condition: str = "prompt") -> None:
        self.path = Path(folder) / FILE
        self.condition = condition
        self.scores: dict[Line, float] = {}
        identity = json.loads(json.dumps(identity))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self._read(identity):
                return
            temporary = self.path.with_name(FILE + ".tmp")
            temporary.write_text(json.dumps({"scores_of": identity}) + "\n")
            os.replace(temporary, self.path)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror}).") from None

    def append(self, scores: Iterable[tuple[Line, float]]) -> None:
        """Keeps scores: from here on a kill does not lose them."""
        lines = []
        for (story, condition), value in scores:
            self.scores[story, condition] = value
            entry = {"story": story, self.condition: condition, "log_likelihood": value}
            lines.append(json.dumps(entry) + "\n")
        with open(self.path, "a") as file:
            file.write("".join(lines))

    def _read(self, identity: dict[str, Any]) -> bool:
        """False where the file has not even its first line."""
        content = self.path.read_bytes()
        # a line without its end was being written when the run was killed
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        if not whole:
            return False
        first, *lines = content[:whole].decode(errors="replace").split("\n")[:-1]
        try:
            found = dict(parse_json(first)["scores_of"])
            for line in lines:
                entry = parse_json(line)
                self.scores[entry["story"], entry[self.condition]] = float(entry["log_likelihood"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.path}: is no file of likelihoods; delete it to start anew."
            ) from None
        for key in {**identity, **found}:
            if found.get(key) != identity.get(key):
                raise UserError(
                    f"{self.path} holds likelihoods with {key} = {found.get(key)!r}, but this run "
                    f"has {identity.get(key)!r}: give another --output, or delete that file."
                )
        return True
