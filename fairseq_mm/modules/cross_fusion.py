"""Cross fusion of text and video with forget gates."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 8.0  # divisor of the scores, independent of the dimensions


class GatedFusion(nn.Module):
    """Fusion that adds gated information from one modality y to the other, x:

        S = softmax(x W_a y^T / 8)       over the elements of y
        y~ = S y
        g = sigmoid(W_f [x; y~])
        x <- ReLU(x + W [x; (W_m y~ + b_m) * g] + b)

    Args:
        dim: C, dimension of x.
        other_dim: D, dimension of y.
    """

    def __init__(self, dim: int, other_dim: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(dim, other_dim, bias=False)
        self.memory_proj = nn.Linear(other_dim, other_dim)
        self.gate_proj = nn.Linear(dim + other_dim, other_dim, bias=False)
        self.output_proj = nn.Linear(dim + other_dim, dim)

    def forward(self, x: Tensor, other: Tensor, other_padding_mask: Tensor) -> Tensor:
        """
        Args:
            x: ``[B, N, C]``.
            other: ``[B, M, D]``.
            other_padding_mask: ``[B, M]`` bool, True at padding; at least one element is real.

        Returns:
            ``[B, N, C]``.
        """
        # scaled before the product, which could overflow in float16
        scores = torch.matmul(self.query_proj(x) / SCALE, other.transpose(1, 2)).float()
        scores = scores.masked_fill(other_padding_mask.unsqueeze(1), float("-inf"))
        seen = torch.matmul(scores.softmax(dim=-1).to(other.dtype), other)  # [B, N, D]
        gate = torch.sigmoid(self.gate_proj(torch.cat([x, seen], dim=-1)))
        gated = self.memory_proj(seen) * gate
        return F.relu(x + self.output_proj(torch.cat([x, gated], dim=-1)))


class CrossFusion(nn.Module):
    """Cross fusion block with forget gates (Liu et al. 2020, section 3.2).

    As in the released code, the video is fused into the text first, and then the new text into the
    video.

    Args:
        text_dim: C.
        video_dim: D.
    """

    def __init__(self, text_dim: int, video_dim: int) -> None:
        super().__init__()
        self.text_fusion = GatedFusion(text_dim, video_dim)
        self.video_fusion = GatedFusion(video_dim, text_dim)

    def forward(
        self,
        text: Tensor,
        video: Tensor,
        text_padding_mask: Tensor,
        video_padding_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            text: ``[B, S, C]``.
            video: ``[B, M, D]``.
            text_padding_mask: ``[B, S]`` bool, True at padding.
            video_padding_mask: ``[B, M]`` bool, True at padding.

        Returns:
            text ``[B, S, C]`` and video ``[B, M, D]``, zero at padding.
        """
        text = self.text_fusion(text, video, video_padding_mask)
        video = self.video_fusion(video, text, text_padding_mask)
        return (
            text.masked_fill(text_padding_mask.unsqueeze(-1), 0),
            video.masked_fill(video_padding_mask.unsqueeze(-1), 0),
        )
