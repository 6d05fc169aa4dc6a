"""Defines the sub-layer of a text model that attends from the text to the frames of a video.

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. 2021, section 3.3, equations 4 to 13.
"""

from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_mm.modules.attention import attend, attention_weights, merge_heads, split_heads

KINDS = ("dot_product", "dot_product_projected", "multi_head")


@dataclass
class FusionTrace:
    """Attention weights and gate values of a :class:`VideoFusion`, one tensor per call.

    Attributes:
        weights: [B, heads, tokens, frames] attention weights; dot-product attention has one head.
        gates: [B, tokens, channels] values of the forget gate.
    """

    weights: list[Tensor] = field(default_factory=list)
    gates: list[Tensor] = field(default_factory=list)


class VideoFusion(nn.Module):
    """Fusion ``LayerNorm(text + dropout([text; O] W + b))`` (Yu et al. 2021, section 3.3).

    O is the result of attending from the text T [B, N, text_dim] to the frames V [B, M, video_dim].
    Biases left out, ``kind`` selects:

    - ``dot_product``: ``A = softmax(T (V W1)^T)``, ``O = A V`` (equations 4 to 6).
    - ``dot_product_projected``: the same A, ``O = A V W1``.
    - ``multi_head``: ``O = concat_i(softmax(Q_i K_i^T / sqrt(d)) U_i) W_o``, where head i has d
      channels of the queries ``Q = T W_q``, keys ``K = V W_k`` and values ``U = V W_v``, all of
      dimension ``common_dim`` (equations 7 to 11, appendix A).

    With ``forget_gate``, ``F * O`` replaces O, where ``F = sigmoid([O; T] W_f)`` (equations 12,
    13).

    Appendix A multiplies by two matrices in succession where this module has one matrix: W_q, W_k
    and W_v include each head's own projections of queries, keys and values. In the same way W_o is
    part of W_v if there is one head, and part of W if there is no forget gate. Several heads with a
    gate need their own matrix W_o (``attention_out_proj``), because it mixes the heads before the
    elementwise product.

    Args:
        dropout: Dropout of the term that is added to the text.
        identity_init: True to output ``text + mix * (fusion - text)`` with a learned number
            ``mix``, initially 0, so that a pretrained model starts unchanged.
        text_axis: True for a softmax over the text's tokens instead of the frames, as in the
            released code; only for the two dot-product kinds.
        gate_dropout: Dropout of the forget gate's values, as in the released code.
        output_projection: False for no matrix W_o.
    """

    def __init__(
        self,
        text_dim: int,
        video_dim: int,
        *,
        kind: str = "multi_head",
        common_dim: int = 256,
        num_heads: int = 4,
        forget_gate: bool = True,
        dropout: float = 0.1,
        identity_init: bool = False,
        text_axis: bool = False,
        gate_dropout: float = 0.0,
        output_projection: bool = True,
    ) -> None:
        super().__init__()
        if kind == "multi_head":
            self.query_proj = nn.Linear(text_dim, common_dim)
            self.key_proj = nn.Linear(video_dim, common_dim, bias=False)
            self.value_proj = nn.Linear(video_dim, common_dim)
            width = common_dim
        else:
            # With a softmax over the text, a bias of keys adds a different number to every score,
            # so it has an effect; so it has where keys are values, too.
            has_bias = text_axis or kind == "dot_product_projected"
            self.key_proj = nn.Linear(video_dim, text_dim, bias=has_bias)
            width = video_dim if kind == "dot_product" else text_dim
        mixes_heads = kind == "multi_head" and num_heads > 1 and forget_gate and output_projection
        self.attention_out_proj = nn.Linear(width, width) if mixes_heads else None
        self.gate_proj = nn.Linear(width + text_dim, width) if forget_gate else None
        self.output_proj = nn.Linear(text_dim + width, text_dim)
        self.norm = nn.LayerNorm(text_dim)
        # At 0 the pretrained model is unchanged, and only mix itself has a gradient.
        self.mix = nn.Parameter(torch.zeros(1)) if identity_init else None
        self.kind = kind
        self.num_heads = num_heads
        self.text_dim = text_dim
        self.dropout = nn.Dropout(dropout)
        self.gate_dropout = nn.Dropout(gate_dropout)
        self.text_axis = text_axis

    def project(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values, which depend only on the video [B, M, video_dim].

        For ``multi_head``, both are [B, heads, M, common_dim / heads]. For the dot-product kinds,
        keys are [B, M, text_dim], and values [B, M, C] are prepared for the layer that follows the
        attention: multiplied by the part of W that belongs to O or, with a forget gate,
        concatenated with their product with the part of W_f that belongs to O.
        """
        keys = self.key_proj(video)
        if self.kind == "multi_head":
            values = self.value_proj(video)
            return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)
        # The linear layers after O are applied to the frames: they commute with the weighted sum,
        # and there are fewer frames than words.
        values = video if self.kind == "dot_product" else keys
        if self.gate_proj is None:
            return keys, F.linear(values, self.output_proj.weight[:, self.text_dim :])
        in_gate = F.linear(values, self.gate_proj.weight[:, : values.size(-1)])
        return keys, torch.cat([values, in_gate], dim=-1)

    def forward(
        self,
        text: Tensor,
        projected: tuple[Tensor, Tensor],
        padding_mask: Optional[Tensor] = None,
        trace: Optional[FusionTrace] = None,
    ) -> Tensor:
        """Fuse the frames into the text [B, N, text_dim]; its shape does not change.

        ``projected`` is the result of :meth:`project`. ``padding_mask`` is [B, M] bool, True at
        padding frames. Attention weights and gate values are appended to ``trace``.
        """
        read = self._read(text, projected, padding_mask, trace)
        is_dot = self.kind != "multi_head"
        if self.gate_proj is not None:
            if is_dot:
                read, in_gate = read.chunk(2, dim=-1)
                weight = self.gate_proj.weight[:, read.size(-1) :]
                logits = in_gate + F.linear(text, weight, self.gate_proj.bias)
            else:
                logits = _linear_of_both(self.gate_proj, read, text)
            gate = logits.sigmoid()  # [B, N, W]
            if trace is not None:
                trace.gates.append(gate)
            fused = _linear_of_both(self.output_proj, text, self.gate_dropout(gate) * read)
        elif is_dot:
            weight = self.output_proj.weight[:, : self.text_dim]
            fused = F.linear(text, weight, self.output_proj.bias) + read
        else:
            fused = _linear_of_both(self.output_proj, text, read)
        # Equation 3 of the paper: residual connection, then layer norm.
        output = self.norm(text + self.dropout(fused))
        return output if self.mix is None else text + self.mix * (output - text)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Add ``attention_out_proj``, as the identity, to weights of version 0.1, which lack it."""
        weight = f"{name}.attention_out_proj.weight"
        values = state_dict.get(f"{name}.value_proj.weight")
        if self.attention_out_proj is None or values is None or weight in state_dict:
            return
        identity = torch.eye(len(values), dtype=values.dtype, device=values.device)
        state_dict[weight] = identity
        state_dict[f"{name}.attention_out_proj.bias"] = torch.zeros_like(identity[0])

    def _read(
        self,
        text: Tensor,
        projected: tuple[Tensor, Tensor],
        padding_mask: Optional[Tensor],
        trace: Optional[FusionTrace],
    ) -> Tensor:
        keys, values = projected
        if self.kind == "multi_head":
            attention_mask = None if padding_mask is None else ~padding_mask[:, None, None]
            query = split_heads(self.query_proj(text), self.num_heads)  # [B, h, N, A]
            if trace is not None:
                trace.weights.append(attention_weights(query, keys, attention_mask))
            read = merge_heads(attend(query, keys, values, attention_mask))
            return read if self.attention_out_proj is None else self.attention_out_proj(read)
        # unscaled products of wide vectors may overflow in half precision
        with torch.autocast(text.device.type, enabled=False):
            scores = torch.matmul(text.float(), keys.float().transpose(1, 2))  # [B, N, M]
        # A softmax over the frames must be masked before; a softmax over the text, whose columns
        # are frames, can only be masked after.
        if padding_mask is not None and not self.text_axis:
            scores = scores.masked_fill(padding_mask.unsqueeze(1), float("-inf"))
        weights = scores.softmax(dim=1 if self.text_axis else 2)
        if padding_mask is not None and self.text_axis:
            weights = weights.masked_fill(padding_mask.unsqueeze(1), 0.0)
        weights = weights.to(text.dtype)
        if trace is not None:
            trace.weights.append(weights.unsqueeze(1))
        return torch.matmul(weights, values)


def _linear_of_both(layer: nn.Linear, first: Tensor, second: Tensor) -> Tensor:
    """Compute ``layer([first; second])`` without concatenating the two."""
    width = first.size(-1)
    left = F.linear(first, layer.weight[:, :width], layer.bias)
    return left + F.linear(second, layer.weight[:, width:])
