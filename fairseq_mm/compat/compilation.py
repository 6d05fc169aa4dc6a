"""Compiles models for training with ``torch.compile``."""

import contextlib
from collections.abc import Iterator
from typing import Any

from fairseq_mm.errors import UserError, first_line

WITHOUT = "Train without --compile, which changes the speed alone."


def compile_model(model: Any) -> None:
    """Compile the forward pass of a model at its first call; parameters keep their names."""
    try:
        model.compile()
    except OSError as error:
        raise _failed(error) from None


@contextlib.contextmanager
def explaining_failed_compilation() -> Iterator[None]:
    """Explain in a ``with`` block why a compiled model cannot be compiled."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        # the message of an error in a backend begins with the backend's name, on a line of its own
        raise _failed(getattr(error, "inner_exception", error)) from None


def _failed(error: BaseException) -> UserError:
    cause = first_line(error)
    return UserError(f"--compile: the model cannot be compiled: {cause}. {WITHOUT}")
