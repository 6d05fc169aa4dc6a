"""Repairs the loading and batching of data in fairseq's commands."""

import functools
import logging
import weakref
from typing import Any

import numpy as np

from fairseq_mm.compat.scope import names_ours
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)


def repair_disabled_validation() -> None:
    """Make ``--disable-validation`` work for data folders without validation subsets.

    Stock fairseq 0.12.2 loads validation subsets in spite of the option. Without the option, a data
    folder with subsets that ``--valid-subset`` does not name is refused in one line.
    """
    from fairseq import tasks
    from fairseq.data import data_utils

    set_up, check = tasks.setup_task, data_utils.raise_if_valid_subsets_unintentionally_ignored
    # the check of subsets gets only the config; a weak reference, so that a task can be freed
    newest: list[weakref.ref[Any]] = []

    @functools.wraps(set_up)
    def setup_task(*args: Any, **kwargs: Any) -> Any:
        task = set_up(*args, **kwargs)
        newest[:] = [weakref.ref(task)]
        return task

    @functools.wraps(check)
    def check_subsets(cfg: Any) -> None:
        try:
            check(cfg)
        except ValueError:
            if not names_ours(cfg):
                raise
            _refuse_ignored_subsets(cfg)
        task = newest[0]() if newest else None
        if task is not None and cfg.dataset.disable_validation and names_ours(cfg):
            combined = cfg.dataset.combine_valid_subsets
            # fairseq loads the validation subsets directly after it has checked their names
            _ignore_loads(task, 1 if combined else len(cfg.dataset.valid_subset.split(",")))

    tasks.setup_task = setup_task
    data_utils.raise_if_valid_subsets_unintentionally_ignored = check_subsets


def _refuse_ignored_subsets(cfg: Any) -> None:
    """Raise UserError if the data folder has validation subsets that ``--valid-subset`` lacks."""
    from fairseq.data import data_utils

    # fairseq raises its error also for files such as valid1.references.jsonl, which are no subsets
    files = data_utils._find_extra_valid_paths(cfg.task.data)
    ignored = {name.partition(".")[0] for name in files}
    ignored -= set(cfg.dataset.valid_subset.split(","))
    if ignored:
        raise UserError(
            f"--valid-subset {cfg.dataset.valid_subset}: {cfg.task.data} also has "
            f"{', '.join(sorted(ignored))}; name them there, or give --ignore-unused-valid-subsets."
        )


def _ignore_loads(task: Any, count: int) -> None:
    """Make the next ``count`` calls of ``task.load_dataset`` do nothing."""
    remaining = count

    def ignore(split: str, *args: Any, **kwargs: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            del task.load_dataset  # restores the method of the class

    task.load_dataset = ignore


def warn_of_dropped_batches() -> None:
    """Log a warning if the batches of a dataset do not contain all of its examples.

    fairseq-fixed and fairseq's main branch silently drop a last batch whose size is not a multiple
    of ``--required-batch-size-multiple`` (8 by default), also in validation and generation.
    """
    from fairseq.data import FairseqDataset

    original = FairseqDataset.batch_by_size

    @functools.wraps(original)
    def batch_by_size(
        self: Any,
        indices: Any,
        max_tokens: Any = None,
        max_sentences: Any = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        batches = original(self, indices, max_tokens, max_sentences, required_batch_size_multiple)
        dropped = len(indices) - sum(map(len, batches))
        # datasets that define batch_by_size themselves, as in this package, decide on their own
        if dropped and type(self).batch_by_size is batch_by_size:
            logger.warning(
                f"{dropped} of {len(indices)} examples are left out: fairseq drops a last batch "
                f"whose size is no multiple of {required_batch_size_multiple}; to keep them, give "
                "--required-batch-size-multiple 1"
            )
        return batches

    FairseqDataset.batch_by_size = batch_by_size


def repair_index_of_fasta() -> None:
    """Make ``--dataset-impl fasta`` index its files in Python; fairseq runs a shell command."""
    from fairseq.data.fasta_dataset import FastaDataset

    # fairseq puts the file's name into a shell command, and a checkpoint can choose the option and
    # the name: fairseq-validate sets up the task of the checkpoint
    FastaDataset._build_index = _index_of_fasta


def _index_of_fasta(self: Any, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset in bytes and the number of letters of each sequence in a FASTA file.

    ``path`` is the path without its suffix ``.fasta``.
    """
    offsets, sizes = [], []
    position = 0
    with open(f"{path}.fasta", "rb") as file:
        for line in file:
            if line.startswith(b">"):
                offsets.append(position)
                sizes.append(0)
            elif sizes:
                sizes[-1] += len(line.strip())
            position += len(line)
    return np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64)
