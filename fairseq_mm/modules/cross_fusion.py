"""Cross fusion of text and video with forget gates (Liu et al. 2020, section 3.2)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The released code's constant for all dimensions; sqrt(dim) would be usual.
SCALE = 8.0


class GatedFusion(nn.Module):
    """Fusion that adds gated information from one modality, y, to the other modality, x:

    S = softmax(x W_a y^T / 8)       over the elements of y
    y~ = S y
    g = sigmoid(W_f [x; y~])
    x <- ReLU(x + W [x; (W_m y~ + b_m) * g] + b)
    """

    def __init__(self, dim: int, other_dim: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(dim, other_dim, bias=False)
        self.memory_proj = nn.Linear(other_dim, other_dim)
        self.gate_proj = nn.Linear(dim + other_dim, other_dim, bias=False)
        self.output_proj = nn.Linear(dim + other_dim, dim)

    def forward(self, x: Tensor, other: Tensor, other_padding_mask: Tensor) -> Tensor:
        """Fuse ``other`` [B, M, other_dim] into x [B, N, dim]; the shape of x does not change.

        ``other_padding_mask`` is [B, M] bool, True at padding; at least one element of each row is
        real.
        """
        # scaled before the product, which could overflow in float16
        scores = torch.matmul(self.query_proj(x) / SCALE, other.transpose(1, 2)).float()
        scores = scores.masked_fill(other_padding_mask.unsqueeze(1), float("-inf"))
        context = torch.matmul(scores.softmax(dim=-1).to(other.dtype), other)  # [B, N, D]
        gate = torch.sigmoid(self.gate_proj(torch.cat([x, context], dim=-1)))
        gated = self.memory_proj(context) * gate
        return F.relu(x + self.output_proj(torch.cat([x, gated], dim=-1)))


class CrossFusion(nn.Module):
    """Two :class:`GatedFusion`: video is fused into text, then the fused text into video."""

    def __init__(self, text_dim: int, video_dim: int) -> None:
        super().__init__()
        self.text_fusion = GatedFusion(text_dim, video_dim)
        self.video_fusion = GatedFusion(video_dim, text_dim)

    def forward(
        self, text: Tensor, video: Tensor, text_padding_mask: Tensor, video_padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fuse text [B, S, text_dim] and video [B, M, video_dim] into each other.

        The shapes do not change; both results are zero at padding, where the masks are True.
        """
        # The order of the stages follows the released code: the video is fused with the new text.
        text = self.text_fusion(text, video, video_padding_mask)
        video = self.video_fusion(video, text, text_padding_mask)
        # Padding is zeroed because the RNN decoder starts from the plain sum of the text over
        # all positions.
        return (
            text.masked_fill(text_padding_mask.unsqueeze(-1), 0),
            video.masked_fill(video_padding_mask.unsqueeze(-1), 0),
        )
