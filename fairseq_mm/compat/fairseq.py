"""Imports fairseq without side effects and slow modules, and repairs single functions of it.

fairseq imports scikit-learn and SciPy's statistics for two functions of a criterion, TensorBoard
for the log of a training, and sacreBLEU with tabulate for tables of scores. torchvision imports
PyTorch's compiler for one function of ``roi_align``. These imports take a third of the starting
time of ``fairseq-mm caption``. The context :func:`deferred` replaces the modules by
placeholders, whose functions import the real module when they are called.
"""

import contextlib
import functools
import importlib
import logging
import os
import shlex
import sys
import types
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fairseq_mm.errors import is_verbose

# packages whose deprecated calls a user cannot change; a module of his own still warns
_LIBRARIES = (
    r"(sys|__main__|(fairscale|fairseq|fairseq_cli|fairseq_mm|hydra|omegaconf|torch)(\.|$))"
)
# how UserWarnings begin on which a user cannot act
_MESSAGES = (
    r"\s*('pin_memory' argument is set as true|hydra\.experimental\.|The version_base par"
    r"|In '.*': Usage of deprecated keyword|'.*' is validated against ConfigStore"
    r"|The strict flag in the compose|Support for mismatched key_padding_mask)"
)
# modules that are deferred while fairseq, or torchvision, is imported
OF_FAIRSEQ = (
    *("sklearn", "sklearn.metrics", "scipy.stats"),
    *("torch.utils.tensorboard", "tensorboardX", "tabulate"),
)
OF_TORCHVISION = ("torch._dynamo", "torch._dynamo.utils")

# only fairseq-mm switches it on: a library must not change the imports of its program
defers_imports = False


def check_fairseq() -> None:
    """Import fairseq; if that fails, raise ImportError that says what to install."""
    try:
        with _quiet_import():
            import fairseq  # noqa: F401
    # ValueError: stock fairseq's configuration on Python 3.11 ("mutable default ...")
    except (ModuleNotFoundError, ValueError) as error:
        raise ImportError(
            f"fairseq_mm is a plugin of fairseq, which cannot be imported ({error}). Install it: "
            "pip uninstall -y fairseq, then pip install 'fairseq-mm[fairseq]' (Python 3.10: with "
            "a pip older than 24.1)."
        ) from None


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Hide warnings inside the context; restore the root logger's handlers and level at the end.

    Nothing is done if fairseq is imported already.
    """
    # fairseq's commands have imported fairseq and configured their log before they import a plugin
    if "fairseq" in sys.modules:
        yield
        return
    import torch  # noqa: F401  (imported before warnings are hidden)

    # some of fairseq's tasks and models call logging.basicConfig, one with the level DEBUG
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    if not handlers and logging.lastResort is not None:
        # basicConfig does nothing if there is a handler; this handler prints as if there were none
        root.addHandler(logging.lastResort)
    try:
        with warnings.catch_warnings():
            if not is_verbose():
                # PyTorch 2.4 and newer warn of functions that fairseq and fairscale call on import
                warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def defer_configs(config_store: Any) -> None:
    """Make hydra's class ``ConfigStore`` wait with adding configs until one of them is read."""
    store = config_store.store
    waiting: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    is_storing = False

    def read(self: Any) -> Any:
        nonlocal is_storing
        # hydra's `store` reads the attribute, too
        if not is_storing:
            is_storing = True
            try:
                while waiting:
                    args, kwargs = waiting.pop(0)
                    store(self, *args, **kwargs)
            finally:
                # after an error, the next reading goes on with the other configs
                is_storing = False
        return self.__dict__["repo"]

    def write(self: Any, value: Any) -> None:
        self.__dict__["repo"] = value

    config_store.store = lambda self, *args, **kwargs: waiting.append((args, kwargs))
    # every method of the class that looks for a config reads this attribute
    config_store.repo = property(read, write)


class _Deferred:
    """Stand-in for a function; a call imports the function's module and calls the function."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __getattr__(self, name: str) -> "_Deferred":
        # copy, pickle and inspect look for such methods, and would find a function for each
        if name.startswith("__"):
            raise AttributeError(name)
        module, path = self._place
        return _Deferred(module, f"{path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, path = self._place
        function: Any = importlib.import_module(module)
        for name in path.split("."):
            function = getattr(function, name)
        return function(*args, **kwargs)


class _Placeholder(ModuleType):
    """Stand-in for a module; each of its attributes is a :class:`_Deferred` function."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, name)


@contextlib.contextmanager
def deferred(names: tuple[str, ...]) -> Iterator[None]:
    """Replace modules that are not loaded yet by placeholders in ``sys.modules``, inside the
    context; ``names`` has packages before their submodules."""
    placed = {}
    if defers_imports and not any(name in sys.modules for name in names):
        placed = {name: _Placeholder(name) for name in names}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, placeholder in placed.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]


