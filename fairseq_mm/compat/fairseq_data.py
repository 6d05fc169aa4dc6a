"""Repairs of what fairseq's commands load and batch."""

import functools
import logging
import weakref
from typing import Any

import numpy as np

from fairseq_mm.compat.scope import names_ours
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)


def repair_disabled_validation() -> None:
    """``--disable-validation`` does not load the validation subsets.

    Stock fairseq 0.12.2 loads them before training all the same, so that a data folder without
    them, or without what the model needs of them, does not train. Newer builds do not check the
    subsets' names without validation, so that nothing is changed there. Goes with stock fairseq.
    All builds print a traceback where the folder has other validation subsets, which are ignored.
    """
    from fairseq import tasks
    from fairseq.data import data_utils

    set_up, check = tasks.setup_task, data_utils.raise_if_valid_subsets_unintentionally_ignored
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
            _ignore_loads(task, 1 if combined else len(cfg.dataset.valid_subset.split(",")))

    tasks.setup_task = setup_task
    data_utils.raise_if_valid_subsets_unintentionally_ignored = check_subsets


def _refuse_ignored_subsets(cfg: Any) -> None:
    """
    Raises:
        UserError: If the data folder has validation subsets that --valid-subset leaves out. fairseq
            also takes valid1.references.jsonl for a subset.
    """
    from fairseq.data import data_utils

    files = data_utils._find_extra_valid_paths(cfg.task.data)
    ignored = {name.partition(".")[0] for name in files}
    ignored -= set(cfg.dataset.valid_subset.split(","))
    if ignored:
        raise UserError(
            f"--valid-subset {cfg.dataset.valid_subset}: {cfg.task.data} also has "
            f"{', '.join(sorted(ignored))}; name them there, or give --ignore-unused-valid-subsets."
        )


def _ignore_loads(task: Any, count: int) -> None:
    """The next ``count`` calls of ``task.load_dataset`` do nothing.

    They are those of the validation subsets: fairseq's training makes them directly after its check
    of the subsets' names.
    """
    remaining = count

    def ignore(split: str, *args: Any, **kwargs: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            del task.load_dataset  # the class's own again

    task.load_dataset = ignore


def warn_of_dropped_batches() -> None:
    """One line where batches do not cover all examples that they are made of.

    fairseq-fixed and fairseq's main branch drop a last batch whose size is no multiple of
    ``--required-batch-size-multiple`` (8 by default), in validation and generation too, and say
    nothing. Datasets with a ``batch_by_size`` of their own, as this plugin's, are left alone. Goes
    when fairseq drops examples in training alone, or says so.
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
        if dropped and type(self).batch_by_size is batch_by_size:
            logger.warning(
                f"{dropped} of {len(indices)} examples are left out: fairseq drops a last batch "
                f"whose size is no multiple of {required_batch_size_multiple}; to keep them, give "
                "--required-batch-size-multiple 1"
            )
        return batches

    FairseqDataset.batch_by_size = batch_by_size


def repair_index_of_fasta() -> None:
    """``--dataset-impl fasta`` puts the file's name into a command that a shell runs.

    A checkpoint can name both, as its task's ``dataset_impl`` and ``source_lang``, and
    ``fairseq-validate`` sets up the task of the checkpoint. Here Python reads the file, and the
    programs ``tqdm`` and ``awk`` are needed no more. Goes when fairseq starts no shell there.
    """
    from fairseq.data.fasta_dataset import FastaDataset

    FastaDataset._build_index = _index_of_fasta


def _index_of_fasta(self: Any, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Offset in bytes and length in letters of each sequence.

    Args:
        self: the dataset.
        path: of the file, without ``.fasta``.
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
