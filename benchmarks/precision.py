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

import argparse
import json
import logging
import math
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

from _system_training import (
    ADAM,
    SYSTEMS,
    Trained,
    chosen_systems,
    configuration,
    distance,
    first_line,
    train_by,
    unpack_data,
)

PRECISIONS = ("fp16", "memory-efficient-fp16", "bf16", "memory-efficient-bf16", "amp")
LAST = 10  # updates whose losses are compared


def last_loss(trained: Trained) -> float:
    return statistics.mean(trained.losses[-LAST:])


def compare(full: Trained, other: Trained) -> dict[str, Any]:
    """A cell of the table."""
    if not all(map(math.isfinite, other.losses)):
        return {"failed": "not finite"}
    return {
        "loss": last_loss(other) - last_loss(full),
        "distance": distance(full.weights, other.weights, full.start),
    }


def cell(found: dict[str, Any]) -> str:
    if "failed" in found:
        return str(found["failed"])
    return f"{found['loss']:+.3f} ({found['distance']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="default: all")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    import torch

    on_gpu = torch.cuda.is_available()
    precisions = PRECISIONS if on_gpu else PRECISIONS[:-1]
    device = () if on_gpu else ("--cpu",)
    results: dict[str, Any] = {}
    print("| system | float32 |", *(f"{name} |" for name in precisions))
    print("|---" * (len(precisions) + 2) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack_data(root)
        for system in chosen_systems(args.systems):
            full = train_by(1, configuration(root, system, *ADAM, *device), args.updates)
            row: dict[str, Any] = {"float32": last_loss(full)}
            for name in precisions:
                cfg = configuration(root, system, *ADAM, *device, f"--{name}")
                try:
                    row[name] = compare(full, train_by(1, cfg, args.updates))
                except Exception as error:  # the other precisions are tried all the same
                    row[name] = {"failed": f"{type(error).__name__}: {first_line(error)}"}
            results[system.name] = row
            cells = [cell(row[name]) for name in precisions]
            print(
                f"| {system.name} | {row['float32']:.3f} | " + " | ".join(cells) + " |", flush=True
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
