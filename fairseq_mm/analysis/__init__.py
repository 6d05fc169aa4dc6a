"""Recorders of attention weights and gates: data that ``fairseq-mm inspect`` writes and
:mod:`fairseq_mm.report` draws."""

import math
from collections.abc import Sequence
from typing import Any

from fairseq_mm.errors import UserError


def check_one_model(files: Sequence[str]) -> None:
    """Raise a UserError if the paths of checkpoints name an ensemble."""
    if len(files) > 1:
        raise UserError(f"{', '.join(files)}: give one model, not {len(files)}.")


def to_array(x: Any) -> Any:
    """Convert a tensor to a float64 array; NumPy has no bfloat16, and reads no GPU's memory."""
    return x.double().cpu().numpy()


def rounded(x: Any) -> Any:
    """Convert arrays and nested lists for JSON: six decimals, and null for NaN."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, (list, tuple)):
        return [rounded(part) for part in x]
    if isinstance(x, dict):
        return {name: rounded(part) for name, part in x.items()}
    # bool is an int, too: flags stay as they are
    return x if isinstance(x, (int, str)) else None if math.isnan(x) else round(float(x), 6)
