"""The one place that knows about versions of fairseq, PyTorch and Python.

Each repair is applied only where its defect is present, and says when it can go. Checked with
fairseq-fixed 0.12.3.1 on Python 3.11 with PyTorch 2.14, and with stock fairseq 0.12.2 on
Python 3.10 with PyTorch 1.12.
"""

from fairseq_mm.compat.checkpoints import allow_checkpoint_classes, load_weights
from fairseq_mm.compat.fairseq import (
    check_fairseq,
    name_unknown_architectures,
    repair_beams_in_training,
    repair_call_main,
    repair_ddp_on_cpu,
    repair_diverse_beam,
    repair_repeat_blocking,
    repair_token_blocks,
    silence_libraries,
    silence_pin_memory,
)
from fairseq_mm.compat.fairseq_data import (
    repair_disabled_validation,
    repair_index_of_fasta,
    warn_of_dropped_batches,
)
from fairseq_mm.compat.hydra_recipes import check_hydra_recipe
from fairseq_mm.compat.launching import repair_launching, stop_on_signal
from fairseq_mm.compat.loading import guard_evaluation, guard_loading, name_unusable_checkpoints
from fairseq_mm.compat.pytorch import convolution_memory_format
from fairseq_mm.compat.saving import name_cut_checkpoints, repair_writing_of_checkpoints
from fairseq_mm.compat.sharding import name_fixed_parameters_in_shards, repair_merging_of_shards
from fairseq_mm.compat.stopping import keep_finished_trainings
from fairseq_mm.compat.training import (
    name_missing_optimizer,
    repair_amp,
    repair_batches_of_resumed_data,
    repair_clipping_on_cpu,
    repair_overflow_on_cpu,
    repair_position_of_resumed_data,
    repair_reused_loaders,
    repair_workers_of_successive_epochs,
)

__all__ = ["apply", "check_hydra_recipe", "convolution_memory_format", "load_weights"]

_applied = False


def apply() -> None:
    """Applies all repairs; a second call does nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    global _applied
    if _applied:
        return
    check_fairseq()
    allow_checkpoint_classes()
    guard_loading()
    guard_evaluation()
    repair_index_of_fasta()
    silence_pin_memory()
    silence_libraries()
    repair_call_main()
    repair_launching()
    name_fixed_parameters_in_shards()
    repair_merging_of_shards()
    stop_on_signal()
    name_unknown_architectures()
    repair_ddp_on_cpu()
    repair_diverse_beam()
    repair_repeat_blocking()
    repair_beams_in_training()
    repair_token_blocks()
    repair_disabled_validation()
    warn_of_dropped_batches()
    repair_position_of_resumed_data()
    repair_batches_of_resumed_data()
    repair_reused_loaders()
    repair_workers_of_successive_epochs()
    name_missing_optimizer()
    repair_amp()
    repair_overflow_on_cpu()
    repair_clipping_on_cpu()
    repair_writing_of_checkpoints()
    name_unusable_checkpoints()
    name_cut_checkpoints()
    keep_finished_trainings()
    _applied = True
