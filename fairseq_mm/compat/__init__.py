"""Contains repairs of fairseq, and all code that depends on versions of fairseq, PyTorch or Python.

:data:`.repairs.REPAIRS` lists the repairs: functions of fairseq that are replaced at run time,
because they have a defect or are not safe, with the reason of each.

Tested with fairseq-fixed 0.12.3.1 on Python 3.11 with PyTorch 2.14. A smoke test runs with stock
fairseq 0.12.2 on Python 3.10 with PyTorch 2.6.
"""

from fairseq_mm.compat import repairs  # noqa: F401  (hands its table to activation)
from fairseq_mm.compat.activation import activate, apply, is_ours, is_user_dir
from fairseq_mm.compat.command_line import check_hydra_recipe
from fairseq_mm.compat.loading import load_torch_file

__all__ = [
    "activate",
    "apply",
    "check_hydra_recipe",
    "is_ours",
    "is_user_dir",
    "load_torch_file",
]
