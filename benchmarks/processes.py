"""How far training by two processes ends from training by one, for every system.

    OMP_NUM_THREADS=1 python benchmarks/processes.py [--systems m_rnn glac] [--updates 6]

Two processes on the CPU (gloo) and one with ``--update-freq 2`` begin with the same weights and
take the same batches in each update, without dropout; the number of batches is odd, so that at the
end of an epoch one process has none. Embeddings draw random negatives: those of a batch would be
others. The table in Markdown has

- the gradient's distance: of the whole gradient of the first update, in its own length;
- for each backend, the distance of the weights after all updates with Adam, in the length of the
  way from the first weights to the last of one process, and the largest difference of a loss.

``--zero-sharding os`` runs with ``legacy_ddp`` and shards the optimizer's state.
"""

import argparse
import importlib.util
import json
import logging
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

# examples of a batch, which give an odd number of batches
BATCH = {"captions": 4, "stories": 6, "prompts": 3, "videos": 2}
SGD = ("--optimizer", "sgd", "--lr", "1", "--clip-norm", "0")
SHARDED = "--zero-sharding"
BACKENDS = {
    "legacy_ddp": ("--ddp-backend", "legacy_ddp"),
    "pytorch_ddp": ("--ddp-backend", "pytorch_ddp"),
    "sharded optimizer": ("--ddp-backend", "legacy_ddp", SHARDED, "os"),
}


def available_backends() -> list[str]:
    """Those that run here: shards need fairscale, the extra ``sharding``."""
    has_shards = importlib.util.find_spec("fairscale") is not None
    return [name for name, options in BACKENDS.items() if has_shards or SHARDED not in options]


def compare(one: Trained, two: Trained) -> dict[str, float]:
    """Distances of two trainings from the same weights."""
    return {
        "distance": distance(one.weights, two.weights, one.start),
        "loss": max(abs(a - b) for a, b in zip(one.losses, two.losses)),
    }


def measure(root: Path, system: Any, updates: int) -> dict[str, Any]:
    """The figures of one system, or the message of what failed, by column."""
    options = ["--cpu", "--batch-size", str(BATCH[system.family])]
    if system.kind == "embedding":
        options += ["--negatives", "random", "--num-negatives", "5"]
    found: dict[str, Any] = {}
    rows = {"gradient": (1, SGD, BACKENDS["legacy_ddp"])}
    rows.update({name: (updates, ADAM, BACKENDS[name]) for name in available_backends()})
    one: dict[Any, Trained] = {}
    for name, (count, optimizer, backend) in rows.items():
        if optimizer not in one:
            alone = (*options, *optimizer, "--update-freq", "2")
            one[optimizer] = train_by(1, configuration(root, system, *alone), count)
        try:
            together = configuration(root, system, *options, *optimizer, *backend)
            found[name] = compare(one[optimizer], train_by(2, together, count))
        except Exception as error:  # the other backends are tried all the same
            found[name] = {"failed": f"{type(error).__name__}: {first_line(error)}"}
    return found


def cell(figures: dict[str, Any]) -> str:
    if "failed" in figures:
        return str(figures["failed"])
    return f"{figures['distance']:.0e} ({figures['loss']:.0e})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, help="default: all")
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    backends = available_backends()
    print("| system | gradient |", *(f"{name} |" for name in backends))
    print("|---" * (len(backends) + 2) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack_data(root)
        for system in chosen_systems(args.systems):
            row = results[system.name] = measure(root, system, args.updates)
            print(f"| {system.name} | " + " | ".join(map(cell, row.values())) + " |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
