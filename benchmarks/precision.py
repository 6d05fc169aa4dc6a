"""How far each precision of training ends from float32, for every system.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--systems m_rnn glac] [--updates 50]

Trains each system of the package on small data, without dropout, from the same weights over the
same batches, with ``--fp16``, ``--memory-efficient-fp16``, ``--bf16``, ``--memory-efficient-bf16``
and, on a GPU, ``--amp``, and prints a table in Markdown:

- the loss of the last ten updates in float32, and by how much each precision's differs from it;
- the distance of the weights from those of float32, in the length of the way from the first weights
  to float32's last (in parentheses);
- ``not finite`` where a loss was NaN or infinite, and the message where training ended.
"""

import functools
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from _system_training import (
    ADAM,
    System,
    Trained,
    configuration,
    distance,
    print_table,
    train_by,
    try_all,
)

PRECISIONS = ("fp16", "memory-efficient-fp16", "bf16", "memory-efficient-bf16")
LAST = 10  # updates whose losses are compared
ON_GPU = torch.cuda.is_available()
COLUMNS = (*PRECISIONS, "amp") if ON_GPU else PRECISIONS


def last_loss(trained: Trained) -> float:
    return statistics.mean(trained.losses[-LAST:])


def measure(root: Path, system: System, updates: int) -> tuple[dict[str, Any], list[str]]:
    """The figures and the cells of a row."""

    def trained(*options: str) -> Trained:
        device = () if ON_GPU else ("--cpu",)
        return train_by(1, configuration(root, system, *ADAM, *device, *options), updates)

    full = trained()

    def compare(precision: str) -> dict[str, Any]:
        other = trained(f"--{precision}")
        if not all(map(math.isfinite, other.losses)):
            return {"failed": "not finite"}
        return {
            "loss": last_loss(other) - last_loss(full),
            "distance": distance(full.weights, other.weights, full.start),
        }

    found = try_all({name: functools.partial(compare, name) for name in COLUMNS})
    cells = [f"{last_loss(full):.3f}"]
    for x in found.values():
        cells.append(x["failed"] if "failed" in x else f"{x['loss']:+.3f} ({x['distance']:.2f})")
    return {"float32": last_loss(full), **found}, cells


if __name__ == "__main__":
    print_table(__doc__, 50, ["float32", *COLUMNS], measure)
