"""Names, shapes and options of BART's tensors in fairseq and in Hugging Face's package.

The two name them alike: fairseq's ``encoder.layers.0.fc1.weight`` is Hugging Face's
``model.encoder.layers.0.fc1.weight``. The embeddings, which all parts share, fairseq keeps three
times and Hugging Face once; both start positions at row 2.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_mm.errors import UserError

FIRST_POSITION = 2  # row of the first word in the position tables
EMBEDDINGS = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)
# option of fairseq's --arch -> field of config.json
SIZES = {
    "encoder_embed_dim": "d_model",
    "encoder_layers": "encoder_layers",
    "encoder_ffn_embed_dim": "encoder_ffn_dim",
    "encoder_attention_heads": "encoder_attention_heads",
    "decoder_embed_dim": "d_model",
    "decoder_layers": "decoder_layers",
    "decoder_ffn_embed_dim": "decoder_ffn_dim",
    "decoder_attention_heads": "decoder_attention_heads",
    "max_source_positions": "max_position_embeddings",
    "max_target_positions": "max_position_embeddings",
}
RATES = {
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
}
# fairseq's --activation-fn -> config.json's activation_function
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "tanh": "tanh", "gelu_accurate": "gelu_new"}
# second copies of stock fairseq's encoder layers, named for PyTorch's own kernel; from old
# checkpoints' parts that hold no weights; of heads that classify texts
DUPLICATES = re.compile(r"(en|de)coder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
WITHOUT_WEIGHTS = re.compile(r"(en|de)coder\.(version|embed_positions\._float_tensor)")
_LISTED = 3


class BartSizes(NamedTuple):
    """Sizes of a BART.

    Attributes:
        rows: Rows of the embeddings.
        dim: C, dimension of all layers.
        positions: Rows of the encoder's and of the decoder's position table.
        layers: Numbers of encoder and decoder layers.
        ffn_dims: Inner dimensions of encoder and decoder.
    """

    rows: int
    dim: int
    positions: tuple[int, int]
    layers: tuple[int, int]
    ffn_dims: tuple[int, int]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return fairseq's names with their shapes; the embeddings are
        ``encoder.embed_tokens.weight``.
        """
        C = self.dim
        shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS[0]: (self.rows, C)}
        parts = zip(("encoder", "decoder"), self.positions, self.layers, self.ffn_dims)
        for part, positions, layers, ffn_dim in parts:
            shapes[f"{part}.embed_positions.weight"] = (positions, C)
            shapes.update(_vectors(f"{part}.layernorm_embedding", C))
            for layer in range(layers):
                stem = f"{part}.layers.{layer}"
                attentions = ["self_attn"] + ["encoder_attn"] * (part == "decoder")
                for attention in attentions:
                    for kind in "qkv":
                        shapes.update(_linear(f"{stem}.{attention}.{kind}_proj", C, C))
                    shapes.update(_linear(f"{stem}.{attention}.out_proj", C, C))
                    shapes.update(_vectors(f"{stem}.{attention}_layer_norm", C))
                shapes.update(_linear(f"{stem}.fc1", ffn_dim, C))
                shapes.update(_linear(f"{stem}.fc2", C, ffn_dim))
                shapes.update(_vectors(f"{stem}.final_layer_norm", C))
        return shapes


def _linear(stem: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": (rows, columns), f"{stem}.bias": (rows,)}


def _vectors(stem: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}


def share_embeddings(weights: dict[str, Tensor], names: tuple[str, ...], path: str) -> Tensor:
    """Remove the embeddings, which have one name or several, from ``weights`` and return them.

    Raises:
        UserError: if they are missing, or differ.
    """
    found = {name: weights.pop(name) for name in names if name in weights}
    if not found:
        raise UserError(f"{path}: has no embeddings: expected {names[0]}.")
    first, *others = found
    for name in others:
        if found[name].shape != found[first].shape or not torch.equal(found[name], found[first]):
            raise UserError(
                f"{path}: {first} and {name} differ, but BART's input and output words share their "
                "embeddings."
            )
    return found[first]


def check_tensors(weights: Mapping[str, Tensor], sizes: BartSizes, path: str) -> None:
    """Check names and shapes of the tensors.

    Raises:
        UserError: if a tensor is missing, has no place, or has another shape than the options say.
    """
    shapes = sizes.shapes()
    for title, names in (
        ("lacks", sorted(set(shapes) - set(weights))),
        ("has tensors that BART has not:", sorted(set(weights) - set(shapes))),
    ):
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            raise UserError(f"{path}: {title} {', '.join(names[:_LISTED])}{more}.")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise UserError(
                f"{path}: {name} is {list(weights[name].shape)}, but by the options "
                f"{list(shape)} is expected."
            )
