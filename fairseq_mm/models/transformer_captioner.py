"""Transformer decoder over the regions of an image (``--arch transformer_captioner``, task
``multimodal_captioning``).

Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin. Attention Is All You Need.
NIPS 2017. https://arxiv.org/abs/1706.03762
Sharma, Ding, Goodman, Soricut. Conceptual Captions. ACL 2018, section 4, which captions images with
the transformer.

With x_i the features of region i of the image:

    u_i = LayerNorm(W x_i)
    v_1 ... v_N = transformer encoder(u_1 ... u_N)                        --encoder-layers
    h_1 ... h_T = transformer decoder(sqrt(C) e(word t) + position t; v_1 ... v_N)
    P(word t+1) = softmax(E h_t + c)

where C is ``--embed-dim``, e(word) is a row of the matrix E, and positions are sinusoidal. Every
word attends to the words before it, and to all regions.

Regions are the positions of a grid (``fairseq-mm extract --grid``), detected objects, or one pooled
vector. A model that was trained on grids refuses pooled features, and a model that was trained on
pooled features refuses grids.

Differs from the papers:
- Layers normalise their inputs instead of their outputs (pre-norm), which trains without a long
  warm-up of the learning rate; a last norm follows the encoder's and the decoder's layers.
- For data of the size of Flickr8k, the default sizes are smaller and the default dropout is larger
  than in the papers; they were not tuned. By default there is no encoder, because the features of a
  convolutional network's regions already depend on the surrounding regions.
- Regions have no encoding of their positions.
"""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import BatchFirstEncoder, FeatureDecoder, ImageModel, check_regions
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import Provenance
from fairseq_mm.modules.decoding_caches import keeps_items, project_items, reorder_state
from fairseq_mm.modules.positions import sinusoids
from fairseq_mm.modules.pre_norm_layer import PreNormDecoderLayer, PreNormEncoderLayer


@dataclass
class TransformerCaptionerConfig(FairseqDataclass):
    """Options of the transformer for captions."""

    embed_dim: int = option(
        256, "Dimension of word embeddings, projected regions and layers.", multiple=2
    )
    encoder_layers: int = option(0, "Number of encoder layers over the regions.", least=0)
    decoder_layers: int = option(2, "Number of decoder layers.")
    ffn_dim: int = option(1024, "Dimension of the feed-forward layers.")
    attention_heads: int = option(8, "Number of heads of every attention.", divides="embed_dim")
    dropout: float = option(
        0.3, "Dropout probability of embeddings, sub-layers and attention weights."
    )
    feature_dropout: float = option(
        0.3, "Dropout probability of a feature, which all regions of an image then lack."
    )


class RegionEncoder(BatchFirstEncoder):
    """Projection of an image's regions, and a transformer encoder over them.

    ``reads_grid`` is True if the model's features are a grid, False if they are pooled; None if
    unknown.
    """

    def __init__(self, feature_dim: int, cfg: Any, reads_grid: Optional[bool] = None) -> None:
        super().__init__()
        self.reads_grid = reads_grid
        self.feature_dropout = nn.Dropout(cfg.feature_dropout)
        self.proj = nn.Linear(feature_dim, cfg.embed_dim, bias=False)
        self.proj_norm = nn.LayerNorm(cfg.embed_dim)
        self.layers: Any = nn.ModuleList(
            PreNormEncoderLayer(cfg.embed_dim, cfg.attention_heads, cfg.ffn_dim, cfg.dropout)
            for _ in range(cfg.encoder_layers)
        )
        self.norm = nn.LayerNorm(cfg.embed_dim) if cfg.encoder_layers else None
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """Encode features [B, N, D] of N regions per image, padded along N.

        ``padding_mask`` is [B, N] bool, True at padding. Returns a dict of lists of one tensor:
        ``regions`` [B, N, C], ``padding_mask`` [B, N], and ``item`` [B], the index of each row's
        image.
        """
        check_regions(features, self.reads_grid)
        regions = features.to(self.proj.weight.dtype)
        if self.training:
            # One mask for all regions of an image: drawing numbers for each of 49 regions would
            # take a third of the time of an update on a CPU.
            regions = regions * self.feature_dropout(
                regions.new_ones(len(regions), 1, regions.size(2))
            )
        regions = self.proj_norm(self.proj(regions))
        for layer in self.layers:
            regions = layer(regions, padding_mask)
        if self.norm is not None:
            regions = self.norm(regions)
        # Identifies the image of a row after fairseq has repeated rows for beams.
        item = torch.arange(len(regions), device=regions.device)
        return {"regions": [regions], "padding_mask": [padding_mask], "item": [item]}

    def reorder_encoder_out(
        self, encoder_out: dict[str, list[Tensor]], new_order: Tensor
    ) -> dict[str, list[Tensor]]:
        # Beams of an image read equal rows, and stay with their image at nearly every step.
        if keeps_items(encoder_out["item"][0], new_order):
            return encoder_out
        return super().reorder_encoder_out(encoder_out, new_order)


