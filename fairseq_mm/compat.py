"""The one place that knows about versions of fairseq, PyTorch and Python.

Each repair is applied only where its defect is present, and says when it can go. Checked with
fairseq-fixed 0.12.3.1 on Python 3.11 with PyTorch 2.14, and with stock fairseq 0.12.2 on
Python 3.10 with PyTorch 1.12.
"""

import argparse
import collections
import functools
import importlib.util
import logging
import sys
import typing
from typing import Any

logger = logging.getLogger(__name__)

_applied = False


def apply() -> None:
    """Applies all repairs; a second call does nothing.

    Raises:
        ImportError: naming the remedy, if fairseq is missing or does not import.
    """
    global _applied
    if _applied:
        return
    _check_fairseq()
    _allow_checkpoint_classes()
    _repair_call_main()
    _repair_ddp_on_cpu()
    _repair_diverse_beam()
    _applied = True


def _check_fairseq() -> None:
    """Goes with: nothing; a plugin without its host should say so."""
    newer = sys.version_info >= (3, 11)
    remedy = "pip install 'fairseq-mm[fairseq]'" + (
        " (it brings fairseq-fixed, the build of fairseq for Python 3.11 and newer)"
        if newer
        else " (it brings fairseq 0.12.2; pip must be older than 24.1)"
    )
    try:
        import fairseq  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise ImportError(
                f"fairseq needs the package {error.name}, which is missing; try: {remedy}"
            ) from None
        raise ImportError(
            f"fairseq_mm is a plugin of fairseq, which is missing: {remedy}"
        ) from None
    except ValueError as error:
        # stock fairseq's configuration on Python 3.11: "mutable default ... is not allowed"
        raise ImportError(
            f"the fairseq that is installed does not run on Python "
            f"{sys.version_info.major}.{sys.version_info.minor} ({error}); "
            f"pip uninstall -y fairseq, then {remedy}"
        ) from None


def _allow_checkpoint_classes() -> None:
    """Lets ``torch.load`` read fairseq's checkpoints and broadcasts with weights only.

    PyTorch 2.6 made ``weights_only=True`` the default; fairseq saves ``argparse.Namespace`` and
    omegaconf's containers, and numbers of numpy in its meters. These classes only hold values.
    Goes when fairseq itself names them (its main branch switches the check off instead).
    """
    import numpy as np
    import omegaconf
    import torch
    from omegaconf.base import ContainerMetadata, Metadata
    from omegaconf.nodes import (
        AnyNode,
        BooleanNode,
        EnumNode,
        FloatNode,
        IntegerNode,
        StringNode,
    )

    if not hasattr(torch.serialization, "add_safe_globals"):
        return
    multiarray = getattr(np, "_core", None) or np.core
    classes: list[Any] = [
        argparse.Namespace,
        collections.defaultdict,
        collections.OrderedDict,
        typing.Any,
        dict,
        int,
        list,
        omegaconf.DictConfig,
        omegaconf.ListConfig,
        ContainerMetadata,
        Metadata,
        AnyNode,
        BooleanNode,
        EnumNode,
        FloatNode,
        IntegerNode,
        StringNode,
        np.ndarray,
        np.dtype,
        multiarray.multiarray.scalar,
        multiarray.multiarray._reconstruct,
        *{type(np.dtype(code)) for code in "?bhilqBHILQefd"},
    ]
    torch.serialization.add_safe_globals(classes)


def _repair_call_main() -> None:
    """Settings that fairseq's command lines get wrong, put right before its ``main`` runs.

    - ``--bf16`` switches ``tpu`` on (both builds), which fails without torch_xla.
    - ``--fp16`` on the CPU needs ``--fp16-no-flatten-grads``.
    - Several processes without a GPU: fairseq spawns as many as there are GPUs, none, and exits
      with status 0, nothing trained.

    Goes when fairseq asks for a TPU by ``--tpu`` alone and counts processes without GPUs.
    """
    from fairseq.distributed import utils as distributed_utils

    original = distributed_utils.call_main

    @functools.wraps(original)
    def call_main(cfg: Any, main: Any, **kwargs: Any) -> Any:
        import torch
        from omegaconf import open_dict

        from fairseq_mm.errors import UserError

        on_cpu = cfg.common.cpu or not torch.cuda.is_available()
        with open_dict(cfg):
            if cfg.common.bf16 and cfg.common.tpu and not importlib.util.find_spec("torch_xla"):
                cfg.common.tpu = False
                cfg.distributed_training.tpu = False
            if cfg.common.fp16 and on_cpu and not cfg.common.fp16_no_flatten_grads:
                cfg.common.fp16_no_flatten_grads = True
        distributed = cfg.distributed_training
        if (
            on_cpu
            and distributed.distributed_world_size > 1
            and not distributed.distributed_no_spawn
        ):
            raise UserError(
                f"--distributed-world-size {distributed.distributed_world_size} without a GPU: "
                "fairseq would start no process at all. Start each one yourself with "
                "--distributed-no-spawn --distributed-rank R --distributed-backend gloo "
                "--distributed-init-method tcp://127.0.0.1:PORT."
            )
        return original(cfg, main, **kwargs)

    distributed_utils.call_main = call_main


def _repair_ddp_on_cpu() -> None:
    """PyTorch's DDP takes no device ids for a module on the CPU; fairseq always passes them.

    Goes when fairseq passes ``device_ids=None`` there.
    """
    from fairseq.models import distributed_fairseq_model

    original = distributed_fairseq_model.DistributedDataParallel

    def build(module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> Any:
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        return original(module, device_ids=device_ids, output_device=output_device, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = build


def _repair_diverse_beam() -> None:
    """``--diverse-beam-groups`` gives IndexError in fairseq-fixed and fairseq's main branch.

    Its overlap of groups has a row for each sentence of the batch, but is indexed by the
    sentences' numbers in the data set. Stock fairseq keeps no overlap. Goes when the search maps
    numbers to rows itself.
    """
    from fairseq.search import DiverseBeamSearch

    if "group_overlap" not in DiverseBeamSearch.__init__.__code__.co_names:
        return
    original = DiverseBeamSearch.step

    @functools.wraps(original)
    def step(
        self: Any,
        step: int,
        lprobs: Any,
        scores: Any,
        prev_output_tokens: Any = None,
        original_batch_idxs: Any = None,
    ) -> Any:
        if step == 0:
            self.sentence_ids = original_batch_idxs
        rows = original_batch_idxs[:, None].eq(self.sentence_ids).int().argmax(dim=1)
        return original(self, step, lprobs, scores, prev_output_tokens, rows)

    DiverseBeamSearch.step = step
