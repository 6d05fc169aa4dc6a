"""Encodes prompts by convolutions (Gehring et al. 2017, section 3.2; Fan et al. 2018)."""

import math
from typing import Any, Optional

import torch.nn.functional as F
from fairseq.modules import GradMultiply
from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.models._bases import BatchFirstEncoder, EncoderOut
from fairseq_mm.modules.linear import linear, normal_linear
from fairseq_mm.modules.positions import PositionedEmbedding


class ConvEncoder(BatchFirstEncoder):
    """Convolutional encoder of a prompt.

    Args:
        layers: (channels, kernel width) of each layer.
        embed_dim: E, dimension of the word embeddings and of the output.
        dropout: Dropout probability of the embeddings and of each layer's input.
        table_rows: Number of rows of the position embedding: maximum length of a prompt + padding
            index + 1.
        num_attention_layers: Number of decoder layers that attend to the prompt; the gradient of
            the encoder's output is divided by twice this number.
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
        std = math.sqrt((1 - dropout) / embed_dim)
        self.input_proj = normal_linear(embed_dim, channels, std)
        self.residual_projs = nn.ModuleList()
        self.convolutions: Any = nn.ModuleList()
        for out_channels, width in layers:
            if channels == out_channels:
                self.residual_projs.append(nn.Identity())
            else:
                std = math.sqrt(1 / channels)
                self.residual_projs.append(normal_linear(channels, out_channels, std))
            convolution = nn.Conv1d(channels, 2 * out_channels, width)
            # Gehring et al. 2017, section 3.5: a gated linear unit quarters the variance of its
            # input.
            nn.init.normal_(convolution.weight, std=math.sqrt(4 * (1 - dropout) / width / channels))
            assert convolution.bias is not None
            nn.init.zeros_(convolution.bias)
            self.convolutions.append(convolution)
            channels = out_channels
        self.output_proj = normal_linear(channels, embed_dim, math.sqrt(1 / channels))
        self.dropout = nn.Dropout(dropout)
        # Gehring et al. 2017, section 3.4: keys and values get a gradient from each attention layer
        # of the decoder, and their sum would be too large.
        self.gradient_scale = 1 / (2 * max(1, num_attention_layers))

    def forward(self, src_tokens: Tensor, src_lengths: Optional[Tensor] = None) -> EncoderOut:
        """Encode prompts ``src_tokens`` [B, S], padded on either side; ``src_lengths`` is not used.

        Returns:
            A dict of lists of one tensor: ``keys`` [B, S, embed_dim], the projected output of the
                last layer, zero at padding; ``values`` [B, S, embed_dim], the scaled sum of keys
                and input embeddings; ``padding_mask`` [B, S] bool, True at padding.
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
            # Zeroed before each convolution: otherwise words at the border would read what earlier
            # layers computed from padding.
            x = self.dropout(x.masked_fill(padding_mask.unsqueeze(-1), 0))
            width = convolution.kernel_size[0]
            # By hand, because an even width needs one more zero on the right than on the left.
            x = F.pad(x, (0, 0, (width - 1) // 2, width // 2)).transpose(1, 2)
            # Gehring et al. 2017, section 3.4: a sum of two terms has about twice the variance of
            # one.
            x = (F.glu(convolution(x).transpose(1, 2), dim=2) + residual) * math.sqrt(0.5)
        keys = linear(x, self.output_proj.weight, self.output_proj.bias)
        # Masked again, because the bias of output_proj fills the padding.
        keys = keys.masked_fill(padding_mask.unsqueeze(-1), 0)
        # Before the embeddings are added: the gradient that reaches them directly is not scaled, as
        # in fairseq.
        keys = GradMultiply.apply(keys, self.gradient_scale)
        values = (keys + embedding) * math.sqrt(0.5)
        return {"keys": [keys], "values": [values], "padding_mask": [padding_mask]}

    def max_positions(self) -> int:
        """Return the maximum length of a prompt in tokens, its end token included."""
        return self.embedding.max_positions()
