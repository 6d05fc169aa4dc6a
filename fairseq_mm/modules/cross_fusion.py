"""Cross fusion of a text and a video, with forget gates."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALE = 8.0  # of the scores, whatever the widths are


class GatedFusion(nn.Module):
    """One side takes from the other what its gate lets through:

        S = softmax(x W_a y^T / 8)       over the other side's elements
        y~ = S y
        g = sigmoid(W_f [x; y~])
        x <- ReLU(x + W [x; (W_m y~ + b_m) * g] + b)

    Args:
        dim: C of the side that takes, x.
        other_dim: D of the other, y.
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
        # scaled before the product, which float16 might not hold
        scores = torch.matmul(self.query_proj(x) / SCALE, other.transpose(1, 2)).float()
        scores = scores.masked_fill(other_padding_mask.unsqueeze(1), float("-inf"))
        seen = torch.matmul(scores.softmax(dim=-1).to(other.dtype), other)  # [B, N, D]
        gate = torch.sigmoid(self.gate_proj(torch.cat([x, seen], dim=-1)))
        taken = self.memory_proj(seen) * gate
        return F.relu(x + self.output_proj(torch.cat([x, taken], dim=-1)))


class CrossFusion(nn.Module):
    """The text takes from the video, and then the video from the text that has taken.

    Liu et al. 2020, section 3.2: the cross fusion block with the fusion forget gate, in the order
    of its released code.

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
