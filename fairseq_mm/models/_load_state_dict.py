"""Weights of another size or architecture are a user's mistake, and said in one line."""

from collections.abc import Mapping
from typing import Any

from fairseq_mm.errors import UserError

_SHOWN = 2  # number of PyTorch's differences that the message quotes


class LoadStateDictMixin:
    """Mixin that explains why a state dict does not fit; must precede fairseq's model among the
    bases.

    For any error, fairseq's trainer prints forty lines and says only that the architectures must
    match. If the error was raised from a :class:`UserError`, the message of the latter is shown
    instead.
    """

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """
        Raises:
            UserError: if the weights do not fit.
        """
        model: Any = super()
        try:
            return model.load_state_dict(state_dict, *args, **kwargs)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
            shown = " ".join(_shortened(line) for line in lines[:_SHOWN])
            more = f" ({len(lines) - _SHOWN} more lines)" if len(lines) > _SHOWN else ""
            cfg = kwargs.get("model_cfg")  # fairseq passes it in some of its calls
            arch = "the model" if cfg is None else f"--arch {cfg._name}"
            raise UserError(
                f"its weights do not fit {arch}: {shown.rstrip('.')}{more}; the checkpoint was "
                "trained with other options."
            ) from None


def _shortened(line: str) -> str:
    return line if len(line) <= 200 else f"{line[:197]}..."