def quiet_commands() -> None:
    """Undo the log configuration of fairseq's import, and hide warnings that fairseq causes."""
    root = logging.getLogger()
    # a module of fairseq has set both before all commands but fairseq-train set their own log
    if root.level == logging.DEBUG and len(root.handlers) == 1:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
        if "fairseq_cli.generate" in sys.modules:
            root.handlers.clear()  # it sets its log when it runs, if no other is there
    if not is_verbose():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
        warnings.filterwarnings("ignore", _MESSAGES, UserWarning)


def repair_index_of_fasta() -> None:
    """Make fairseq quote the file name of ``--dataset-impl fasta`` in a shell command."""
    from fairseq.data.fasta_dataset import FastaDataset

    original = FastaDataset._build_index
    FastaDataset._build_index = lambda self, path: original(self, shlex.quote(path))


def attention_keeps_beam_size() -> bool:
    from fairseq.modules import MultiheadAttention

    return "beam_size" in MultiheadAttention.forward.__code__.co_names


def repair_beams_in_training() -> None:
    """Make fairseq's attention use the beam size of a generation in incremental decoding only."""
    from fairseq.modules import MultiheadAttention
    from fairseq.sequence_generator import EnsembleModel

    forward, set_beam_size = MultiheadAttention.forward, EnsembleModel.set_decoder_beam_size

    @functools.wraps(forward)
    def forward_of_beams(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        incremental_state: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        beam = self.beam_size
        if incremental_state is None:
            self.beam_size = 1
        try:
            return forward(
                self, query, key, value, key_padding_mask, incremental_state, *args, **kwargs
            )
        finally:
            self.beam_size = beam

    @functools.wraps(set_beam_size)
    def set_every_beam_size(self: Any, beam_size: int) -> None:
        set_beam_size(self, beam_size)
        # fairseq does not reset the beam size of an earlier generator to 1
        if beam_size == 1:
            for module in self.modules():
                if isinstance(module, MultiheadAttention):
                    module.beam_size = 1

    MultiheadAttention.forward = forward_of_beams
    EnsembleModel.set_decoder_beam_size = set_every_beam_size


def repair_token_blocks() -> None:
    """Provide ``numpy.compat.long``, which NumPy 2 lacks, to two modules of fairseq."""
    import numpy as np
    from fairseq.data import language_pair_dataset, token_block_dataset

    numpy_with_compat: Any = types.ModuleType("numpy")
    numpy_with_compat.__dict__.update(vars(np))
    numpy_with_compat.compat = types.SimpleNamespace(long=int)
    for module in (language_pair_dataset, token_block_dataset):
        module.np = numpy_with_compat


def repair_repeat_blocking() -> None:
    """Repair ``--no-repeat-ngram-size``, which has no effect without fairseq's CUDA extension."""
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    NGramRepeatBlock._no_repeat_ngram = _no_repeat_ngram


def _no_repeat_ngram(
    self: Any, tokens: Any, lprobs: Any, bsz: int, beam_size: int, step: int
) -> Any:
    """Set the log-probability of words that would repeat an n-gram to -inf, unless the word is the
    only possible one; ``tokens`` is [N, L] and ``lprobs`` [N, vocabulary] for N beams."""
    # tokens [N, L] are </s>, `step` words, and a buffer that later steps fill, with whose end
    # fairseq compares instead of the last words
    n = self.no_repeat_ngram_size
    if step < n:
        return lprobs
    words = tokens[:, 1 : step + 1]
    windows = words.unfold(1, n, 1)  # [N, step - n + 1, n]
    last = words[:, step - n + 1 :].unsqueeze(1)
    is_allowed = windows[:, :, : n - 1].ne(last).any(dim=2)
    is_allowed |= _have_one_word(lprobs, is_allowed).unsqueeze(1)
    # The logarithm is -inf for a repeat and 0 otherwise. A sum needs no list of the repeats, which
    # would wait for a GPU.
    return lprobs.scatter_add_(1, windows[:, :, n - 1], is_allowed.log().to(lprobs.dtype))


def _have_one_word(lprobs: Any, is_allowed: Any) -> Any:
    """Return a mask [N], True at rows with at most one possible word; it may be False for rows in
    which all of ``is_allowed`` [N, W] is True."""
    import torch

    if lprobs.is_cuda:
        return lprobs.gt(-float("inf")).sum(dim=1, dtype=torch.int32) <= 1
    # A CPU takes long to read a whole vocabulary, and most rows have no repeats. On a GPU, listing
    # the rows would wait.
    result = is_allowed.new_zeros(len(lprobs))
    rows = (~is_allowed).any(dim=1).nonzero().squeeze(1)
    result[rows] = lprobs[rows].gt(-float("inf")).sum(dim=1, dtype=torch.int32) <= 1
    return result
