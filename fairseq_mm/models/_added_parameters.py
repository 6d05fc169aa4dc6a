"""Parameters that a pretrained model does not have: a parameter group of their own."""

from torch import nn

ADDED = "added"


def mark_added(module: nn.Module) -> None:
    """Set the attribute ``param_group = "added"`` on each parameter of a module.

    Parameters keep the attribute when they are moved or cast. Pretrained parameters do not have it.
    """
    for parameter in module.parameters():
        parameter.param_group = ADDED  # type: ignore[attr-defined]
