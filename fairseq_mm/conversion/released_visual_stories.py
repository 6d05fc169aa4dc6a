"""Reads checkpoints of GLAC Net (https://github.com/tkim-snu/GLACNet) and of Transtory-XL
(https://github.com/junyumao1996/NLP_Project), and renames their weights for ``--arch glac``,
``glac_decoder_attention``, ``transtory_decoder`` or ``transtory_xl``.

``encoder-N.pkl`` and ``decoder-N.pkl`` are state dicts, written by ``torch.save``. ``vocab.pkl`` is
an object of the released vocabulary class, with ``<pad>``, ``<start>``, ``<end>`` and ``<unk>``
among its words. In the released code, each sentence starts with ``<start>`` and ends with
``<end>``. In this package, a story is one sequence of sentences, with the separator ``<sent>``
between them and ``</s>`` at the end. The embedding of ``<start>`` becomes the embedding of the
story's first token and of the separator; the output weights of ``<end>`` become the output weights
of both the separator and ``</s>``. Generation allows only the separator or only ``</s>`` at each
position, so that words are ranked as in the released code. But both tokens are in the softmax, and
the probabilities of a step are therefore smaller by the factor 1 / (1 + P(<end>)), at least 1/2.

The encoder contains its ResNet, whose batch normalisation updated its statistics in training.
The state dict names the ResNet's child modules by number.

Values that the files lack are taken from the released code: transformers have 4 attention heads
(the number of Transtory-XL's heads is read from its biases), and the memory of Transtory-XL has 50
slots. Transtory-full and models with a non-local block are refused, because the names of their
tensors are not known with certainty.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
from fairseq_mm.conversion.released_vse import ReleasedModel, known_words
from fairseq_mm.conversion.released_vsepp import read_vocabulary
from fairseq_mm.data.story_text import SEPARATOR

_HEADS = 4  # not visible in the weights of PyTorch's transformers
_RESNET = "encoder.cnn.resnet."
# the released encoder is nn.Sequential of the ResNet's children; 2, 3 and 8 have no weights
_CHILDREN = {"0": "conv1", "1": "bn1", **{str(3 + n): f"layer{n}" for n in range(1, 5)}}
# blocks of the four stages, and whether a block has three convolutions
_RESNETS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
# Released names -> ours. All patterns are applied in this order: the first ones place a tensor, the
# later ones rename parts of layers.
_NAMES = {
    r"^encoder\.cnn\.linear\.": "encoder.pictures.proj.",
    r"^encoder\.cnn\.bn\.": "encoder.pictures.norm.",
    r"^encoder\.lstm\.": "encoder.lstm.lstm.",
    r"^encoder\.linear\.": "encoder.glocal_proj.",
    r"^encoder\.bn\.": "encoder.glocal_norm.",
    r"^decoder\.linear\.": "encoder.output_proj.",
    r"^decoder\.rnn\.embed\.": "decoder.embedding.",
    r"^decoder\.rnn\.lstm\.": "decoder.lstm.",
    r"^decoder\.rnn\.linear\.": "decoder.output_proj.",
    r"^decoder\.transformer\.encoder\.": "decoder.embedding.",
    r"^decoder\.transformer\.decoder\.": "decoder.output_proj.",
    r"^decoder\.transformer\.transformer_decoder\.": "decoder.",
    r"^decoder\.transformer_xl\.word_emb\.emb_layers\.0\.": "decoder.embedding.",
    r"^decoder\.transformer_xl\.word_emb\.emb_projs\.0$": "decoder.embedding_proj.weight",
    r"^decoder\.transformer_xl\.": "decoder.",
    r"^decoder\.classifier\.": "decoder.output_proj.",
    r"^decoder\.fuse_linear\.bias$": "decoder.memory_fusion.bias",
    r"\.self_attn\.in_proj_": ".self_attention.in_proj.",
    r"\.self_attn\.": ".self_attention.",
    r"\.multihead_attn\.": ".pictures.",
    r"\.linear1\.": ".feed_forward.inner_proj.",
    r"\.linear2\.": ".feed_forward.out_proj.",
    r"\.norm1\.": ".self_attention_norm.",
    r"\.norm2\.": ".pictures_norm.",
    r"\.norm3\.": ".feed_forward_norm.",
    r"\.dec_attn\.layer_norm\.": ".attention_norm.",
    r"\.dec_attn\.r_net\.": ".attention.distance_proj.",
    r"\.dec_attn\.o_net\.": ".attention.out_proj.",
    r"\.dec_attn\.r_w_bias$": ".attention.content_bias",
    r"\.dec_attn\.r_r_bias$": ".attention.distance_bias",
    r"\.pos_ff\.CoreNet\.0\.": ".feed_forward.inner_proj.",
    r"\.pos_ff\.CoreNet\.3\.": ".feed_forward.out_proj.",
    r"\.pos_ff\.layer_norm\.": ".feed_forward_norm.",
    r"\.num_batches_tracked$": ".num_batches",
}
# tables of positions, which this package's models compute
_CONSTANT = re.compile(r".*\b(pos_encoder\.pe|pos_emb\.inv_freq)$")
_EMBEDDING = "decoder.embedding.weight"


def read_released_visual_stories(
    path: str, state: Mapping[str, Any], vocabulary: Optional[str]
) -> ReleasedModel:
    """Read ``encoder-N.pkl`` (``path``), with ``decoder-N.pkl`` and, by default, ``vocab.pkl`` in
    its folder, and rename its weights for this package."""
    folder, name = os.path.split(path)
    decoder = os.path.join(folder, name.replace("encoder", "decoder"))
    vocabulary = vocabulary or os.path.join(folder, "vocab.pkl")
    weights: dict[str, Tensor] = {}
    for part, content in (("encoder", state), ("decoder", read_foreign_checkpoint(decoder))):
        for name, x in content.items():
            weights[f"{part}.{name}"] = x.float()
    parts = _rename(weights)
    num_words = len(parts[_EMBEDDING])
    by_number, special = read_vocabulary(vocabulary, "GLAC Net or of Transtory-XL", num_words)
    notes = [f"{SEPARATOR} and </s> have the logit of <end> each, see the documentation."]
    rows, words = known_words(by_number, notes)
    words.append(SEPARATOR)
    start, pad, end, unknown = (special[x] for x in ("<start>", "<pad>", "<end>", "<unk>"))
    for name in (_EMBEDDING, "decoder.output_proj.weight", "decoder.output_proj.bias"):
        # our separator ends a sentence and begins the next one: it is predicted as <end>, but read
        # as <start>
        ending = start if name == _EMBEDDING else end
        parts[name] = parts[name][[start, pad, ending, unknown, *rows, ending]]
    arch, options = _infer_options(parts, notes)
    cnn_type, network = _read_resnet(weights)
    return ReleasedModel(
        path,
        arch,
        options,
        {},
        words,
        parts,
        len(weights),
        "",
        notes,
        cnn_type,
        network,
        task="visual_storytelling",
        criterion_name="cross_entropy",
        image_weight="encoder.pictures.proj.weight",
        rows_per_image=1,
    )


def _rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by this package's names, without the ResNet and tables of positions."""
    parts: dict[str, Tensor] = {}
    for name, x in weights.items():
        if _CONSTANT.match(name) or name.startswith(_RESNET):
            continue
        for pattern, ours in _NAMES.items():
            name = re.sub(pattern, ours, name)
        if ".dec_attn.qkv_net." in name:
            # Transformer-XL computes queries, keys and values by one matrix
            stem = name.replace(".dec_attn.qkv_net.", ".attention.{}.")
            parts[stem.format("query_proj")] = x[: len(x) // 3]
            parts[stem.format("key_value_proj")] = x[len(x) // 3 :]
        elif ".pictures.in_proj_" in name:
            # attention to one image has weight 1, so queries and keys have no effect
            parts[name.replace("in_proj_", "value_proj.")] = x[2 * len(x) // 3 :]
        elif name == "decoder.fuse_linear.weight":
            # the released layer reads memory and image side by side; here each has its own matrix
            parts["decoder.memory_fusion.weight"] = x[:, : len(x)]
            parts["decoder.picture_fusion.weight"] = x[:, len(x) :]
        else:
            parts[name] = x
    for name in [x for x in parts if x.endswith("norm.running_mean")]:
        # PyTorch before 0.4.1 does not count; 100 batches are the inverse of the momentum
        parts.setdefault(name.replace("running_mean", "num_batches"), torch.tensor(100.0))
    return parts


def _read_resnet(weights: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Return torchvision's name of the encoder's ResNet, and its weights by torchvision's names."""
    network = {}
    for name, x in weights.items():
        if name.startswith(_RESNET):
            child, _, rest = name[len(_RESNET) :].partition(".")
            network[f"{_CHILDREN.get(child, child)}.{rest}"] = x
    if not network:
        return "", network
    blocks = tuple(_count(network, f"layer{stage}.") for stage in range(1, 5))
    return _RESNETS[blocks, "layer1.0.conv3.weight" in network], network


def _infer_options(weights: Mapping[str, Tensor], notes: list[str]) -> tuple[str, dict[str, Any]]:
    """Infer ``--arch`` and the model's options from the shapes of the renamed weights."""

    def size(name: str, dim: int) -> int:
        return weights[name].size(dim)

    options: dict[str, Any] = {
        "picture_dim": size("encoder.pictures.proj.weight", 0),
        "embedding_dim": size(_EMBEDDING, 1),
    }
    layers = _count(weights, "decoder.layers.")
    if "decoder.memory_fusion.weight" in weights:
        heads, head_dim = weights["decoder.layers.0.attention.content_bias"].shape
        return "transtory_xl", {
            **options,
            "compat": "released",
            "model_dim": size("decoder.memory_fusion.weight", 0),
            "decoder_layers": layers,
            "decoder_attention_heads": heads,
            "head_dim": head_dim,
            "decoder_ffn_dim": size("decoder.layers.0.feed_forward.inner_proj.weight", 0),
        }
    if layers:
        notes.append(f"The transformers are taken to have {_HEADS} heads, as in the released code.")
        options.update(
            decoder_layers=layers,
            decoder_attention_heads=_HEADS,
            decoder_ffn_dim=size("decoder.layers.0.feed_forward.inner_proj.weight", 0),
        )
    options.update(
        encoder_hidden_dim=size("encoder.lstm.lstm.weight_hh_l0", 1),
        encoder_layers=_count(weights, "encoder.lstm.lstm.weight_hh_l"),
        glocal_dim=size("encoder.glocal_proj.weight", 0),
    )
    if layers:
        return "transtory_decoder", options
    hidden_dim = size("decoder.lstm.weight_hh_l0", 1)
    # with decoder attention, the image vector is cut into slices of the LSTM's width
    slices = size("encoder.output_proj.weight", 0) // hidden_dim
    options.update(
        hidden_dim=hidden_dim,
        decoder_layers=_count(weights, "decoder.lstm.weight_hh_l"),
        slices=slices,
    )
    return ("glac" if slices == 1 else "glac_decoder_attention"), options


def _count(names: Mapping[str, Any], prefix: str) -> int:
    """Count the layers of a module: the distinct numbers that follow ``prefix`` in ``names``."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    return len({match[1] for match in map(pattern.match, names) if match})
