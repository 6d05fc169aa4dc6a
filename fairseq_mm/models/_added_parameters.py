"""Parameters that a pretrained model does not have: a parameter group of their own."""

from torch import nn

ADDED = "added"


def mark_added(module: nn.Module) -> None:
    """Gives each parameter of ``module`` the attribute ``param_group = "added"``.

    Parameters keep it when they are moved or cast; the others have none.
    """
    for parameter in module.parameters():
        parameter.param_group = ADDED  # type: ignore[attr-defined]
