"""fairseq_mm: multimodal and long-form generation for fairseq (``--user-dir fairseq_mm``).

Importing the package registers its tasks, models and criterions with fairseq. fairseq itself
scans only ``tasks/`` and ``models/``, and nothing at all when the package was imported before,
so the imports stand here.
"""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

if TYPE_CHECKING:
    from fairseq_mm.captioner import Captioner

__version__ = "0.1.0"


def register() -> None:
    """Registers tasks, models and criterions with fairseq; calling it again changes nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    from fairseq_mm import compat

    compat.apply()
    from fairseq_mm import criterions, errors, models, tasks  # noqa: F401

    errors.report_on_exit()


def from_pretrained(
    path: Union[str, PathLike, Sequence[Union[str, PathLike]]],
    *,
    weights: Optional[str] = None,
    device: Optional[str] = None,
) -> "Captioner":
    """A captioner of photographs, see :func:`fairseq_mm.captioner.from_pretrained`."""
    register()
    from fairseq_mm import captioner

    return captioner.from_pretrained(path, weights=weights, device=device)


# The `fairseq-mm` command registers only where it builds a model.
if Path(sys.argv[0] if sys.argv else "").stem != "fairseq-mm":
    register()
