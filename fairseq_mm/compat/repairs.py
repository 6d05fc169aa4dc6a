"""Lists all parts of fairseq that this package replaces, in one table.

``scripts/list_repairs.py`` writes the table to ``docs/compatibility.md``. A test compares the table
with the attributes of fairseq that change when all repairs are applied.
"""

import sys

import numpy as np

from fairseq_mm import errors
from fairseq_mm.compat import (
    activation,
    command_line,
    fairseq,
    literals,
    loading,
    stopping,
    training,
)
from fairseq_mm.compat.activation import Repair, Scope

REPAIRS: tuple[Repair, ...] = (
    Repair(
        loading.guard_loading,
        (
            *(f"{module}.torch" for module in loading.LOADING),
            "torch.serialization.get_safe_globals",
        ),
        Scope.SAFE_LOADING,
        "torch.load runs functions that a file names, if its caller allows it. Here it reads with "
        "weights only, and knows the classes of fairseq's checkpoints, which only hold values.",
        "fairseq loads with weights only, and allows its classes.",
    ),
    Repair(
        literals.guard_evaluation,
        ("fairseq.*.eval",),
        Scope.SAFE_LOADING,
        "eval runs options of a checkpoint as Python; here it reads literals only.",
        "fairseq evaluates no option.",
    ),
    Repair(
        fairseq.repair_index_of_fasta,
        ("fairseq.data.fasta_dataset.FastaDataset._build_index",),
        Scope.SAFE_LOADING,
        "A file name that a checkpoint chooses becomes part of a shell command.",
        "fairseq starts no shell there.",
    ),
    Repair(
        errors.report_on_exit,
        ("sys.excepthook",),
        Scope.SAFE_LOADING,
        "A refused file ends a command with a traceback. One line is printed for this package's "
        "errors; the previous hook gets all others. Under --user-dir only.",
        "permanent.",
        activation.is_user_dir,
    ),
    Repair(
        fairseq.repair_token_blocks,
        ("fairseq.data.language_pair_dataset.np", "fairseq.data.token_block_dataset.np"),
        Scope.INSTALLED,
        "--sample-break-mode eos and --num-batch-buckets end in AttributeError with numpy 2.",
        "fairseq no longer reads numpy.compat.",
        lambda: not hasattr(np, "compat"),
    ),
    Repair(
        fairseq.quiet_commands,
        ("logging.Logger().handlers", "logging.Logger().level", "warnings.filters"),
        Scope.INSTALLED,
        "Importing fairseq sets the log to debugging, so that fairseq-generate does not print the "
        "settings of its search. In fairseq's commands, deprecated functions warn, and pinned "
        "memory at each iteration; FAIRSEQ_MM_VERBOSE=1 shows the warnings.",
        "fairseq configures no log when it is imported.",
        lambda: "fairseq_cli" in sys.modules,
    ),
    Repair(
        command_line.watch_parsed_options,
        ("fairseq.options.parse_args_and_arch",),
        Scope.INSTALLED,
        "fairseq-generate does not say which task it runs. Where it is one of this package, all "
        "other repairs are applied first.",
        "permanent.",
    ),
    Repair(
        command_line.watch_commands,
        ("fairseq.distributed.utils.call_main",),
        Scope.INSTALLED,
        "Commands do not say which task they run. Where it is one of this package, all other "
        "repairs are applied first, --bf16 asks for no TPU, --fp16 runs on a CPU, and processes of "
        "torchrun join, also without GPUs. Other commands run unchanged.",
        "permanent.",
    ),
    Repair(
        fairseq.repair_repeat_blocking,
        ("fairseq.ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram",),
        Scope.OURS,
        "--no-repeat-ngram-size forbids nothing without fairseq's CUDA extension.",
        "fairseq compares with the last words.",
    ),
    Repair(
        fairseq.repair_beams_in_training,
        (
            "fairseq.modules.multihead_attention.MultiheadAttention.forward",
            "fairseq.sequence_generator.EnsembleModel.set_decoder_beam_size",
        ),
        Scope.OURS,
        "Once a generator has been built, a BART in training reads texts of other examples.",
        "attention uses the beam size in incremental decoding only.",
        fairseq.attention_keeps_beam_size,
    ),
    Repair(
        training.repair_position_of_resumed_data,
        (
            "fairseq.data.iterators.EpochBatchIterator.state_dict",
            "fairseq.data.iterators.EpochBatchIterator.load_state_dict",
        ),
        Scope.OURS,
        "A training that continues with another number of processes or another batch size skips "
        "or repeats data.",
        "the saved position counts the batches of all processes.",
    ),
    Repair(
        training.repair_batches_of_resumed_data,
        ("fairseq.trainer.Trainer.get_train_iterator",),
        Scope.OURS,
        "A training that is resumed after its first epoch uses other batches.",
        "the seed of batches that are kept does not depend on the epoch.",
    ),
    Repair(
        training.repair_data_workers,
        ("fairseq.data.iterators.EpochBatchIterator._get_iterator_for_epoch",),
        Scope.OURS,
        "Data workers are never ended, and workers that are forked while a thread reads ahead can "
        "wait for ever.",
        "fairseq ends the workers of an epoch before it starts the next.",
    ),
    Repair(
        training.save_float32_weights,
        (
            "fairseq.trainer.Trainer.state_dict",
            "fairseq.optim.fp16_optimizer.FP16Optimizer.load_state_dict",
        ),
        Scope.OURS,
        "Trainings with --fp16 or --bf16 do not resume bit for bit: checkpoints lack the "
        "optimizer's float32 weights and the counters of the loss scaler.",
        "fairseq saves them.",
    ),
    Repair(
        training.repair_overflow_on_cpu,
        ("fairseq.trainer.Trainer.train_step",),
        Scope.OURS,
        "With --fp16 on a CPU, gradients that overflow end the training.",
        "fairseq uses the trainer's device.",
    ),
    Repair(
        training.repair_clipping_on_cpu,
        ("fairseq.utils.clip_grad_norm_",),
        Scope.OURS,
        "--cpu on a machine with a GPU ends at the first update.",
        "fairseq uses the gradients' device.",
    ),
    Repair(
        stopping.repair_writing_of_checkpoints,
        ("fairseq.file_io.PathManager.copy", "fairseq.file_io.PathManager.rename"),
        Scope.OURS,
        "A kill leaves checkpoint_last.pt or checkpoint_best.pt cut off.",
        "fairseq copies under a temporary name.",
    ),
    Repair(
        loading.hook_loaded_states,
        ("fairseq.checkpoint_utils.load_checkpoint_to_cpu",),
        Scope.OURS,
        "fairseq reads no model folder, and no averaged weights. The repairs of positions "
        "and precisions change a checkpoint here, too.",
        "permanent.",
    ),
    Repair(
        stopping.keep_finished_trainings,
        (
            "fairseq.trainer.Trainer.begin_valid_epoch",
            "fairseq.trainer.Trainer.save_checkpoint",
            "fairseq.trainer.Trainer.load_checkpoint",
            "fairseq.checkpoint_utils.load_checkpoint",
        ),
        Scope.OURS,
        "A finished training that is repeated trains one more update, and --patience is in no "
        "checkpoint.",
        "fairseq saves the counter, and checks its limits before the first update.",
    ),
)

activation.table = REPAIRS
