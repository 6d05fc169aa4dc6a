"""``fairseq-train`` whose data loader starts its workers in a given way:

python benchmarks/_train_with_workers.py {fork,spawn} {persistent,fresh} OPTIONS OF FAIRSEQ-TRAIN
"""

import multiprocessing
import sys
from typing import Any

from fairseq_cli.train import cli_main
from torch.utils.data import DataLoader


def set_persistence(persistent: bool) -> None:
    """Of the workers of every data loader, which otherwise fairseq decides."""
    original = DataLoader.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["persistent_workers"] = persistent and kwargs.get("num_workers", 0) > 0
        original(self, *args, **kwargs)

    DataLoader.__init__ = build  # type: ignore[method-assign]


if __name__ == "__main__":
    _, start, persistence, *options = sys.argv
    multiprocessing.set_start_method(start, force=True)
    set_persistence(persistence == "persistent")
    sys.argv = ["fairseq-train", *options]
    cli_main()
