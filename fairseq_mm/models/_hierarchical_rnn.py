"""Encoder and decoder of the recurrent models that summarise transcripts and videos.

A bidirectional GRU encodes the transcript. The frames are not encoded. The mean of the GRU's states
("text" below) initialises the decoder, and each word of the summary is a step of
:class:`ConditionalGRU`, which attends to the states and to the
frames:

    h_0 = tanh(W mean(text) + b)
    h_t = conditional GRU(word t, h_(t-1))
    P(word t + 1) = softmax(E dropout(tanh(W h_t + b)) + b')      E: matrix of word embeddings
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._video_summary import (
    EncoderOut,
    TwoSourceDecoder,
    TwoSourceEncoder,
    attention_extra,
    get_sources,
)
from fairseq_mm.modules.additive_attention import AdditiveAttention, ModalityAttention
from fairseq_mm.modules.cross_fusion import CrossFusion
from fairseq_mm.modules.packed_rnn import PackedGRU
from fairseq_mm.modules.recurrent_steps import step_gru


class ConditionalGRU(nn.Module):
    """Conditional GRU with one source per modality m:

        h1 = GRU_1(word, h)
        z_m = attention_m(h1)
        z = sum_m b_m z_m
        h2 = GRU_2(z, h1)

    where h is the state after the previous word, h2 the new state, z_m the context of modality m
    and b_m its attention weight. Firat and Cho 2016 (dl4mt-tutorial, one source); Libovicky and
    Helcl 2017, section 3.2. The elements of modality m have ``source_dims[m]`` channels.
    """

    def __init__(self, input_dim: int, hidden_dim: int, source_dims: Sequence[int]) -> None:
        super().__init__()
        self.first = nn.GRUCell(input_dim, hidden_dim)
        self.attentions: Any = nn.ModuleList(
            AdditiveAttention(hidden_dim, dim, hidden_dim, hidden_dim) for dim in source_dims
        )
        self.modality_attention = ModalityAttention(
            hidden_dim, hidden_dim, hidden_dim, num_modalities=len(source_dims)
        )
        self.second = nn.GRUCell(hidden_dim, hidden_dim)

    def project(self, sources: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Compute each modality's keys and values from its elements [B, N, C], once per batch."""
        return [attention.project(x) for attention, x in zip(self.attentions, sources)]

    def forward(
        self,
        word: Tensor,
        hidden: Tensor,
        projected: Sequence[tuple[Tensor, Tensor]],
        padding_masks: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the state of the decoder after one word.

        Args:
            word: [B, input_dim] vector of the word.
            hidden: [B, hidden_dim] state after the previous word.
            projected: Result of :meth:`project`.
            padding_masks: [B, N] bool for each modality, True at padding.

        Returns:
            The new state, the attention weights [B, N] over the elements of each modality, and the
                weights [B, modalities] of the modalities.
        """
        hidden = step_gru(self.first, word, hidden)
        contexts, weights = [], []
        for attention, source, mask in zip(self.attentions, projected, padding_masks):
            context, weight = attention(hidden, *source, mask)
            contexts.append(context)
            weights.append(weight)
        context, modality_weights = self.modality_attention(hidden, contexts)
        return step_gru(self.second, context, hidden), weights, modality_weights


@dataclass
class HierarchicalRnnConfig(FairseqDataclass):
    """Options of the recurrent models that summarise transcripts and videos, after the code of Liu
    et al. 2020.
    """

    embedding_dim: int = option(128, "Dimension of token embeddings of transcript and summary.")
    encoder_hidden_dim: int = option(
        256, "Hidden size of the GRU over the transcript, in each direction."
    )
    encoder_layers: int = option(2, "Number of layers of the GRU over the transcript.")
    hidden_dim: int = option(256, "Hidden size of the decoder's GRUs and attentions.")
    dropout: float = option(
        0.3,
        "Dropout probability of the transcript's embeddings and states, and of the output layer's "
        "input.",
    )


class HierarchicalRnnEncoder(TwoSourceEncoder):
    """Encoder with a bidirectional GRU over the words, and optionally a fusion with the frames."""

    def __init__(self, dictionary: Any, cfg: Any, cross_fusion: Optional[CrossFusion]) -> None:
        super().__init__(dictionary)
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_dim, dictionary.pad())
        self.gru = PackedGRU(cfg.embedding_dim, cfg.encoder_hidden_dim, cfg.encoder_layers)
        self.dropout = nn.Dropout(cfg.dropout)
        self.cross_fusion = cross_fusion

    def encode(
        self, tokens: Tensor, features: Tensor, text_padding: Tensor, video_padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        text = self.dropout(self.gru(self.dropout(self.embedding(tokens)), text_padding))
        if self.cross_fusion is None:
            return text, features
        return self.cross_fusion(text, features, text_padding, video_padding)


class HierarchicalRnnDecoder(TwoSourceDecoder):
    """Decoder with a conditional GRU that attends to encoded words and frames."""

    def __init__(self, dictionary: Any, cfg: Any, video_dim: int) -> None:
        super().__init__(dictionary)
        text_dim = 2 * cfg.encoder_hidden_dim
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_dim, dictionary.pad())
        nn.init.normal_(self.embedding.weight, std=0.1)
        with torch.no_grad():
            # normal_() has filled the row of padding, which nn.Embedding had zeroed.
            self.embedding.weight[dictionary.pad()].zero_()
        self.first_state_proj = nn.Linear(text_dim, cfg.hidden_dim)
        self.gru = ConditionalGRU(cfg.embedding_dim, cfg.hidden_dim, [text_dim, video_dim])
        self.hidden_proj = nn.Linear(cfg.hidden_dim, cfg.embedding_dim)
        self.dropout = nn.Dropout(cfg.dropout)
        self.output_proj = nn.Linear(cfg.embedding_dim, len(dictionary))
        # The output layer has the matrix of the embedding, as in the released configuration.
        self.output_proj.weight = self.embedding.weight
        nn.init.zeros_(self.output_proj.bias)

    def project(self, sources: list[Tensor]) -> Any:
        return self.gru.project(sources)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[dict] = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [B, T, E], or [B, 1, E] when decoding incrementally, and a dict of
        attention weights, see :func:`attention_extra`.
        """
        sources, masks = get_sources(encoder_out)
        saved = self.saved_state(incremental_state)
        if saved is None:
            projected = self.project_source(encoder_out, has_beams=incremental_state is not None)
            # The encoder has zeroed padding, so only the count needs the mask. float32: a float16
            # sum over 600 words would lose digits.
            text = sources[0]
            mean = text.float().sum(dim=1) / (~masks[0]).sum(dim=1, keepdim=True)
            hidden = torch.tanh(self.first_state_proj(mean.to(text.dtype)))
        else:
            projected, (hidden,) = saved["projected"], saved["past"]
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
        states, weights, modalities = [], [], []
        # Word by word also in training: the attention of a step depends on the state of the step
        # before.
        for word in self.embedding(prev_output_tokens).unbind(1):
            hidden, source_weights, modality_weights = self.gru(word, hidden, projected, masks)
            states.append(hidden)
            weights.append(source_weights)
            modalities.append(modality_weights)
        if incremental_state is not None:
            self.save_state(incremental_state, encoder_out, projected, [hidden])
        outputs = self.dropout(torch.tanh(self.hidden_proj(torch.stack(states, dim=1))))
        words, frames = (torch.stack(list(parts), dim=1) for parts in zip(*weights))
        return outputs, attention_extra(words, frames, torch.stack(modalities, dim=1))


def build_hierarchical_rnn(
    cfg: Any, task: Any, *, fuses: bool
) -> tuple[HierarchicalRnnEncoder, HierarchicalRnnDecoder]:
    """Build encoder and decoder; ``fuses`` is True for a cross fusion of words and frames."""
    fusion = CrossFusion(2 * cfg.encoder_hidden_dim, task.feature_dim) if fuses else None
    encoder = HierarchicalRnnEncoder(task.source_dictionary, cfg, fusion)
    decoder = HierarchicalRnnDecoder(task.target_dictionary, cfg, task.feature_dim)
    return encoder, decoder


TINY = {"embedding_dim": 12, "encoder_hidden_dim": 9, "hidden_dim": 16, "dropout": 0.0}
