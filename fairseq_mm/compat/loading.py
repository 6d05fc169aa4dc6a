"""fairseq's loading of checkpoints: checked, whichever command or model asks for it."""

import os
import sys
import types
from typing import Any

from fairseq_mm.compat.evaluated_options import EVALUATED, check_options, evaluate_literal

# where fairseq reads files of tensors that a user, or a checkpoint's options, name
_LOADING = (
    "fairseq.checkpoint_utils",
    "fairseq.data.codedataset",
    "fairseq.models.speech_to_text.xm_transformer",
    "fairseq.models.text_to_speech.vocoder",
)


def guard_loading() -> None:
    """``torch.load`` in fairseq's modules: what a checkpoint's options name is not evaluated.

    This is the one place that all checkpoints come through, before fairseq looks at their options:
    with ``fairseq-mm`` and ``from_pretrained``, in fairseq's own commands, and where a model loads
    another one. Goes when fairseq evaluates no option.
    """
    for name in _LOADING:
        module = sys.modules.get(name)
        if module is not None:
            vars(module)["torch"] = _GuardedTorch()


class _GuardedTorch(types.ModuleType):
    """PyTorch with another ``load``."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def load(file: Any, *args: Any, **options: Any) -> Any:
        import torch

        state = torch.load(file, *args, **options)
        check_options(state, _name_of(file))
        return state


def _name_of(file: Any) -> str:
    name = getattr(file, "name", file)
    return os.fspath(name) if isinstance(name, (str, os.PathLike)) else "checkpoint"


def guard_evaluation() -> None:
    """``eval`` in fairseq's modules reads literals, and nothing else.

    Behind :func:`guard_loading`: for options that reach ``eval`` by a name, or in a way, that its
    table does not know. Goes with it.
    """
    for name in ("fairseq.utils", *sorted({module_of(place) for place in EVALUATED})):
        module = sys.modules.get(name)
        if module is not None:
            vars(module)["eval"] = evaluate_literal


def module_of(place: str) -> str:
    file = place.partition(":")[0]
    return "fairseq." + file[: -len(".py")].replace("/", ".")