class CaptionDecoder(FeatureDecoder):
    """Transformer decoder whose words attend to the words before them and to an image's regions.

    The state of incremental decoding is a dict: ``item``, the index of each row's image;
    ``projected``, keys and values of the regions in each layer, equal for all beams of an image;
    and ``past``, keys and values of each beam's words in each layer.
    """

    state_key = "transformer_captioner"

    def __init__(self, dictionary: Any, cfg: Any) -> None:
        super().__init__(dictionary)
        dim = cfg.embed_dim
        self.embedding = nn.Embedding(len(dictionary), dim, dictionary.pad())
        self.embedding_dropout = nn.Dropout(cfg.dropout)
        self.layers: Any = nn.ModuleList(
            PreNormDecoderLayer(dim, cfg.attention_heads, cfg.ffn_dim, cfg.dropout, [dim])
            for _ in range(cfg.decoder_layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.output_proj = nn.Linear(dim, len(dictionary))
        self.output_proj.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        nn.init.zeros_(self.output_proj.bias)
        with torch.no_grad():
            self.embedding.weight[dictionary.pad()].zero_()

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]],
        incremental_state: Optional[dict] = None,
    ) -> tuple[Tensor, dict[str, Optional[Tensor]]]:
        """Compute features [B, T, C], or [B, 1, C] when decoding incrementally.

        The second result is a dict. The entry ``image_attention`` has the last layer's attention
        weights [B, T, N] for the regions, averaged over the heads; None in training.
        """
        saved: Any = None
        first = 0
        if incremental_state is not None:
            saved = self.get_incremental_state(incremental_state, self.state_key)
            first = prev_output_tokens.size(1) - 1
            prev_output_tokens = prev_output_tokens[:, -1:]
        if saved is None:
            # not in training, where unique() would make a GPU wait
            items = None if incremental_state is None else encoder_out["item"][0]
            projected = project_items(
                lambda regions: [layer.project([regions]) for layer in self.layers],
                encoder_out["regions"][0],
                items,
            )
            past: list = [None] * len(self.layers)
            item = encoder_out["item"][0]
        else:
            projected, past, item = saved["projected"], saved["past"], saved["item"]
        x = self._embed(prev_output_tokens, first)
        new_past, weights = [], None
        for i, layer in enumerate(self.layers):
            # Weights need a slower kernel, so they are computed in the last layer and not in
            # training.
            needs_weights = not self.training and i == len(self.layers) - 1
            x, keys_and_values, trace = layer(
                x,
                projected[i],
                encoder_out["padding_mask"],
                past=past[i],
                needs_weights=needs_weights,
            )
            new_past.append(keys_and_values)
            weights = None if trace is None else trace.weights[0]
        if incremental_state is not None:
            state: Any = {"item": item, "projected": projected, "past": new_past}
            self.set_incremental_state(incremental_state, self.state_key, state)
        return self.norm(x), {"attn": None, "image_attention": weights}

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved: Any = self.get_incremental_state(incremental_state, self.state_key)
        if saved is None:
            return
        state: Any = reorder_state(saved, new_order)
        self.set_incremental_state(incremental_state, self.state_key, state)

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        dim = self.embedding.embedding_dim
        positions = torch.arange(first, first + tokens.size(1), device=tokens.device)
        x = self.embedding(tokens) * math.sqrt(dim)
        return self.embedding_dropout(x + sinusoids(positions, dim).to(x.dtype))


@register_model("transformer_captioner", dataclass=TransformerCaptionerConfig)
class TransformerCaptionerModel(ImageModel):
    """Model that writes captions of images: a transformer decoder over regions."""

    @classmethod
    def build_model(cls, cfg: TransformerCaptionerConfig, task: Any) -> "TransformerCaptionerModel":
        grid = getattr(task, "feature_attributes", {}).get("grid")
        encoder = RegionEncoder(task.feature_dim, cfg, None if grid is None else bool(grid))
        decoder = CaptionDecoder(task.target_dictionary, cfg)
        return cls(encoder, decoder, Provenance.of_task(task))


register_presets(
    "transformer_captioner",
    {
        "transformer_captioner_tiny": {
            "embed_dim": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "ffn_dim": 20,
            "attention_heads": 2,
            "dropout": 0.0,
            "feature_dropout": 0.0,
        }
    },
)
