"""GLAC and its attention variants (``--arch glac``, task ``visual_storytelling``).

Kim, Heo, Son, Park, Zhang. GLAC Net: GLocal Attention Cascading Networks for Multi-image Cued
Story Generation. 2018. https://arxiv.org/abs/1805.10973
Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020, sections 3.1 to 3.3.

For each of the five images i, with x_i its features:

    v_i = BatchNorm(W x_i + b)                                1024
    h_i = two-layer bidirectional LSTM over v_1 ... v_5       2 x 1024
    g_i = BatchNorm(dropout(W [v_i; h_i] + b))                2048   the glocal vector
    s_i = ReLU(dropout(W g_i + b))                            1024

and for each word of sentence i, where the LSTM's state is carried from sentence to sentence
("cascading"):

    state = two-layer LSTM([s_i; embedding of the word before], state)
    P(word) = softmax(W output of the LSTM + b)

A whole story is therefore one run of the LSTM; s_i changes at each separator between sentences.

Variants of Li et al. 2020:

``glac_non_local``          applies a non-local block (equations 1 to 4) to the 7 x 7 grid of an
                            image's features, before the features are averaged.
``glac_decoder_attention``  replaces s_i by eight vectors of 1024, the slices of image i. Each word
                            attends to the slices (equations 5 to 8). The query is the LSTM's last
                            output, or zero at the beginning of a sentence.
                            ``--finetune-from-model`` starts from a trained GLAC.

In Li et al. 2020, the matrices W that compute the eight slices are initialised independently. At
the beginning of training, the attention then computes about the mean of the slices. This mean
varies between images only 1 / sqrt(8) times as much as GLAC's s_i, and the model learns to ignore
the image. Here the eight matrices are initialised as copies of one matrix, so that any weighted
mean of slices varies as much as GLAC's s_i. Noise that sums to zero over the copies is added,
because equal slices would get equal gradients and stay equal. ``--slice-init independent``
initialises as in the paper.

Differs from the papers:
- Sentences 2 to 5 start with the separator, the first sentence with fairseq's start token.
- A missing image enters neither the statistics of batch normalisation nor the LSTM over the images,
  and its s_i depends only on the other images. The released code replaces it by a black image.
- Li et al.'s non-local block has no batch normalisation; ``--non-local-norm`` adds it, as in the
  released code. With and without it, the block is initialised as the identity.
- Features are extracted once, with the running statistics of the image network's batch
  normalisation and without random crops. In the released code the image network's batch
  normalisation stays in training mode.
"""

from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import FeatureDecoder, check_has_regions
from fairseq_mm.models._image_sequence import (
    GlocalConfig,
    GlocalEncoder,
    ImageVectors,
    StoryModel,
    encoder_output,
)
from fairseq_mm.models._presets import register_presets
from fairseq_mm.modules.positions import next_positions, select_sentence_vectors, sentence_positions
from fairseq_mm.modules.recurrent_steps import step_lstm

SLICE_INITS = ("copies", "independent")
SliceInit: Any = ChoiceEnum(SLICE_INITS)  # created at run time, so Any for type checkers
_NOISE_SEED = 1
# With a smaller divisor, scores would leave the range of float32.
LEAST_TEMPERATURE = 1e-3


@dataclass
class GlacConfig(GlocalConfig):
    """Options of GLAC and its variants. The default sizes follow GLAC's released code."""

    embedding_dim: int = option(256, "Dimension of token embeddings.")
    hidden_dim: int = option(1024, "Hidden size of the LSTM over the tokens.")
    decoder_layers: int = option(2, "Number of layers of the LSTM over the tokens.")
    slices: int = option(
        1,
        "Number of parts (slices) of an image's vector to which tokens attend (Li et al. 2020, "
        "section 3.3).",
    )
    slice_init: SliceInit = option(
        "copies",
        "Initial matrices of the slices: copies of one matrix plus noise that sums to zero over "
        "the copies, or independent matrices, as in Li et al. 2020.",
    )
    slice_noise: float = option(
        0.5,
        "Standard deviation of the noise of --slice-init copies, divided by the standard deviation "
        "of the matrix.",
        above=0,
    )
    slice_temperature: float = option(
        1.0,
        "Number that divides the attention scores of slices; 1 is equation 6 of Li et al. 2020.",
        least=LEAST_TEMPERATURE,
    )
    non_local: bool = option(
        False, "Apply a non-local block to the grid of features (Li et al. 2020, section 3.2)."
    )
    non_local_norm: bool = option(
        False, "Use batch normalisation in the non-local block, as the code of Li et al. 2020 does."
    )
    encoder_dropout: float = option(
        0.5, "Dropout probability of the LSTM over the images and of the linear layers after it."
    )
    dropout: float = option(0.5, "Dropout probability of the LSTM over the tokens.")
    embedding_dropout: float = option(0.1, "Dropout probability of token embeddings.")


