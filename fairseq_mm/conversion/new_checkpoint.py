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
from torch import Tensor

from fairseq_mm.data.output_file import library_errors, partial_path
from fairseq_mm.errors import UserError

_LISTED = 3  # names in a message: a wrong file would list hundreds


def checkpoint_state(arguments: Sequence[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Build the content of a checkpoint from weights and arguments of fairseq-train.

    The checkpoint can be used for generation, ``--restore-file`` and ``--finetune-from-model``.

    ``arguments`` are data folder, ``--task``, ``--arch`` and the options that differ from their
    defaults.
    """
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, input_args=list(arguments))
    with warnings.catch_warnings():  # hydra warns of fairseq's way of calling it
        warnings.simplefilter("ignore")
        cfg = convert_namespace_to_omegaconf(args)
    # models without a dataclass read their options from a Namespace, which to_container keeps
    plain: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    return checkpoint_of_config(plain, weights, optimizer="FairseqAdam")


def checkpoint_of_config(
    cfg: Mapping[str, Any], weights: Mapping[str, Tensor], *, optimizer: str, num_updates: int = 0
) -> dict[str, Any]:
    """Build the content of a checkpoint from weights and a config of fairseq-train; ``optimizer``
    is the name of its class in fairseq."""
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
    try:
        with partial_path(target) as partial, library_errors():
            torch.save(dict(content), partial)
            os.replace(partial, target)
    except OSError as error:  # of a full disk, for example
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Any], path: str) -> None:
    """Raise UserError if converted tensors are not those of ``expected``, the state dict of the
    model that is to hold them or its shapes by name."""
    shapes = {name: tuple(getattr(x, "shape", x)) for name, x in expected.items()}
    found = {name: tuple(x.shape) for name, x in tensors.items()}
    for title, names in (
        ("lacks", sorted(shapes.keys() - found.keys())),
        ("has no place for", sorted(found.keys() - shapes.keys())),
        (
            "has other shapes than its options say:",
            [
                f"{name} {list(found[name])} in place of {list(shape)}"
                for name, shape in shapes.items()
                if found.get(name, shape) != shape
            ],
        ),
        # loading a NaN raises no error: it would show only in generation, as text without sense
        (
            "has NaN or infinite numbers in",
            [x for x, y in tensors.items() if not y.isfinite().all()],
        ),
    ):
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            listed = ", ".join(names[:_LISTED])
            raise UserError(f"{path}: cannot be converted: it {title} {listed}{more}.")


def complete_options(arch: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options ``given``, with the defaults of ``arch`` for all missing options.

    ``arch`` must be an architecture of a fairseq model whose options are no dataclass, such as
    ``bart_base``. No option is added if fairseq does not know ``arch``.
    """
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
