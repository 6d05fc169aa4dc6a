"""Parameters that a pretrained model does not have, told apart by name for the optimizer."""

from torch import nn

NEW = "new"


def mark_new(module: nn.Module) -> None:
    """Gives each parameter of ``module`` the attribute ``param_group = "new"``.

    Parameters keep it when they are moved or cast; the others have none.
    """
    for parameter in module.parameters():
        parameter.param_group = NEW  # type: ignore[attr-defined]