class GlacDecoder(FeatureDecoder):
    """Decoder that predicts a word from the image of its sentence and all words before.

    An image's vector consists of S slices of dimension H, the hidden size of the LSTM. If S is more
    than 1, each word attends to the slices. ``separator`` is the token that separates sentences.
    """

    state_key = "glac"

    def __init__(self, dictionary: Any, separator: int, cfg: GlacConfig) -> None:
        super().__init__(dictionary)
        self.separator = separator
        self.slices = cfg.slices
        self.slice_temperature = cfg.slice_temperature
        self.embedding = nn.Embedding(len(dictionary), cfg.embedding_dim, dictionary.pad())
        self.lstm = nn.LSTM(
            cfg.hidden_dim + cfg.embedding_dim,
            cfg.hidden_dim,
            cfg.decoder_layers,
            batch_first=True,
            dropout=cfg.dropout if cfg.decoder_layers > 1 else 0.0,
        )
        self.output_proj = nn.Linear(cfg.hidden_dim, len(dictionary))
        self.dropout = nn.Dropout(cfg.dropout)
        self.embedding_dropout = nn.Dropout(cfg.embedding_dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.output_proj.weight, -0.1, 0.1)
        nn.init.zeros_(self.output_proj.bias)
        with torch.no_grad():
            # uniform_() has filled the row of padding, which nn.Embedding had zeroed.
            self.embedding.weight[dictionary.pad()].zero_()

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[dict[str, list[Tensor]]],
        incremental_state: Optional[dict] = None,
    ) -> tuple[Tensor, Optional[dict[str, Optional[Tensor]]]]:
        """Compute features [B, T, H], or [B, 1, H] when decoding incrementally.

        With slices, the second result is a dict with ``slice_attention``, attention weights [B, T,
        S]; otherwise it is None.
        """
        vectors, _ = encoder_output(encoder_out)  # [B, 5, S H]
        saved = None
        if incremental_state is None:
            sentences, positions = sentence_positions(prev_output_tokens, self.separator)
        else:
            prev_output_tokens = prev_output_tokens[:, -1:]
            saved = self.get_incremental_state(incremental_state, self.state_key)
            before = None if saved is None else (saved["sentence"], saved["position"])
            sentence, position = next_positions(before, prev_output_tokens[:, 0], self.separator)
            sentences, positions = sentence.unsqueeze(1), position.unsqueeze(1)
        embedded = self.embedding_dropout(self.embedding(prev_output_tokens))
        if saved is None:
            zeros = embedded.new_zeros(len(embedded), self.lstm.num_layers, self.lstm.hidden_size)
            state = zeros, zeros
        else:
            state = saved["h"], saved["c"]
        weights = None
        if self.slices > 1:
            outputs, weights, state = self._attend(vectors, embedded, sentences, positions, state)
        else:
            inputs = torch.cat([select_sentence_vectors(vectors, sentences), embedded], dim=-1)
            outputs, state = self._run(inputs, state)
        if incremental_state is not None:
            saved = {"h": state[0], "c": state[1], "sentence": sentence, "position": position}
            self.set_incremental_state(incremental_state, self.state_key, saved)
        # fairseq's search reads the key `attn`, attention to source words, if the dict is not None
        extra = None if weights is None else {"attn": None, "slice_attention": weights}
        return self.dropout(outputs), extra

    def _run(
        self, inputs: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM over [B, T, H + E], from the state (h, c) of [B, layers, H] each."""
        if inputs.size(1) == 1 and inputs.device.type == "cpu":
            # nn.LSTM lays out its weights anew at each call. Layers are in the second dimension, so
            # that fairseq can reorder rows in the first.
            hs, cs = list(state[0].unbind(1)), list(state[1].unbind(1))
            outputs = self._step_cells(inputs[:, 0], hs, cs).unsqueeze(1)
            return outputs, (torch.stack(hs, dim=1), torch.stack(cs, dim=1))
        h, c = (x.transpose(0, 1).contiguous() for x in state)
        outputs, (h, c) = self.lstm(inputs, (h, c))
        return outputs, (h.transpose(0, 1), c.transpose(0, 1))

    def _attend(
        self,
        vectors: Tensor,
        embedded: Tensor,
        sentences: Tensor,
        positions: Tensor,
        state: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Attend to the slices of image vectors word by word (Li et al. 2020, equations 6 to 8).

        Args:
            vectors: [B, 5, S H] image vectors, S slices of dimension H each.
            embedded: [B, T, E] word embeddings.
            sentences: [B, T] index of each word's sentence.
            positions: [B, T] position of each word in its sentence.
            state: h and c of the LSTM before the first word, [B, layers, H] each.

        Returns:
            Outputs [B, T, H], attention weights [B, T, S], and the new state.
        """
        slices = vectors.unflatten(-1, (self.slices, -1))  # [B, 5, S, H]
        # unbind() has one gradient for all words; indexing would have a gradient of the size of all
        # words for each word.
        slices_at = select_sentence_vectors(slices, sentences).unbind(1)  # T times [B, S, H]
        is_start = positions.eq(0).unsqueeze(-1).unbind(1)
        hs, cs = list(state[0].unbind(1)), list(state[1].unbind(1))
        outputs, weights = [], []
        for t, word in enumerate(embedded.unbind(1)):
            # As in the released code: the query is zero at the beginning of a sentence, but the
            # state of the LSTM goes on.
            query = hs[-1].masked_fill(is_start[t], 0)
            chosen = slices_at[t]
            scores = torch.matmul(chosen, query.unsqueeze(-1)).squeeze(-1).float()
            weight = (scores / self.slice_temperature).softmax(dim=-1).to(chosen.dtype)
            mixture = torch.matmul(weight.unsqueeze(1), chosen).squeeze(1)
            x = torch.cat([mixture, word], dim=-1)
            weights.append(weight)
            if embedded.size(1) == 1:
                output, state = self._run(x.unsqueeze(1), state)
                return output, weight.unsqueeze(1), state
            outputs.append(self._step_cells(x, hs, cs))
        state = torch.stack(hs, dim=1), torch.stack(cs, dim=1)
        return torch.stack(outputs, dim=1), torch.stack(weights, dim=1), state

    def _step_cells(self, x: Tensor, hs: list[Tensor], cs: list[Tensor]) -> Tensor:
        """Run one step of the LSTM; replace each layer's h and c [B, H] in the lists."""
        for i in range(self.lstm.num_layers):
            if i > 0:
                # Between layers only, as nn.LSTM does.
                x = F.dropout(x, self.lstm.dropout, self.training)
            hs[i], cs[i] = step_lstm(x, hs[i], cs[i], *self.lstm.all_weights[i])
            x = hs[i]
        return x


def copies_with_noise(
    matrix: Tensor, copies: int, noise: float, generator: Optional[torch.Generator] = None
) -> Tensor:
    """Stack copies of a matrix [N, D], each with noise; the noise sums to zero over the copies.

    The noise's standard deviation is ``noise`` times the standard deviation of the matrix's
    entries.
    """
    samples = torch.randn(copies, *matrix.shape, generator=generator).to(matrix)
    # Subtracting the mean shrinks the variance by (S - 1) / S, which the factor restores.
    samples = (samples - samples.mean(dim=0)) * (copies / (copies - 1)) ** 0.5
    return (matrix + noise * matrix.std() * samples).flatten(0, 1)


@register_model("glac", dataclass=GlacConfig)
class GlacModel(StoryModel):
    """GLAC and its attention variants, which write a story from five images."""

    slice_noise = 0.0  # noise of :func:`copies_with_noise`

    @classmethod
    def build_model(cls, cfg: GlacConfig, task: Any) -> "GlacModel":
        if cfg.non_local:
            check_has_regions(task, "--non-local")
        images = ImageVectors(
            task.feature_dim,
            cfg.picture_dim,
            task.rows_per_image,
            non_local=cfg.non_local,
            non_local_norm=cfg.non_local_norm,
        )
        encoder = GlocalEncoder(images, cfg, cfg.slices * cfg.hidden_dim)
        decoder = GlacDecoder(task.target_dictionary, task.separator_index, cfg)
        model = cls(encoder, decoder, task)
        if cfg.slices > 1 and str(cfg.slice_init) == "copies":
            model.slice_noise = cfg.slice_noise
            weight = encoder.output_proj.weight
            with torch.no_grad():
                first = weight[: cfg.hidden_dim]
                weight.copy_(copies_with_noise(first, cfg.slices, cfg.slice_noise))
        return model

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Convert a checkpoint of a model without slices, if this model has slices.

        The matrix that computes an image's vector is copied for each slice, with noise.
        """
        super().upgrade_state_dict_named(state_dict, name)
        slices = self.decoder.slices
        weight = state_dict.get("encoder.output_proj.weight")
        if slices == 1 or weight is None or len(weight) != self.decoder.lstm.hidden_size:
            return
        bias = state_dict["encoder.output_proj.bias"]
        # With equal slices any mixture is the vector of the trained model; noise lets the slices
        # become different.
        state_dict["encoder.output_proj.bias"] = torch.cat([bias] * slices)
        # A fixed seed, so that all processes of a distributed training add the same noise.
        generator = torch.Generator().manual_seed(_NOISE_SEED)
        state_dict["encoder.output_proj.weight"] = copies_with_noise(
            weight, slices, self.slice_noise, generator
        )


register_presets(
    "glac",
    {
        "glac_tiny": {
            "picture_dim": 6,
            "encoder_hidden_dim": 4,
            "glocal_dim": 9,
            "embedding_dim": 5,
            "hidden_dim": 7,
        },
        "glac_non_local": {"non_local": True},
        "glac_decoder_attention": {"slices": 8},
    },
)
