"""Stores the scores of all sentences and images in blocks, so that a killed run can continue.

A finished folder has ``log_probs.npy``, log P(sentence | image) [sentences, images], and
``log_marginals.npy``, log P(sentence) [sentences]. In an unfinished folder both names end with
``.partial.npy``. ``scores.json`` has the settings of the scores, and ``scores.blocks`` the numbers
of the finished blocks, one per line.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Union

import numpy as np

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.data.numpy_files import new_mapped_array
from fairseq_mm.errors import UserError

ARRAYS = ("log_probs", "log_marginals")


class ScoreFile:
    """Folder with the scores of all pairs of a sentence and an image, complete or incomplete.

    The folder is created if it does not exist. Raises UserError if the folder has damaged files, or
    scores with other settings.

    Args:
        folder: Path of the folder.
        identity: Settings that determine the scores, as JSON values by name.
        num_sentences: Number of sentences.
        num_images: Number of images.

    Attributes:
        finished_blocks: Numbers of the blocks that have been written.
        is_finished: True if all blocks have been written.
    """

    def __init__(
        self,
        folder: Union[str, os.PathLike],
        identity: dict[str, Any],
        num_sentences: int,
        num_images: int,
    ) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be made: {error.strerror}.") from None
        shapes = {"log_probs": (num_sentences, num_images), "log_marginals": (num_sentences,)}
        self.finished_blocks: set[int] = set()
        self._record = self.folder / "scores.blocks"
        # as it comes back from the file: tuples become lists
        identity = json.loads(json.dumps(identity))
        path = self.folder / "scores.json"
        if path.exists():
            self._check_identity(path, identity)
        self.is_finished = path.exists() and all(self._path(name).exists() for name in ARRAYS)
        if self.is_finished:
            self._arrays = {n: self._open(self._path(n), "r", shapes[n]) for n in ARRAYS}
            with contextlib.suppress(OSError):  # left by a kill at the end of `finish`
                self._record.unlink()
            return
        partial = {name: self._path(name, ".partial") for name in ARRAYS}
        if path.exists() and all(p.exists() or self._path(n).exists() for n, p in partial.items()):
            for name in ARRAYS:  # a kill between the two renames of `finish`
                if not partial[name].exists():
                    os.replace(self._path(name), partial[name])
            self._arrays = {name: self._open(partial[name], "r+", shapes[name]) for name in ARRAYS}
            self.finished_blocks = self._read_record()
            return
        self._record.unlink(missing_ok=True)
        self._arrays = {
            name: new_mapped_array(
                partial[name], shapes[name], np.float32 if name == "log_probs" else np.float64
            )
            for name in ARRAYS
        }
        # written last: if it exists, the other files are complete
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(identity, indent=2) + "\n")
        os.replace(temporary, path)

    @property
    def log_probs(self) -> np.ndarray:
        """Memory-mapped log P(sentence | image), [sentences, images] float32."""
        return self._arrays["log_probs"]

    @property
    def log_marginals(self) -> np.ndarray:
        """Memory-mapped log P(sentence), [sentences] float64."""
        return self._arrays["log_marginals"]

    def write_block(
        self, block: int, sentences: np.ndarray, log_probs: np.ndarray, log_marginals: np.ndarray
    ) -> None:
        """Write the scores of a block of n sentences to disk.

        Args:
            block: Number of the block.
            sentences: [n] indices of the sentences.
            log_probs: [n, images] log P(sentence | image).
            log_marginals: [n] log P(sentence).
        """
        self.log_probs[sentences] = log_probs
        self.log_marginals[sentences] = log_marginals
        # rows first, and only then the block's number: after a crash, a number means complete rows
        for array in self._arrays.values():
            array.flush()
        with open(self._record, "a") as file:
            file.write(f"{block}\n")
            file.flush()
            os.fsync(file.fileno())
        self.finished_blocks.add(block)

    def finish(self) -> None:
        """Give the arrays their final names; all blocks must have been written."""
        # the record goes last: a kill between two renames must not lose the finished blocks
        for name in ARRAYS:
            os.replace(self._path(name, ".partial"), self._path(name))
        self._record.unlink()
        self.is_finished = True

    def _path(self, name: str, suffix: str = "") -> Path:
        return self.folder / f"{name}{suffix}.npy"

    def _check_identity(self, path: Path, identity: dict[str, Any]) -> None:
        try:
            stored = parse_json(path.read_text())
        except ValueError:
            stored = None
        if not isinstance(stored, dict):
            raise UserError(f"{path}: must be a JSON object; delete {self.folder} to start anew.")
        for key in {**identity, **stored}:
            if stored.get(key) != identity.get(key):
                raise UserError(
                    f"{self.folder} holds scores with {key} = {stored.get(key)!r}, but this run "
                    f"has {identity.get(key)!r} (another checkpoint, other data or --max-images): "
                    "give another --output, or delete that folder."
                )

    def _open(self, path: Path, mode: Any, shape: tuple[int, ...]) -> np.ndarray:
        try:
            array = np.lib.format.open_memmap(str(path), mode=mode)
        except (ValueError, OSError) as error:
            raise UserError(
                f"{path}: cannot be read ({error}); delete {self.folder} to start anew."
            ) from None
        if array.shape != shape:
            raise UserError(
                f"{path}: must be an array {shape}, but is {array.shape}; delete {self.folder} to "
                "start anew."
            )
        return array

    def _read_record(self) -> set[int]:
        text = self._record.read_text() if self._record.exists() else ""
        # a line without its end was being written when the run was killed; the next number must
        # not be written behind it
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            temporary = self._record.with_name(self._record.name + ".tmp")
            temporary.write_text(whole)
            os.replace(temporary, self._record)
        return {int(line) for line in whole.split()}
