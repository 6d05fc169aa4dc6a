"""Compiles models for training with ``torch.compile``."""

import contextlib
from collections.abc import Iterator
from typing import Any

from fairseq_mm.errors import UserError, first_line

WITHOUT = "Train without --compile, which changes the speed alone."


def compile_model(model: Any) -> None:
    """Compile the forward pass of a model when it is first called; its parameters keep their names.

    Raises:
        UserError: if PyTorch is older than 2.0.
    """
    if not hasattr(model, "compile"):
        raise UserError(f"--compile: needs PyTorch 2.0 or newer. {WITHOUT}")
    model.compile()


@contextlib.contextmanager
def explaining_failed_compilation() -> Iterator[None]:
    """Explain in a ``with`` block why a compiled model cannot be compiled.

    Raises:
        UserError: if PyTorch's compiler fails, for example because there is no C++ compiler.
    """
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        cause = first_line(error)
        raise UserError(f"--compile: the model cannot be compiled: {cause}. {WITHOUT}") from None
