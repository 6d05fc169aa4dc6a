"""Computes attention weights and gates of models for ``fairseq-mm inspect``."""

import math
from typing import Any


def to_array(x: Any) -> Any:
    """Convert a tensor of any device and type, also bfloat16, to a float64 NumPy array."""
    return x.double().cpu().numpy()


def rounded(x: Any) -> Any:
    """Convert arrays, dicts and nested lists to JSON values with six decimals; NaN becomes null."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, (list, tuple)):
        return [rounded(part) for part in x]
    if isinstance(x, dict):
        return {name: rounded(part) for name, part in x.items()}
    # bool is an int, too: flags stay as they are
    if isinstance(x, (int, str)):
        return x
    return None if math.isnan(x) else round(float(x), 6)
