"""Switches a model in training to evaluation mode for a while."""

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, *, has_gradients: bool = False) -> Iterator[None]:
    """Set evaluation mode in a ``with`` block; then restore the mode of every submodule.

    Args:
        model: Model, whose submodules may already be in evaluation mode.
        has_gradients: True if gradients are computed. Recurrent layers then stay in training mode,
            without dropout, because cuDNN computes gradients in no other mode.
    """
    modes = [(part, part.training) for part in model.modules()]
    recurrent = [part for part, _ in modes if isinstance(part, nn.RNNBase) and has_gradients]
    rates = [layer.dropout for layer in recurrent]
    model.eval()
    for layer in recurrent:
        layer.dropout = 0.0
        layer.training = True
    try:
        yield
    finally:
        # not by train(), which would change all parts alike
        for part, mode in modes:
            part.training = mode
        for layer, rate in zip(recurrent, rates):
            layer.dropout = rate
