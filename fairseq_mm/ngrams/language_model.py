"""Loads language models from ARPA files, and through ``kenlm`` from KenLM's binary files."""

import math
import os
from collections.abc import Sequence
from typing import Protocol, Union

import numpy as np

from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.ngrams.arpa import read_arpa

_KENLM_MAGIC = b"mmap lm http://kheafield.com/code"


class LanguageModel(Protocol):
    """Language model that scores sentences; ``order`` is the length of the longest n-gram."""

    order: int

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the natural log probability of each sentence as float64 ``[sentences]``.

        ``sentences`` are lists of words without ``<s>`` and ``</s>``. The probability of ``</s>``
        after the last word is included; words that the model does not have count as ``<unk>``.
        """


class KenlmModel:
    """Language model from a file in KenLM's binary format.

    Raise UserError if KenLM's Python module ``kenlm`` is not installed or cannot load the file.
    """

    def __init__(self, path: Union[str, os.PathLike]) -> None:
        kenlm = import_extra("kenlm", extra="lm", purpose=f"{path}, a binary file of KenLM,")
        try:
            self._model = kenlm.Model(os.fspath(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be loaded by kenlm ({error}).") from None
        self.order: int = self._model.order

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        # kenlm's logarithms are to base 10
        scores = [self._model.score(" ".join(words), bos=True, eos=True) for words in sentences]
        return np.array(scores, dtype=np.float64) * math.log(10)


def load_language_model(path: Union[str, os.PathLike]) -> LanguageModel:
    """Load an ARPA file, compressed by gzip or not, or a binary file of KenLM. Raise UserError if
    the file cannot be read, or has neither format."""
    try:
        with open(path, "rb") as file:
            # by content, since KenLM gives its binary files no fixed ending
            is_binary = file.read(len(_KENLM_MAGIC)) == _KENLM_MAGIC
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    return KenlmModel(path) if is_binary else read_arpa(path)
