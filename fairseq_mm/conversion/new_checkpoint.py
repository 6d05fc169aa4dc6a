"""Checkpoints in the format of fairseq-train, made of converted weights."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import Tensor


def checkpoint_state(arguments: Sequence[str], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Build the content of a checkpoint, for generation, ``--restore-file`` and
    ``--finetune-from-model``.

    Args:
        arguments: Arguments of a fairseq-train that would have trained the model: data folder,
            ``--task``, ``--arch`` and the options that differ from their defaults.
        weights: Weights by fairseq's names.
    """
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, input_args=list(arguments))
    with warnings.catch_warnings():  # hydra warns of fairseq's way of calling it
        warnings.simplefilter("ignore")
        cfg = convert_namespace_to_omegaconf(args)
    return {
        "args": None,
        # options of models without a dataclass stay the Namespace that they ask for
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": dict(weights),
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": "CrossEntropyCriterion",
                "optimizer_name": "FairseqAdam",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
