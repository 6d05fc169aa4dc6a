"""Implements Adam with separate learning rates for pretrained and added parameters
(``--optimizer adam_parameter_groups``).

Added parameters are the parameters that a pretrained model does not have.

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021, section 4.2: the learning rate of added layers is 1.5e-4. For pretrained
parameters the section names 6e-4 and 3e-5 "following Lewis et al. (2019) and Raffel et al. (2019)",
presumably 6e-4 for BART and 3e-5 for T5. The released code has 3e-5 for BART and no rate for T5.

Differs from the released code:
- The model marks its added parameters. The released code identifies them by shape and value, so
  that some added parameters are in neither group and never trained, and others have the rate of
  pretrained parameters.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fairseq.logging import metrics
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.errors import UserError

logger = logging.getLogger(__name__)

# value of the attribute `param_group` of parameters that the pretrained model does not have
ADDED = "added"


@dataclass
class AdamParameterGroupsConfig(FairseqAdamConfig):
    added_lr: float = option(
        1.5e-4,
        "Learning rate of added parameters, which are not pretrained. The scheduler "
        "changes it in proportion to --lr, the rate of the pretrained parameters.",
        least=0,
    )


@register_optimizer("adam_parameter_groups", dataclass=AdamParameterGroupsConfig)
class AdamParameterGroups(FairseqAdam):
    """fairseq's Adam over two parameter groups: pretrained and added parameters.

    Added parameters have the attribute ``param_group = "added"``.
    """

    def __init__(self, cfg: Any, params: Any) -> None:
        lr: Any = cfg.lr
        rates = list(lr) if isinstance(lr, Collection) else [lr]  # one per epoch
        lr = rates[0]
        check_sizes(AdamParameterGroupsConfig, cfg)
        self._added_lr = cfg.added_lr
        self._base_lr = lr
        params = list(params)
        groups = [
            {"params": [p for p in params if getattr(p, "param_group", None) != ADDED]},
            {"params": [p for p in params if getattr(p, "param_group", None) == ADDED]},
        ]
        # Groups in this order: set_lr() and checkpoints rely on it.
        super().__init__(cfg, groups)
        pretrained, added = (sum(p.numel() for p in group["params"]) for group in groups)
        logger.info(
            f"{pretrained} pretrained parameters with --lr {lr}, {added} added ones with "
            f"--added-lr {self._added_lr}"
        )
        if not added:
            logger.warning(
                "--optimizer adam_parameter_groups: the model has no added parameter, and "
                "--added-lr changes nothing."
            )
        self.set_lr(lr)

    def set_lr(self, lr: float) -> None:
        """Set the rate of pretrained parameters; change the rate of added ones in proportion."""
        # --lr 0 trains the added parameters alone, with a constant rate
        added_lr = self._added_lr * (lr / self._base_lr if self._base_lr else 1.0)
        for group, rate in zip(self.param_groups, (lr, added_lr)):
            group["lr"] = rate
        metrics.log_scalar("lr_added", added_lr, weight=0, priority=301)

    @property
    def supports_flat_params(self) -> bool:
        """Raise UserError: fairseq reads this after it has joined all parameters to one tensor."""
        raise UserError(
            "--optimizer adam_parameter_groups: parameters that are joined to one cannot have two "
            "learning rates: give --fp16-no-flatten-grads with --fp16, and no --ddp-backend "
            "fully_sharded."
        )
