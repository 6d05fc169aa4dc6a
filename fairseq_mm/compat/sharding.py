"""Checks the options of sharded and SlowMo trainings, and repairs the merging of shards."""

import functools
from typing import Any

from fairseq_mm.errors import UserError


def check_ddp_backend(cfg: Any, *, on_cpu: bool) -> None:
    """Refuse options of distributed training with which fairseq or fairscale would fail.

    Args:
        cfg: Config of a fairseq command.
        on_cpu: True if the command runs without GPUs.
    """
    import torch

    distributed = cfg.distributed_training
    are_several_on_cpu = on_cpu and distributed.distributed_world_size > 1
    if are_several_on_cpu and cfg.common.get("bf16") and torch.__version__.startswith("1."):
        raise UserError(
            f"--bf16 with {distributed.distributed_world_size} processes without GPUs: gloo of "
            f"PyTorch {torch.__version__} adds no bfloat16. Use one process, or PyTorch 2."
        )
    if are_several_on_cpu and distributed.ddp_backend == "slowmo":
        raise UserError(
            "--ddp-backend slowmo: fairscale's SlowMoDistributedDataParallel runs on CUDA GPUs "
            "alone; give pytorch_ddp or legacy_ddp."
        )
    if distributed.ddp_backend != "fully_sharded":
        return
    if on_cpu:
        raise UserError(
            "--ddp-backend fully_sharded: fairscale's FullyShardedDataParallel runs on CUDA GPUs "
            "alone; --zero-sharding os shards the optimizer's state on CPUs, too."
        )
    if distributed.distributed_world_size == 1 and distributed.distributed_init_method is None:
        raise UserError(
            "--ddp-backend fully_sharded: needs several processes, but there is one; start them by "
            "torchrun --nproc_per_node N, or let several GPUs be visible."
        )
    for name in ("memory_efficient_fp16", "memory_efficient_bf16", "bf16"):
        if cfg.common.get(name):
            raise UserError(
                f"--{name.replace('_', '-')} with --ddp-backend fully_sharded: fairseq shards "
                "models of float32 and of --fp16; give --fp16, or --zero-sharding os."
            )


def check_block_momentum(cfg: Any) -> None:
    """Refuse ``--use-bmuf`` together with a precision that scales the loss, such as ``--fp16``."""
    if not cfg.optimization.use_bmuf:
        return
    # fairseq's trainer logs the loss scale of the optimizer, but FairseqBMUF hides the optimizer
    for name in ("memory_efficient_fp16", "fp16", "amp"):
        if cfg.common.get(name):
            raise UserError(
                f"--{name.replace('_', '-')} with --use-bmuf: fairseq's trainer cannot read the "
                "loss scale there; give --bf16, or no option of precision."
            )


def name_fixed_parameters_in_shards() -> None:
    """Make ``--ddp-backend fully_sharded`` refuse models with fixed parameters.

    The message of one line replaces fairscale's assertion, which lists all layers of the model.
    """
    from fairseq.distributed import fully_sharded_data_parallel as sharding

    original = sharding.FullyShardedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        # fairscale joins the parameters of a module into one, and saves the optimizer's state only
        # for modules whose parameters are all trained; its assertion lists all layers
        is_trained = [parameter.requires_grad for parameter in module.parameters()]
        if kwargs.get("flatten_parameters", True) and not all(is_trained):
            raise UserError(
                f"--ddp-backend fully_sharded: {len(is_trained) - sum(is_trained)} of "
                f"{len(is_trained)} parameters of {type(module).__name__} are fixed, but fairscale "
                "shards models alone whose parameters are all trained; use --zero-sharding os."
            )
        original(self, module, *args, **kwargs)

    sharding.FullyShardedDataParallel.__init__ = init


def has_fairscale() -> bool:
    from fairseq.distributed import fully_sharded_data_parallel as sharding

    return sharding.has_FSDP


def repair_merging_of_shards() -> None:
    """Repair the merging of shards, with which ``--checkpoint-shard-count`` loads a checkpoint.

    fairscale raises KeyError for buffers that checkpoints do not have, and drops the extra state of
    modules.
    """
    from fairseq.distributed import fully_sharded_data_parallel as sharding

    original = sharding.FSDP.consolidate_shard_weights

    @functools.wraps(original)
    def consolidate(
        shard_weights: Any, shard_metadata: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        saved = shard_weights[0]
        # fairscale also reads buffers that are in no checkpoint, and raises a KeyError
        names = [name for name in shard_metadata[0]["buffer_names"] if name in saved]
        first = {**shard_metadata[0], "buffer_names": names}
        merged = original(shard_weights, [first, *shard_metadata[1:]], *args, **kwargs)
        # fairscale drops the extra state of modules
        added = {name: x for name, x in saved.items() if name.endswith("_extra_state")}
        return {**merged, **added}

    sharding.FSDP.consolidate_shard_weights = staticmethod(consolidate)
