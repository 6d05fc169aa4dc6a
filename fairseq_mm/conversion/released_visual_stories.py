"""Reads checkpoints of GLAC Net (https://github.com/tkim-snu/GLACNet) and of Transtory-XL
(https://github.com/junyumao1996/NLP_Project), and renames their weights for ``--arch glac``,
``glac_decoder_attention``, ``transtory_decoder``, ``transtory_full`` or ``transtory_xl``.

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
slots. The tensors' names and shapes are certain for GLAC, GLAC with decoder attention,
Transtory-decoder and Transtory-XL (from Hugging Face's transformers 2.5.1). For Transtory-full,
two assumptions are not certain: the names ``transformer_Encoder.*`` and ``linear.*``, and that no
ReLU follows the layer ``linear``. A checkpoint with a non-local block is refused, because the names
of this block in the encoder (of its tensors ``theta``, ``phi``, ``g``, ``W``) are not known.
"""

import glob
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint
from fairseq_mm.conversion.new_checkpoint import config_defaults
from fairseq_mm.conversion.released_vse import ReleasedModel, known_words
from fairseq_mm.conversion.released_vsepp import read_vocabulary
from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.errors import UserError

_HEADS = 4  # not visible in the weights of PyTorch's transformers
_RESNET = "encoder.cnn.resnet."
# the released encoder is nn.Sequential of the ResNet's children; 2, 3 and 8 have no weights
_CHILDREN = {"0": "conv1", "1": "bn1", **{str(3 + n): f"layer{n}" for n in range(1, 5)}}
# blocks of the four stages, and whether a block has three convolutions
_RESNETS = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
# Released names -> ours. All patterns are applied in this order: the first ones place a tensor, the
# later ones rename parts of layers, where norm2 is another norm in a decoder than in an encoder.
_NAMES = {
    r"^encoder\.cnn\.linear\.": "encoder.pictures.proj.",
    r"^encoder\.cnn\.bn\.": "encoder.pictures.norm.",
    r"^encoder\.lstm\.": "encoder.lstm.lstm.",
    r"^encoder\.linear\.": "encoder.glocal_proj.",
    r"^encoder\.bn\.": "encoder.glocal_norm.",
    r"^encoder\.transformer_Encoder\.transformer_encoder\.": "encoder.",
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
    r"^(encoder\..*)\.norm2\.": r"\1.feed_forward_norm.",
    r"^(decoder\..*)\.norm2\.": r"\1.pictures_norm.",
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


class _Files(NamedTuple):
    """Paths of the three files of a released model: encoder, decoder and vocabulary."""

    encoder: str
    decoder: str
    vocabulary: str

    def locate(self, name: str) -> str:
        """Return ``FILE: TENSOR`` for a message about the tensor ``name``.

        ``name`` begins with ``encoder.`` or ``decoder.``, the file that has the tensor.
        """
        part, _, rest = name.partition(".")
        return f"{getattr(self, part)}: {rest}"


def is_visual_story_encoder(state: Mapping[str, Any]) -> bool:
    """Return True if ``state``, the content of a file, is an encoder of GLAC or Transtory."""
    return "cnn.linear.weight" in state and "cnn.bn.weight" in state


def read_released_visual_stories(
    path: str, state: Mapping[str, Any], decoder: Optional[str], vocabulary: Optional[str]
) -> ReleasedModel:
    """Read a released model of visual stories, and rename its weights for this package.

    Args:
        path: Path of ``encoder-N.pkl``.
        state: Content of the file.
        decoder: Path of the decoder; by default ``decoder-N.pkl`` in the same folder.
        vocabulary: Path of the vocabulary; by default ``vocab.pkl`` in the same folder.
    """
    files = _find_files(path, decoder, vocabulary)
    weights: dict[str, Tensor] = {}
    for part, content in (("encoder", state), ("decoder", read_foreign_checkpoint(files.decoder))):
        for name, x in content.items():
            if not isinstance(name, str) or not isinstance(x, Tensor):
                raise UserError(f"{getattr(files, part)}: must hold tensors, but has {name!r}.")
            if not x.float().isfinite().all():
                raise UserError(f"{getattr(files, part)}: {name} has NaN or infinite values.")
            weights[f"{part}.{name}"] = x.float()
    by_number, special = read_vocabulary(files.vocabulary, "GLAC Net or of Transtory-XL")
    notes = [f"{SEPARATOR} and </s> have the logit of <end> each, see the documentation."]
    rows, words = known_words(by_number, notes)
    if SEPARATOR in words:
        raise UserError(f"{files.vocabulary}: has {SEPARATOR}, which separates sentences here.")
    words.append(SEPARATOR)
    network = _torchvision_names(weights)
    # our name -> released name, for messages about files that the user can look into
    origins = {
        _rename(name): name
        for name in weights
        if not _CONSTANT.match(name) and not name.startswith(_RESNET)
    }
    parts = _split({ours: weights[theirs] for ours, theirs in origins.items()}, origins, files)
    for name in (_EMBEDDING, "decoder.output_proj.weight", "decoder.output_proj.bias"):
        if name not in parts:
            raise UserError(
                f"{files.decoder}: is no decoder of GLAC Net or of Transtory-XL: it has no "
                f"{'embedding' if name == _EMBEDDING else 'output layer'}."
            )
        num_words = len(by_number) + len(special)
        if len(parts[name]) != num_words:
            raise UserError(
                f"{files.vocabulary}: has {num_words} words, but {files.decoder} "
                f"was trained with {len(parts[name])}: give the vocabulary that it was trained "
                "with."
            )
        parts[name] = _reorder_rows(parts[name], rows, special, is_input=name == _EMBEDDING)
    # a tensor that is missing or has another shape raises one of many exceptions
    try:
        arch, options = _infer_options(parts, notes)
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"{files.encoder} and {os.path.basename(files.decoder)}: are no model that can be "
            f"converted: {error} is missing or has another shape."
        ) from None
    feature_dim = parts["encoder.pictures.proj.weight"].size(-1)
    _check(_build_weights(arch, options, words, feature_dim), parts, origins, files)
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
        _name_resnet(network, files) if network else "",
        network,
        task="visual_storytelling",
        criterion_name="cross_entropy",
        image_weight="encoder.pictures.proj.weight",
        rows_per_image=1,
    )


