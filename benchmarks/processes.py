"""How far training by two processes ends from training by one, for every system.

    OMP_NUM_THREADS=1 python benchmarks/processes.py [--systems m_rnn glac] [--updates 6]

Two processes on the CPU (gloo) and one with ``--update-freq 2`` begin with the same weights and
take the same batches in each update, without dropout; the number of batches is odd, so that at the
end of an epoch one process has none. Embeddings draw random negatives: those of a batch would be
others. The table in Markdown has

- the gradient's distance: of the whole gradient of the first update, in its own length;
- for each backend, the distance of the weights after all updates with Adam, in the length of the
  way from the first weights to the last of one process, and the largest difference of a loss.

``--zero-sharding os`` runs with ``legacy_ddp`` and shards the optimizer's state. fully_sharded runs
on GPUs alone; what it takes from them has a stand-in here (``tests/sharding_stand_ins.py``).
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any

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

from fairseq_mm.errors import UserError

# examples of a batch, which give an odd number of batches
BATCH = {"captions": 4, "stories": 6, "prompts": 3, "videos": 3}
SGD = ("--optimizer", "sgd", "--lr", "1", "--clip-norm", "0")
# they need fairscale, the extra `sharding`
SHARDED = ("sharded optimizer", "fully_sharded")
BACKENDS = {
    "legacy_ddp": ("--ddp-backend", "legacy_ddp"),
    "pytorch_ddp": ("--ddp-backend", "pytorch_ddp"),
    "sharded optimizer": ("--ddp-backend", "legacy_ddp", "--zero-sharding", "os"),
    "fully_sharded": ("--ddp-backend", "fully_sharded"),
}


def available_backends() -> list[str]:
    """Those that run here."""
    has_shards = importlib.util.find_spec("fairscale") is not None
    return [name for name in BACKENDS if has_shards or name not in SHARDED]


def compare(one: Trained, two: Trained) -> dict[str, float]:
    """Distances of two trainings from the same weights."""
    return {
        "distance": distance(one.weights, two.weights, one.start),
        "loss": max(abs(a - b) for a, b in zip(one.losses, two.losses)),
    }


def measure(root: Path, system: System, updates: int) -> dict[str, Any]:
    """The figures of one system, or the message of what failed, by column.

    Raises:
        ValueError: if each update has a batch for both processes: an uneven end is to be seen.
    """
    options = ["--cpu", "--batch-size", str(BATCH[system.family])]
    if system.kind == "embedding":
        options += ["--negatives", "random", "--num-negatives", "5"]

    def trained(processes: int, count: int, *others: str) -> Trained:
        cfg = configuration(root, system, *options, *others)
        return train_by(processes, cfg, count)

    step = trained(1, 1, *SGD, "--update-freq", "2")
    whole = trained(1, updates, *ADAM, "--update-freq", "2")
    if min(whole.batches) != 1:
        raise ValueError(f"{system.name}: {updates} updates have {whole.batches} batches.")

    def gradient() -> dict[str, Any]:
        return compare(step, trained(2, 1, *SGD, *BACKENDS["legacy_ddp"]))

    def weights(backend: str) -> dict[str, Any]:
        if backend == "fully_sharded" and whole.num_fixed:
            raise UserError(f"refused, {whole.num_fixed} parameters are fixed")
        return compare(whole, trained(2, updates, *ADAM, *BACKENDS[backend]))

    runs = {name: functools.partial(weights, name) for name in available_backends()}
    return try_all({"gradient": gradient, **runs})


def measure_row(root: Path, system: System, updates: int) -> tuple[dict[str, Any], list[str]]:
    """The figures and the cells of a row."""
    found = measure(root, system, updates)
    cells = [x.get("failed") or f"{x['distance']:.0e} ({x['loss']:.0e})" for x in found.values()]
    return found, cells


if __name__ == "__main__":
    print_table(__doc__, 6, ["gradient", *available_backends()], measure_row)
