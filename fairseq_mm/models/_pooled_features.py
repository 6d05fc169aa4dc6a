"""Pools the features of an image's regions to one vector, and scales this vector."""

from typing import Any, Optional

import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError

SCALINGS = ("root", "scale", "unit", "none")
FeatureScaling: Any = ChoiceEnum(SCALINGS)  # created at run time, so Any for type checkers
# below the smallest float16 above 0, so that features of float16 stores do not change
_LEAST_ROOT = 1e-8


def feature_scaling_option() -> Any:
    return option(
        "scale",
        "Scaling of the feature vector: to a mean square of one (scale), the same of its "
        "centred signed square roots (root), to unit length (unit), or none.",
    )


def masked_mean(features: Tensor, padding_mask: Tensor) -> Tensor:
    """Average features [B, N, D] of N regions per image without padding: [B, D] float32.

    ``padding_mask`` is [B, N] bool, True at padding; each image has at least one real region.
    """
    features = features.float()
    if features.size(1) == 1:
        return features[:, 0]  # a single region is never padding
    valid_mask = (~padding_mask).unsqueeze(-1)
    return (features * valid_mask).sum(1) / valid_mask.sum(1)


def check_has_regions(task: Any, option: str) -> None:
    """Refuse an option that relates the regions of images if the task's store has one an image."""
    # a task that is built from a checkpoint has no store
    features = getattr(task, "features", None)
    if features is not None and all(features.count_rows(key) == 1 for key in features.ids):
        raise UserError(
            f"{option} reads the regions of images, but the features are pooled (1 region an "
            "image): extract with --grid."
        )


def check_regions(features: Tensor, reads_grid: Optional[bool]) -> None:
    """Refuse features [B, N, D] that are no grid, or a grid; any do if ``reads_grid`` is None."""
    count = features.size(1)
    if reads_grid is not None and reads_grid != (count > 1):
        trained, remedy = ("a grid", "with") if reads_grid else ("one region", "without")
        raise UserError(
            f"the model was trained on {trained} of each image, but is given {count} regions: "
            f"extract {remedy} --grid."
        )


def scale_vectors(x: Tensor, scaling: str) -> Tensor:
    """Scale vectors [..., D] float32; zero vectors stay zero.

    ``scaling`` is ``scale`` to divide by the root mean square; ``root`` to replace each number by
    its signed square root, subtract the mean and divide by the root mean square; ``unit`` to scale
    to unit length; ``none`` for no scaling.
    """
    if scaling == "none":
        return x
    if scaling == "unit":
        return F.normalize(x, dim=-1)
    if scaling == "root":
        # Activations after a ReLU have a large common mean and a few large values, which would hide
        # the others from a linear layer.
        size = x.abs()
        if size.requires_grad:
            # the gradient of the root is infinite at 0, and NaN if multiplied by the sign's 0
            size = size.clamp(min=_LEAST_ROOT)
        x = x.sign() * size.sqrt()
        x = x - x.mean(-1, keepdim=True)
    return x * x.pow(2).mean(-1, keepdim=True).clamp(min=1e-12).rsqrt()
