"""Contains the table of all parts of fairseq that this package replaces.

``scripts/list_repairs.py`` writes the table to ``docs/compatibility.md``. A test compares the table
with the attributes of fairseq that change when all repairs are applied.
"""

from fairseq_mm import errors
from fairseq_mm.compat import (
    command_line,
    divergence,
    fairseq,
    fairseq_data,
    foreach,
    half_precision,
    launching,
    literals,
    loading,
    quiet,
    resuming,
    scope,
    sharding,
    stopping,
    training,
)
from fairseq_mm.compat.activation import Repair, Scope, use_table

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
        fairseq_data.repair_index_of_fasta,
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
        scope.is_user_dir,
    ),
    Repair(
        fairseq.repair_token_blocks,
        ("fairseq.data.language_pair_dataset.np", "fairseq.data.token_block_dataset.np"),
        Scope.INSTALLED,
        "--sample-break-mode eos and --num-batch-buckets end in AttributeError with numpy 2.",
        "fairseq no longer reads numpy.compat.",
        fairseq.numpy_lacks_compat,
    ),
    Repair(
        fairseq.silence_libraries,
        ("logging.Logger(h5py).level", "logging.Logger(hydra).level"),
        Scope.INSTALLED,
        "Importing fairseq sets the log to debugging, and h5py and hydra, which this package "
        "imports, then fill it.",
        "fairseq configures no root logger when it is imported.",
    ),
    Repair(
        quiet.hide_library_warnings,
        ("warnings.filters",),
        Scope.INSTALLED,
        "fairseq's commands print warnings of functions that fairseq, fairscale and hydra call and "
        "that PyTorch or hydra deprecates. In these commands only; FAIRSEQ_MM_VERBOSE=1 shows the "
        "warnings.",
        "fairseq calls no deprecated function.",
        quiet.hides_messages,
    ),
    Repair(
        quiet.shorten_log,
        (
            *(f"logging.Logger(fairseq_cli.{name}).filters" for name in quiet.SETTINGS),
            "logging.Logger(fairseq.tasks.fairseq_task).filters",
        ),
        Scope.INSTALLED,
        "fairseq's commands log all of their settings, defaults and those of unused models, too, "
        "and three notes on iterators in each epoch. Here they log the settings that differ from "
        "the defaults, and no notes. In these commands only; FAIRSEQ_MM_VERBOSE=1 shows all.",
        "fairseq logs changed settings.",
        quiet.hides_messages,
    ),
    Repair(
        command_line.explain_arguments,
        ("fairseq.options.parse_args_and_arch",),
        Scope.INSTALLED,
        "An unknown --arch is answered with all options and names, and a missing --task is taken "
        "for translation. Under --user-dir only.",
        "fairseq suggests names.",
        scope.is_user_dir,
    ),
    Repair(
        launching.watch_commands,
        ("fairseq.distributed.utils.call_main",),
        Scope.INSTALLED,
        "Commands do not say which task they run. Where it is one of this package, all other "
        "repairs are applied first, a missing --optimizer is named before data is read, wrong "
        "settings of --bf16 and --fp16 are corrected, and several processes start without GPUs, "
        "too. Other commands run unchanged.",
        "permanent.",
    ),
    Repair(
        command_line.repair_output_of_generate,
        ("fairseq_cli.generate.main",),
        Scope.OURS,
        "The log of fairseq-generate goes to stderr, so that a file of its output does not say how "
        "the search was set. --sampling without --beam 1 ends in a traceback.",
        "no module of fairseq configures the log when it is imported.",
        command_line.is_generate,
    ),
    Repair(
        launching.name_processes_by_this_module,
        ("fairseq.distributed.utils.distributed_main",),
        Scope.OURS,
        "Processes do not end their process group, and spawn their data workers.",
        "fairseq ends the group and forks data workers.",
    ),
    Repair(
        launching.refuse_more_processes_than_gpus,
        ("fairseq.distributed.utils._infer_single_node_init",),
        Scope.OURS,
        "More processes than GPUs end in an assertion that names no option.",
        "fairseq names the option.",
    ),
    Repair(
        launching.stop_on_signal,
        ("fairseq.trainer.Trainer.__init__",),
        Scope.OURS,
        "SIGUSR1 kills a training. Here it saves a checkpoint first: when a trainer is made, "
        "the handler of the signal and fairseq_cli.train.validate_and_save are replaced, too.",
        "fairseq handles the signal.",
    ),
    Repair(
        sharding.name_fixed_parameters_in_shards,
        ("fairseq.distributed.fully_sharded_data_parallel.FullyShardedDataParallel.__init__",),
        Scope.OURS,
        "--ddp-backend fully_sharded of a model with fixed parameters ends in an assertion "
        "that lists all of its layers.",
        "fairscale shards such models.",
    ),
    Repair(
        sharding.repair_merging_of_shards,
        (
            "fairscale.nn.data_parallel.fully_sharded_data_parallel.FullyShardedDataParallel."
            "consolidate_shard_weights",
        ),
        Scope.OURS,
        "--checkpoint-shard-count ends in KeyError.",
        "fairscale takes buffers from the shards.",
        sharding.has_fairscale,
    ),
    Repair(
        fairseq.silence_pin_memory,
        ("warnings.filters",),
        Scope.OURS,
        "fairseq's commands ask for pinned memory without a GPU; PyTorch warns at each iteration.",
        "fairseq pins memory for GPUs only.",
        fairseq.is_command,
    ),
    Repair(
        fairseq.name_unknown_architectures,
        ("fairseq.models.build_model",),
        Scope.OURS,
        "An unknown architecture ends in an assertion with all options.",
        "fairseq names the architecture only.",
    ),
    Repair(
        fairseq.repair_ddp_on_cpu,
        ("fairseq.models.distributed_fairseq_model.DistributedDataParallel",),
        Scope.OURS,
        "--ddp-backend pytorch_ddp gives GPU numbers for modules on the CPU.",
        "fairseq gives none there.",
    ),
    Repair(
        fairseq.repair_diverse_beam,
        ("fairseq.search.DiverseBeamSearch.step",),
        Scope.OURS,
        "--diverse-beam-groups ends in IndexError, and continues texts that have ended.",
        "the search maps sentences to rows of the batch.",
        fairseq.keeps_overlap_of_groups,
    ),
    Repair(
        fairseq.repair_repeat_blocking,
        ("fairseq.ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram",),
        Scope.OURS,
        "--no-repeat-ngram-size forbids nothing without fairseq's CUDA extension.",
        "fairseq compares with the last words.",
        fairseq.misses_repeats,
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
        fairseq_data.repair_disabled_validation,
        (
            "fairseq.tasks.setup_task",
            "fairseq.data.data_utils.raise_if_valid_subsets_unintentionally_ignored",
        ),
        Scope.OURS,
        "fairseq 0.12.2 loads validation subsets in spite of --disable-validation. Subsets that "
        "are ignored end a training in a traceback.",
        "fairseq 0.12.2 is no longer supported, and fairseq prints one line.",
    ),
    Repair(
        fairseq_data.warn_of_dropped_batches,
        ("fairseq.data.fairseq_dataset.FairseqDataset.batch_by_size",),
        Scope.OURS,
        "fairseq leaves out the examples of a last batch and does not say so.",
        "fairseq says so.",
    ),
    Repair(
        training.mark_iterators,
        (
            "fairseq.trainer.Trainer.get_train_iterator",
            "fairseq.trainer.Trainer.get_valid_iterator",
        ),
        Scope.OURS,
        "Iterators do not know which training they belong to.",
        "the repairs of iterators go.",
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
        training.repair_reused_loaders,
        ("fairseq.data.iterators.EpochBatchIterator._get_iterator_for_epoch",),
        Scope.OURS,
        "Data workers are never ended, and --curriculum never shuffles.",
        "fairseq ends workers and shuffles as asked.",
    ),
    Repair(
        training.repair_workers_of_successive_epochs,
        ("fairseq.data.iterators.BufferedIterator._create_consumer",),
        Scope.OURS,
        "Data workers are forked while a thread holds locks; the training can wait for ever.",
        "fairseq waits until the workers of the previous epoch have ended.",
    ),
    Repair(
        training.repair_amp,
        ("fairseq.optim.amp_optimizer.AMPOptimizer.step",),
        Scope.OURS,
        "--amp divides gradients by the loss scale twice.",
        "fairseq unscales and steps the same object.",
        training.unscales_another_than_it_steps,
    ),
    Repair(
        half_precision.save_float32_weights,
        (
            "fairseq.trainer.Trainer.state_dict",
            "fairseq.optim.fp16_optimizer.FP16Optimizer.load_state_dict",
            "fairseq.optim.fp16_optimizer.MemoryEfficientFP16Optimizer.load_state_dict",
            "fairseq.optim.amp_optimizer.AMPOptimizer.load_state_dict",
        ),
        Scope.OURS,
        "Trainings with --fp16, --bf16 or --amp do not resume bit for bit: checkpoints lack the "
        "optimizer's float32 weights and the state of the loss scaler.",
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
        divergence.name_diverged_trainings,
        ("fairseq.trainer.Trainer.train_step",),
        Scope.OURS,
        "A training that diverges ends in StopIteration, a traceback of PyTorch.",
        "fairseq prints one line.",
    ),
    Repair(
        training.repair_clipping_on_cpu,
        ("fairseq.utils.clip_grad_norm_",),
        Scope.OURS,
        "--cpu on a machine with a GPU ends at the first update.",
        "fairseq uses the gradients' device.",
    ),
    Repair(
        foreach.clip_together,
        (
            "fairseq.utils.multi_tensor_total_norm",
            "fairseq.utils.multi_tensor_l2norm_available",
        ),
        Scope.OURS,
        "On a GPU without Apex, the norm of the gradients is computed parameter by parameter.",
        "fairseq uses torch._foreach_norm.",
        foreach.has_no_apex,
    ),
    Repair(
        foreach.update_together,
        ("fairseq.optim.adam.Adam.step", "fairseq.optim.nag.NAG.step"),
        Scope.OURS,
        "On a GPU, Adam and NAG start each operation once for each parameter.",
        "fairseq uses PyTorch's operations on lists of parameters.",
    ),
    Repair(
        training.seed_only_the_cpu,
        ("fairseq.trainer.Trainer._set_seed",),
        Scope.OURS,
        "Trainings on a CPU spend time at each update on the seed of a GPU that they do not use.",
        "PyTorch keeps no stack trace with a seed.",
    ),
    Repair(
        resuming.repair_writing_of_checkpoints,
        ("fairseq.file_io.PathManager.copy", "fairseq.file_io.PathManager.rename"),
        Scope.OURS,
        "A kill leaves checkpoint_last.pt or checkpoint_best.pt cut off.",
        "fairseq copies under a temporary name.",
        resuming.copies_in_place,
    ),
    Repair(
        resuming.hook_loaded_states,
        (
            "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
            "fairseq.trainer.Trainer.load_checkpoint",
        ),
        Scope.OURS,
        "fairseq reads no model folder, and no averaged weights. A checkpoint that is cut off ends "
        "in a traceback that does not name the file. The repairs of positions and precisions "
        "change a checkpoint here, too.",
        "permanent.",
    ),
    Repair(
        stopping.keep_finished_trainings,
        (
            "fairseq.trainer.Trainer.begin_valid_epoch",
            "fairseq.trainer.Trainer.save_checkpoint",
            "fairseq.checkpoint_utils.load_checkpoint",
        ),
        Scope.OURS,
        "A finished training that is repeated trains one more update, and --patience is in no "
        "checkpoint.",
        "fairseq saves the counter, and checks its limits before the first update.",
    ),
)

use_table(REPAIRS, check_host=fairseq.check_fairseq)