def _find_files(path: str, decoder: Optional[str], vocabulary: Optional[str]) -> _Files:
    folder, name = os.path.split(path)
    beside = os.path.join(folder, name.replace("encoder", "decoder"))
    if decoder is None and (beside == path or not os.path.isfile(beside)):
        near = sorted(glob.glob(os.path.join(glob.escape(folder), "decoder-*.pkl")))
        hint = f" (there is {near[0]})" if near else ""
        raise UserError(
            f"{path}: --decoder FILE is needed, the decoder that was saved with this encoder: "
            f"there is none of its name beside it{hint}."
        )
    words = os.path.join(folder, "vocab.pkl")
    if vocabulary is None and not os.path.isfile(words):
        raise UserError(
            f"{path}: --vocabulary FILE is needed, the words of the model: there is no {words}."
        )
    return _Files(path, decoder or beside, vocabulary or words)


def _rename(name: str) -> str:
    for pattern, ours in _NAMES.items():
        name = re.sub(pattern, ours, name)
    return name


def _split(
    weights: Mapping[str, Tensor], origins: dict[str, str], files: _Files
) -> dict[str, Tensor]:
    """Split weights that this package stores as several tensors, such as joint queries and keys.

    Args:
        weights: Weights by the names of this package.
        origins: Dict from these names to the released names; the new tensors' names are added.
        files: Paths of the released model's files, for messages.
    """
    parts: dict[str, Tensor] = {}
    for name, x in weights.items():
        if ".dec_attn.qkv_net." in name:
            # Transformer-XL computes queries, keys and values by one matrix
            _need(x.dim() == 2 and len(x) % 3 == 0, origins[name], files)
            stem = name.replace(".dec_attn.qkv_net.", ".attention.{}.")
            split = {
                stem.format("query_proj"): x[: len(x) // 3],
                stem.format("key_value_proj"): x[len(x) // 3 :],
            }
        elif ".pictures.in_proj_" in name:
            # attention to one image has weight 1, so queries and keys have no effect
            _need(len(x) % 3 == 0, origins[name], files)
            split = {name.replace("in_proj_", "value_proj."): x[2 * len(x) // 3 :]}
        elif name == "decoder.fuse_linear.weight":
            # the released layer reads memory and image side by side; here each has its own matrix
            _need(x.dim() == 2 and x.size(1) > len(x), origins[name], files)
            split = {
                "decoder.memory_fusion.weight": x[:, : len(x)],
                "decoder.picture_fusion.weight": x[:, len(x) :],
            }
        else:
            split = {name: x}
        parts.update(split)
        origins.update(dict.fromkeys(split, origins[name]))
    for name in [x for x in parts if x.endswith("norm.running_mean")]:
        # PyTorch before 0.4.1 does not count; 100 batches are the inverse of the momentum
        parts.setdefault(name.replace("running_mean", "num_batches"), torch.tensor(100.0))
    return parts


def _need(is_so: bool, name: str, files: _Files) -> None:
    if not is_so:
        raise UserError(f"{files.locate(name)} has a shape that cannot be converted.")


def _reorder_rows(
    x: Tensor, rows: Sequence[int], special: Mapping[str, int], *, is_input: bool
) -> Tensor:
    """Reorder a released embedding or output layer for this package's dictionary.

    Args:
        x: Embedding, or weight or bias of the output layer; each row belongs to a word.
        rows: Row in ``x`` of each word, in the order of the new dictionary.
        special: Row in ``x`` of each special token, such as ``<start>``.
        is_input: True for an embedding, False for an output layer.
    """
    names = ("<start>", "<pad>", "<end>", "<unk>")
    start, pad, end, unknown = (x[special[name]] for name in names)
    # our separator ends a sentence and begins the next one: it is predicted as <end>, but read as
    # <start>
    ending = start if is_input else end
    first = torch.stack([start, pad, ending, unknown])
    return torch.cat([first, x[list(rows)], ending.unsqueeze(0)])


def _infer_options(weights: Mapping[str, Tensor], notes: list[str]) -> tuple[str, dict[str, Any]]:
    """Infer ``--arch`` and the model's options from the shapes of the weights.

    ``weights`` have this package's names. Sentences about assumptions are appended to ``notes``.
    """

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
    encoder_layers = _count(weights, "encoder.layers.")
    if encoder_layers:
        notes.append(
            "The layout of the released Transtory-full is not known with certainty; its linear "
            "layer is taken to have no ReLU after it."
        )
        return "transtory_full", {
            **options,
            "compat": "released",
            "encoder_layers": encoder_layers,
            "encoder_attention_heads": _HEADS,
            "encoder_ffn_dim": size("encoder.layers.0.feed_forward.inner_proj.weight", 0),
        }
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
    """Count the layers of a module: the different numbers that follow ``prefix`` in ``names``."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    return len({match[1] for match in map(pattern.match, names) if match})


def _build_weights(
    arch: str, options: Mapping[str, Any], words: Sequence[str], feature_dim: int
) -> dict[str, Tensor]:
    """Return the weights of an untrained model of this package with the given options.

    Args:
        arch: ``--arch`` of the model.
        options: Options of the model; missing options have their defaults.
        words: Words of the dictionary, without special symbols.
        feature_dim: Dimension of the image features.
    """
    model = ARCH_MODEL_REGISTRY[arch]
    # fairseq's registry sets __dataclass on the class of a model
    cfg = Namespace(**{**config_defaults(model.__dataclass), **options})
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    task = Namespace(
        target_dictionary=dictionary,
        separator_index=dictionary.index(SEPARATOR),
        feature_dim=feature_dim,
        feature_attributes={},
        rows_per_image=1,
    )
    state = model.build_model(cfg, task).state_dict()
    return {name: x for name, x in state.items() if not name.endswith("_extra_state")}


def _check(
    expected: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    origins: Mapping[str, str],
    files: _Files,
) -> None:
    """Raise UserError if converted weights have other names or shapes than this package's model.

    Args:
        expected: Weights of an untrained model of this package.
        weights: Converted weights by the names of this package.
        origins: Dict from these names to the released names, for messages.
        files: Paths of the released model's files, for messages.
    """
    for name in sorted({*weights} - {*expected}):
        raise UserError(f"{files.locate(origins[name])} has no place in our model.")
    for name in sorted({*expected} - {*weights}):
        raise UserError(
            f"{files.encoder} and {os.path.basename(files.decoder)}: have no tensor that becomes "
            f"{name}."
        )
    for name, x in expected.items():
        if weights[name].shape != x.shape:
            raise UserError(
                f"{files.locate(origins[name])} must be {list(x.shape)} here, but is "
                f"{list(weights[name].shape)}."
            )


def _torchvision_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the weights of the encoder's ResNet, and return them by torchvision's names."""
    network = {}
    for name, x in weights.items():
        if name.startswith(_RESNET):
            child, _, rest = name[len(_RESNET) :].partition(".")
            network[f"{_CHILDREN.get(child, child)}.{rest}"] = x
    return network


def _name_resnet(network: Mapping[str, Tensor], files: _Files) -> str:
    """Return torchvision's name of a ResNet, such as ``resnet152``, from its numbers of blocks.

    Raise UserError if torchvision has no such ResNet.

    Args:
        network: Weights of the ResNet by torchvision's names.
        files: Paths of the released model's files, for messages.
    """
    blocks = tuple(_count(network, f"layer{stage}.") for stage in range(1, 5))
    name = _RESNETS.get((blocks, "layer1.0.conv3.weight" in network))
    if name is None:
        raise UserError(f"{files.encoder}: cnn.resnet is none of torchvision's ResNets.")
    return name
