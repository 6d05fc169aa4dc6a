"""Prepares fairseq's commands that use this package, and checks hydra's config files."""

import functools
import glob
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from fairseq_mm.compat import allocator
from fairseq_mm.compat.activation import activate, is_program, names_ours
from fairseq_mm.compat.loading import is_model_folder
from fairseq_mm.data.model_folder import WEIGHTS_FILE
from fairseq_mm.errors import UserError

# the logger of the training, because --log-file saves its messages
logger = logging.getLogger("fairseq_cli.train")
# marks a value of a config file that the command line must give
_MISSING = "???"


def watch_parsed_options() -> None:
    """Apply all repairs when fairseq has parsed a command line with a task, model or the like of
    this package. With ``--sampling``, ``--beam`` defaults to ``--nbest``."""
    from fairseq import options

    original = options.parse_args_and_arch

    @functools.wraps(original)
    def parse_args_and_arch(
        parser: Any, input_args: Optional[list[str]] = None, *args: Any, **kwargs: Any
    ) -> Any:
        parsed = original(parser, input_args, *args, **kwargs)
        arguments = parsed[0] if isinstance(parsed, tuple) else parsed
        if names_ours(arguments):
            activate()
            words = sys.argv[1:] if input_args is None else input_args
            is_sampling = getattr(arguments, "sampling", False)
            if is_sampling and not any(x.partition("=")[0] == "--beam" for x in words):
                arguments.beam = arguments.nbest
            if is_sampling and arguments.nbest != arguments.beam:
                beam, nbest = arguments.beam, arguments.nbest
                raise UserError(
                    f"--sampling draws --beam texts and prints --nbest, but --beam is {beam} and "
                    f"--nbest is {nbest}: give --beam {nbest} or --nbest {beam}."
                )
            if hasattr(arguments, "nbest"):
                # fairseq-generate reads the options of a training instead
                arguments.distributed_world_size = arguments.num_shards
                arguments.distributed_rank = arguments.shard_id
        return parsed

    options.parse_args_and_arch = parse_args_and_arch


def watch_commands() -> None:
    """Make fairseq's commands apply all repairs and correct settings if the config names a task,
    model or the like of this package."""
    from fairseq.distributed import utils

    original = utils.call_main

    @functools.wraps(original)
    def call_main(cfg: Any, main: Any, **kwargs: Any) -> Any:
        if names_ours(cfg):
            activate()
            configure_command(cfg)
        return original(cfg, main, **kwargs)

    utils.call_main = call_main


def configure_command(cfg: Any, environment: Mapping[str, str] = os.environ) -> None:
    """Correct, in place, settings with which a fairseq command would fail or train a different
    model. ``environment`` has the variables that ``torchrun`` sets."""
    import torch
    from omegaconf import open_dict

    distributed = cfg.distributed_training
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    if cfg.common.get("amp"):
        raise UserError("--amp: fairseq divides its gradients twice; give --fp16 or --bf16.")
    if cfg.common.bf16 and on_cpu and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        logger.warning(
            "--bf16: this processor has no bfloat16 instructions; without it, training is many "
            "times faster."
        )
    if on_cpu and is_program():
        allocator.keep_freed_memory()
    with open_dict(cfg):
        for option in ("finetune_from_model", "restore_file"):
            path = cfg.checkpoint[option]
            if path is None or os.path.isfile(path):
                continue
            if os.path.isdir(path) and is_model_folder(path):
                cfg.checkpoint[option] = os.path.join(path, WEIGHTS_FILE)
            # fairseq begins anew, and a script may name its own checkpoint_last.pt before there is
            # one; a sharded training reads NAME-shard0.pt and the like
            elif os.path.isdir(path) or (
                option == "restore_file"
                and os.path.basename(path) != "checkpoint_last.pt"
                and not glob.glob(f"{glob.escape(path.removesuffix('.pt'))}-shard*.pt")
            ):
                raise UserError(f"--{option.replace('_', '-')} {path}: must be a checkpoint file.")
        # fairseq's parser switches tpu on with --bf16, which fails without torch_xla
        if cfg.common.bf16 and cfg.common.tpu:
            cfg.common.tpu = distributed.tpu = False
        if cfg.common.fp16 and on_cpu:
            cfg.common.fp16_no_flatten_grads = True
        # fairseq counts GPUs before it reads these variables: if each process sees at most one,
        # every process would train a model of its own
        if distributed.distributed_init_method is None and "MASTER_ADDR" in environment:
            distributed.distributed_world_size = int(environment.get("WORLD_SIZE", 1))
            if distributed.distributed_world_size > 1:
                distributed.distributed_rank = int(environment["RANK"])
                distributed.distributed_init_method = "env://"
                distributed.distributed_no_spawn = True
                local, count = int(environment.get("LOCAL_RANK", 0)), torch.cuda.device_count()
                distributed.device_id = 0 if on_cpu else local % max(count, 1)
        if on_cpu and distributed.distributed_world_size > 1:
            distributed.distributed_backend = "gloo"
            # fairseq starts a process for each GPU: none, and ends with status 0
            distributed.distributed_no_spawn = True
            if distributed.ddp_backend == "pytorch_ddp":  # fairseq gives it numbers of GPUs
                distributed.ddp_backend = "legacy_ddp"


def check_hydra_recipe() -> None:
    """Check that the command line sets all options with the value ``???`` in hydra's config file.

    ``fairseq-hydra-train`` would replace ``???`` by fairseq's defaults: without
    ``checkpoint.finetune_from_model``, it would train from random weights.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    if not HydraConfig.initialized():
        return
    # else hydra prints a traceback of its own and exits, and errors.report_on_exit sees no error
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    run = HydraConfig.get()
    given = {
        key.lstrip("+")
        for key, _, value in (override.partition("=") for override in run.overrides.task)
        if value != _MISSING
    }
    # the merged config shows nothing: fairseq's defaults have replaced ??? in it
    name = str(run.job.config_name).removesuffix(".yaml")
    folders = [
        source.path
        for source in GlobalHydra.instance().config_loader().get_sources()
        if source.scheme() == "file"
    ]
    files = (os.path.join(folder, f"{name}.yaml") for folder in folders)
    recipe = next(filter(os.path.isfile, files), None)
    content = OmegaConf.to_container(OmegaConf.load(recipe)) if recipe else {}
    missing = [
        key
        for key in _missing_keys(content, "")
        if not any(f"{key}.".startswith(f"{group}.") for group in given)
    ]
    if missing:
        raise UserError(
            f"{recipe}: {', '.join(missing)} must be given on the command line, such as "
            f"{missing[0]}=..."
        )


def _missing_keys(section: Any, prefix: str) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _missing_keys(value, f"{prefix}{key}.")
        elif value == _MISSING:
            yield f"{prefix}{key}"
