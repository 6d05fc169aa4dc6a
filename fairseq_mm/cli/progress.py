"""How far the work of a command is."""

import sys
from typing import Any


def progress_bar(total: int, unit: str, *, many: int = 50) -> Any:
    """A bar on stderr; none where stderr is no terminal, or there are few inputs.

    Args:
        total: number of inputs.
        unit: what they are, such as ``images``.
        many: number of inputs from which on there is a bar.
    """
    from tqdm import tqdm

    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=total < many or None)
