"""The features of an image's regions as one vector of a known size."""

import torch.nn.functional as F
from torch import Tensor

SCALINGS = ("root", "scale", "unit", "none")


def masked_mean(features: Tensor, padding_mask: Tensor) -> Tensor:
    """
    Args:
        features: ``[B, N, D]`` features, padded along N.
        padding_mask: ``[B, N]`` bool, True at padding. Each row must have a real feature.

    Returns:
        ``[B, D]`` in float32.
    """
    features = features.float()
    if features.size(1) == 1:
        return features[:, 0]
    valid_mask = (~padding_mask).unsqueeze(-1)
    return (features * valid_mask).sum(1) / valid_mask.sum(1)


def scale_vectors(x: Tensor, scaling: str) -> Tensor:
    """
    Args:
        x: ``[..., D]`` in float32.
        scaling: ``root``: signed square roots, centred, scaled to a mean square of one. Activations
            after a ReLU have a large common mean and few large values, which would hide the rest
            from a linear layer. ``scale``: scaled to a mean square of one. ``unit``: to unit
            length. ``none``: as they are.

    Returns:
        ``[..., D]``; zeros stay zeros.
    """
    if scaling == "none":
        return x
    if scaling == "unit":
        return F.normalize(x, dim=-1)
    if scaling == "root":
        x = x.sign() * x.abs().sqrt()
        x = x - x.mean(-1, keepdim=True)
    return x * x.pow(2).mean(-1, keepdim=True).clamp(min=1e-12).rsqrt()
