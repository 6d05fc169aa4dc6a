"""Weights of another size or architecture are a user's mistake, and said in one line."""

from collections.abc import Mapping
from typing import Any

from fairseq_mm.errors import UserError

_SHOWN = 2  # of the differences that PyTorch lists


class LoadStateDictMixin:
    """To stand before fairseq's model among the bases.

    fairseq's trainer says of any error only that the architectures must match, after forty lines;
    a :class:`UserError` that it was raised from is what is shown instead.
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
            cfg = kwargs.get("model_cfg")  # of fairseq, where it knows it
            arch = "the model" if cfg is None else f"--arch {cfg._name}"
            raise UserError(
                f"its weights do not fit {arch}: {shown.rstrip('.')}{more}; the checkpoint was "
                "trained with other options."
            ) from None


def _shortened(line: str) -> str:
    return line if len(line) <= 200 else f"{line[:197]}..."
