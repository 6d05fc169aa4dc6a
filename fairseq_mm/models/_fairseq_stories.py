"""Weights of fairseq's ``fconv_self_att`` under the names and in the shapes of ``conv_story``.

Both compute the same; here the heads' layers lie side by side, so that a product serves them all,
and convolutions have PyTorch's order of axes.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_KINDS = ("q", "k", "v")


def convert_encoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    Args:
        weights: of an ``FConvEncoder``, by their names in it.

    Returns:
        those of a ``ConvEncoder``.
    """
    names = {
        "embed_tokens.weight": "embedding.tokens.weight",
        "embed_positions.weight": "embedding.positions.weight",
    }
    converted = {}
    for name, x in weights.items():
        part, _, rest = name.partition(".")
        if name in names:
            converted[names[name]] = x
        elif part in ("fc1", "fc2"):
            converted[f"{'input' if part == 'fc1' else 'output'}_proj.{rest}"] = x
        elif part == "projections":
            converted[f"residual_projs.{rest}"] = x
        elif part == "convolutions":
            converted[name] = _convolution(x)
    return converted


def convert_trunk(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    Args:
        weights: of an ``FConvDecoder``, by their names in it, its output layer and fusion apart.

    Returns:
        those of a ``ConvTrunk``.
    """
    names = {
        "embed_tokens.weight": "embedding.tokens.weight",
        "embed_positions.weight": "embedding.positions.weight",
        "fc1.weight": "input_proj.weight",
        "fc1.bias": "input_proj.bias",
        "fc2.weight": "output_proj.weight",
        "fc2.bias": "output_proj.bias",
    }
    converted = {new: weights[old] for old, new in names.items() if old in weights}
    self_attention: dict[str, dict[str, Tensor]] = {}
    for name, x in weights.items():
        part, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        layer = f"layers.{number}"
        if part == "projections":
            converted[f"{layer}.residual_proj.{rest}"] = x
        elif part == "convolutions":
            converted[f"{layer}.convolution.{rest}"] = _convolution(x)
        elif part == "attproj":
            converted[f"{layer}.source_attention.hidden_proj.{rest}"] = x
        elif part == "attention":
            module, _, leaf = rest.replace("attention_module.", "").rpartition(".")
            place = {
                "in_proj_q": "query_proj",
                "in_proj_k.0": "key_proj",
                "in_proj_v.0": "value_proj",
                "out_proj": "output_proj",
            }[module]
            converted[f"{layer}.source_attention.{place}.{leaf}"] = x
        elif part == "selfattention":
            self_attention.setdefault(layer, {})[rest] = x
    for layer, own in self_attention.items():
        for name, x in _convert_self_attention(own).items():
            converted[f"{layer}.self_attention.{name}"] = x
    return converted


def _convolution(x: Tensor) -> Tensor:
    """``[width, in, out]`` as ``[out, in, width]``; a bias as it is."""
    return x.permute(2, 1, 0).contiguous() if x.dim() == 3 else x


def _convert_self_attention(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    converted = {
        f"input_proj.{leaf}": torch.cat([weights[f"in_proj_{kind}.{leaf}"] for kind in _KINDS])
        for leaf in ("weight", "bias")
    }
    for leaf in ("weight", "bias"):
        converted[f"norm.{leaf}"] = weights[f"ln.{leaf}"]
    is_multi_scale = "attention.out_proj.bias" in weights
    heads = ["attention.attention_module"]
    if is_multi_scale:
        count = len(
            {name for name in weights if re.fullmatch(r"attention\.\d+\.out_proj\.bias", name)}
        )
        heads = [f"attention.{head}" for head in range(count)]
    for leaf in ("weight_g", "weight_v", "bias"):
        for old, new in (("0", "0"), ("2", "1"), ("4", "2"), ("", "0")):
            names = [
                _network_name(head, kind, old, leaf, is_multi_scale)
                for kind in _KINDS
                for head in heads
            ]
            if names[0] in weights:
                converted[f"networks.{new}.{leaf}"] = torch.stack([weights[x] for x in names])
        if is_multi_scale:
            converted[f"head_proj.{leaf}"] = torch.stack(
                [weights[f"{head}.out_proj.{leaf}"] for head in heads]
            )
            converted[f"output_proj.{leaf}"] = weights[f"attention.out_proj.{leaf}"]
        else:
            converted[f"output_proj.{leaf}"] = weights[f"{heads[0]}.out_proj.{leaf}"]
    return converted


def _network_name(head: str, kind: str, layer: str, leaf: str, is_multi_scale: bool) -> str:
    """Keys and values stand in a list, behind the subsampling where there is one."""
    place = "" if kind == "q" else f".{int(is_multi_scale)}"
    return ".".join(x for x in (f"{head}.in_proj_{kind}{place}", layer, leaf) if x)
