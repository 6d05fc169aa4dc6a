"""Adam with one learning rate for pretrained parameters and one for added ones:
``--optimizer adam_parameter_groups``; of old ``adam_by_origin``, which checkpoints from before
version 0.2.0 name.

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021, section 4.2: 1.5e-4 for added layers. For pretrained parameters the
section names 6e-4 and 3e-5 "following Lewis et al. (2019) and Raffel et al. (2019)", so 6e-4 for
BART and 3e-5 for T5 if read in order. The released code has 3e-5 for BART and no rate for T5.

Differs from the released code:
- Added parameters are those that the model marks as such. There they were identified by shape and
  value, so that some were in neither group and never trained, and others at the pretrained rate.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.logging import metrics
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from fairseq_mm.errors import UserError
from fairseq_mm.optim.adam_l2 import check_adam, check_rate

logger = logging.getLogger(__name__)

# value of the attribute `param_group` of parameters that no pretrained model has
ADDED = "added"


@dataclass
class AdamParameterGroupsConfig(FairseqAdamConfig):
    added_lr: float = field(
        default=1.5e-4,
        metadata={
            "help": "Learning rate of added parameters, which are not pretrained. The scheduler "
            "changes it in proportion to --lr, that of the others."
        },
    )


@register_optimizer("adam_parameter_groups", dataclass=AdamParameterGroupsConfig)
class AdamParameterGroups(FairseqAdam):
    """fairseq's Adam over two parameter groups: pretrained parameters, and those whose attribute
    ``param_group`` is ``"added"``.

    Raises:
        UserError: if a rate is out of range.
    """

    rate_field = "added_lr"

    def __init__(self, cfg: Any, params: Any) -> None:
        lr: Any = cfg.lr
        rates = list(lr) if isinstance(lr, Collection) else [lr]  # one an epoch
        lr = rates[0]
        for rate in rates:
            check_rate("--lr", rate)
        if lr == 0:
            raise UserError(f"--lr must be above 0 for two learning rates, but is {lr}.")
        self._added_lr = getattr(cfg, self.rate_field)
        check_rate("--added-lr", self._added_lr)
        check_adam(cfg)
        self._base_lr = lr
        params = list(params)
        groups = [
            {"params": [p for p in params if getattr(p, "param_group", None) != ADDED]},
            {"params": [p for p in params if getattr(p, "param_group", None) == ADDED]},
        ]
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
        """Set the learning rates.

        Args:
            lr: Learning rate of the pretrained parameters; the rate of the added ones is
                proportional.
        """
        added_lr = self._added_lr * (lr / self._base_lr)
        for group, rate in zip(self.param_groups, (lr, added_lr)):
            group["lr"] = rate
        metrics.log_scalar("lr_added", added_lr, weight=0, priority=301)

    def load_state_dict(
        self, state_dict: dict[str, Any], optimizer_overrides: Optional[dict[str, Any]] = None
    ) -> None:
        """Load the state of both parameter groups.

        Raises:
            UserError: if the state has not two such groups.
        """
        ours, theirs = (
            [len(group["params"]) for group in groups]
            for groups in (self.optimizer.param_groups, state_dict["param_groups"])
        )
        if ours != theirs:
            raise UserError(
                f"the checkpoint's optimizer has groups of {theirs} parameters, but the model's "
                f"pretrained and added ones are {ours}: give --reset-optimizer."
            )
        super().load_state_dict(state_dict, optimizer_overrides)

    @property
    def supports_flat_params(self) -> bool:
        """Refuse flat parameters, in which fairseq joins all parameters to one.

        Raises:
            UserError: always.
        """
        raise UserError(
            "--optimizer adam_parameter_groups: parameters that are joined to one cannot have two "
            "learning rates: give --fp16-no-flatten-grads with --fp16, and no --ddp-backend "
            "fully_sharded."
        )


@dataclass
class AdamByOriginConfig(FairseqAdamConfig):
    new_lr: float = field(default=1.5e-4, metadata={"help": "The old name of --added-lr."})


@register_optimizer("adam_by_origin", dataclass=AdamByOriginConfig)
class AdamByOrigin(AdamParameterGroups):
    """The same by its old name, with which trainings are resumed: fairseq compares the name of the
    optimizer's class with the checkpoint's."""

    rate_field = "new_lr"
