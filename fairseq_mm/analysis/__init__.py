"""Recorders of attention weights and gates: data that ``fairseq-mm inspect`` writes and
:mod:`fairseq_mm.report` draws."""

import math
from typing import Any


def rounded(x: Any) -> Any:
    """Convert numbers of arrays and nested lists for JSON: six digits after the point, null for
    NaN.
    """
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, (list, tuple)):
        return [rounded(part) for part in x]
    if isinstance(x, dict):
        return {name: rounded(part) for name, part in x.items()}
    return x if isinstance(x, (int, str)) else None if math.isnan(x) else round(float(x), 6)
