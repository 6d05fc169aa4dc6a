"""The convolutional encoder of prompts: Gehring et al. 2017, section 3.2, as Fan et al. 2018 use
it."""

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder
from fairseq.modules import GradMultiply
from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import EncoderOut
from fairseq_mm.modules.linear import linear
from fairseq_mm.modules.positions import PositionedEmbedding


class ConvEncoder(FairseqEncoder):
    """Convolutional encoder of a prompt.

    Args:
        layers: (channels, kernel width) of each layer.
        embed_dim: E, dimension of the words and of the output.
        dropout: Dropout of the embeddings and of each layer's input.
        table_rows: Rows of the position table: the number of positions + the padding index + 1.
        num_attention_layers: Number of the decoder's attention layers; the encoder's gradient is
            divided by it twice.
    """

    def __init__(
        self,
        dictionary: Any,
        layers: list[tuple[int, int]],
        *,
        embed_dim: int,
        dropout: float,
        table_rows: int,
        num_attention_layers: int,
    ) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.embedding = PositionedEmbedding(
            len(dictionary), embed_dim, self.padding_idx, table_rows
        )
        channels = layers[0][0]
        self.input_proj = _linear(embed_dim, channels, dropout)
        self.residual_projs = nn.ModuleList()
        self.convolutions: Any = nn.ModuleList()
        for out_channels, width in layers:
            has_proj = channels != out_channels
            self.residual_projs.append(
                _linear(channels, out_channels, 0) if has_proj else nn.Identity()
            )
            convolution = nn.Conv1d(channels, 2 * out_channels, width)
            nn.init.normal_(convolution.weight, std=math.sqrt(4 * (1 - dropout) / width / channels))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
            self.convolutions.append(convolution)
            channels = out_channels
        self.output_proj = _linear(channels, embed_dim, 0)
        self.dropout = nn.Dropout(dropout)
        self.gradient_scale = 1 / (2 * max(1, num_attention_layers))

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """
        Args:
            src_tokens: ``[B, S]``, padded at either side.
            src_lengths: not needed: the padding is seen from the tokens.

        Returns:
            ``keys`` ``[B, S, E]`` the last layer, zero at padding; ``values`` ``[B, S, E]`` the
            same with the embeddings added; ``padding_mask`` ``[B, S]`` bool, True at padding.

        Raises:
            UserError: if a text is longer than the positions' table.
        """
        if src_tokens.size(1) > self.max_positions():
            raise UserError(
                f"a prompt has {src_tokens.size(1)} tokens (its end included), but the model has "
                f"positions for {self.max_positions()}: shorten it (--truncate-source)."
            )
        padding_mask = src_tokens.eq(self.padding_idx)
        embedding = self.dropout(self.embedding(src_tokens))  # [B, S, E]
        x = linear(embedding, self.input_proj.weight, self.input_proj.bias)  # [B, S, C]
        for residual_proj, convolution in zip(self.residual_projs, self.convolutions):
            residual = x
            if isinstance(residual_proj, nn.Linear):
                residual = linear(x, residual_proj.weight, residual_proj.bias)
            x = self.dropout(x.masked_fill(padding_mask.unsqueeze(-1), 0))
            width = convolution.kernel_size[0]
            x = F.pad(x, (0, 0, (width - 1) // 2, width // 2)).transpose(1, 2)
            x = (F.glu(convolution(x).transpose(1, 2), dim=2) + residual) * math.sqrt(0.5)
        keys = linear(x, self.output_proj.weight, self.output_proj.bias)
        keys = keys.masked_fill(padding_mask.unsqueeze(-1), 0)
        keys = GradMultiply.apply(keys, self.gradient_scale)
        values = (keys + embedding) * math.sqrt(0.5)
        return {"keys": [keys], "values": [values], "padding_mask": [padding_mask]}

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return reorder_encoder_out(encoder_out, new_order)

    def max_positions(self) -> int:
        """Longest text, its end included."""
        return self.embedding.max_positions()


def is_identity(new_order: Tensor, rows: int) -> bool:
    """Whether a reordering of so many rows leaves all where they are."""
    if new_order.numel() != rows:
        return False
    return bool(torch.equal(new_order, torch.arange(rows, device=new_order.device)))


def reorder_encoder_out(encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
    """Rows of all tensors in another order; at most steps of sampling, which is as it was."""
    rows = next(iter(encoder_out.values()))[0].size(0)
    if is_identity(new_order, rows):
        return encoder_out
    return {key: [x.index_select(0, new_order) for x in xs] for key, xs in encoder_out.items()}


def _linear(input_dim: int, output_dim: int, dropout: float) -> nn.Linear:
    layer = nn.Linear(input_dim, output_dim)
    nn.init.normal_(layer.weight, std=math.sqrt((1 - dropout) / input_dim))
    nn.init.zeros_(layer.bias)
    return layer
