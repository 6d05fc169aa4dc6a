"""Builds and writes checkpoints in the format of fairseq-train from converted weights."""

import os
import warnings
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from torch import Tensor

from fairseq_mm.data.output_file import library_errors, partial_path
from fairseq_mm.errors import file_errors


def checkpoint_state(arguments: Sequence[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Build the content of a checkpoint from weights and arguments of fairseq-train.

    The checkpoint can be used for generation, ``--restore-file`` and ``--finetune-from-model``.

    ``arguments`` are the data folder, ``--task``, ``--arch`` and options that differ from their
    defaults.
    """
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, input_args=list(arguments))
    with warnings.catch_warnings():  # hydra warns of fairseq's way of calling it
        warnings.simplefilter("ignore")
        cfg = convert_namespace_to_omegaconf(args)
    # models without a dataclass read their options from a Namespace, which stays one
    return checkpoint_of_config(resolve_config(cfg, arguments[0]), weights, optimizer="FairseqAdam")


def resolve_config(cfg: Any, path: str) -> dict[str, Any]:
    """Return a config as a dictionary with references resolved; ``path`` is for messages. Functions
    of OmegaConf are not called: ``${oc.env:HF_TOKEN}`` in a downloaded checkpoint would write a
    secret into a folder that is shared."""
    functions = dict(BaseContainer._resolvers)
    BaseContainer._resolvers.clear()
    try:
        with file_errors(path, "its options cannot be written"):
            plain: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
            return plain
    finally:
        BaseContainer._resolvers.update(functions)


def checkpoint_of_config(
    cfg: Mapping[str, Any], weights: Mapping[str, Tensor], *, optimizer: str, num_updates: int = 0
) -> dict[str, Any]:
    """Build the content of a checkpoint from weights and a config of fairseq-train; ``optimizer``
    is the name of the optimizer's class in fairseq."""
    return {
        "args": None,  # the place of the options before fairseq 0.10, which fairseq still looks up
        "cfg": cfg,
        "model": dict(weights),
        "criterion": None,
        # the trainer reads this and extra_state even where it finds no optimizer state
        "optimizer_history": [
            {
                "criterion_name": "CrossEntropyCriterion",
                "optimizer_name": optimizer,
                "lr_scheduler_state": {},
                "num_updates": num_updates,
            }
        ],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }


def save_checkpoint(content: Mapping[str, Any], path: str) -> None:
    """Write a checkpoint to a temporary file, and rename it to ``path`` when it is complete."""
    target = os.path.realpath(path)
    # a full disk, for example
    named = file_errors(path, "cannot be written", OSError)
    with named, partial_path(target) as partial, library_errors():
        torch.save(dict(content), partial)
        os.replace(partial, target)


def complete_options(arch: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options ``given``, and defaults of ``arch`` for all others. ``arch`` is a model of
    fairseq without dataclass, such as ``bart_base``; an unknown ``arch`` has no defaults."""
    namespace = Namespace(**given)
    # older versions of fairseq had fewer options; an unknown architecture has no defaults
    if arch in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[arch](namespace)
    return vars(namespace)


def config_defaults(config: Any) -> dict[str, Any]:
    """Return the default of each option of the dataclass ``config`` of a model."""
    # fields of FairseqDataclass itself, such as _name, begin with an underscore
    return {x.name: x.default for x in fields(config) if not x.name.startswith("_")}


def format_flags(options: Mapping[str, Any]) -> list[str]:
    """Format options as arguments of a command line.

    An option with the value True becomes a flag without a value.
    """
    flags = []
    for name, value in options.items():
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(str(value))
    return flags
