"""Conversion of Hugging Face's BART to a checkpoint, dictionary and GPT-2 BPE of fairseq.

The output folder has the files of fairseq's published models (``model.pt``, ``dict.txt``) and the
files of the tokenizer. ``bart_back.py`` converts in the other direction.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_mm.conversion.bart_layout import (
    ACTIVATIONS,
    EMBEDDINGS,
    FIRST_POSITION,
    RATES,
    SIZES,
    BartSizes,
    check_tensors,
    share_embeddings,
)
from fairseq_mm.conversion.bart_vocabulary import BartVocabulary, read_huggingface_vocabulary
from fairseq_mm.conversion.huggingface_folder import read_config, read_weights
from fairseq_mm.conversion.new_checkpoint import checkpoint_state
from fairseq_mm.conversion.output_folder import check_output_folder, output_folder
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError

_PREFIX = "model."
_EMBEDDINGS = (
    *("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "lm_head.weight",
)
_BIAS = "final_logits_bias"
_HEAD = "classification_head."
# field of config.json -> its only value that fairseq's BART computes, which is the default, too
_FIXED = {
    "normalize_before": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": False,
    "normalize_embedding": True,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 2,
}
# what fairseq's two architectures say
_COMMON = {
    **{"max_source_positions": 1024, "max_target_positions": 1024, "activation_fn": "gelu"},
    **{"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0},
}


def _defaults(embed_dim: int, layers: int, ffn_embed_dim: int, attention_heads: int) -> dict:
    sizes = {
        "embed_dim": embed_dim,
        "layers": layers,
        "ffn_embed_dim": ffn_embed_dim,
        "attention_heads": attention_heads,
    }
    parts = ("encoder", "decoder")
    return {**_COMMON, **{f"{part}_{name}": x for part in parts for name, x in sizes.items()}}


_BASE = _defaults(768, 6, 3072, 12)
_LARGE = _defaults(1024, 12, 4096, 16)


@dataclass
class ConvertedBart:
    """Result of a conversion from Hugging Face's BART.

    Attributes:
        folder: Folder that was written.
        arch: fairseq's ``--arch``.
        options: Options of the model that differ from the defaults of ``arch``.
        parameters: Number of weights.
        words: Dictionary with special symbols and ``<mask>``.
        notes: Assumptions and omissions, one sentence each.
    """

    folder: str
    arch: str
    options: dict[str, Any]
    parameters: int
    words: int
    notes: list[str] = field(default_factory=list)


def convert_bart(
    folder: str, output: str, *, encoder_json: Optional[str] = None, overwrite: bool = False
) -> ConvertedBart:
    """Convert Hugging Face's BART to fairseq's.

    Args:
        folder: Folder of Hugging Face's BART: ``config.json``, ``model.safetensors`` or
            ``pytorch_model.bin``, ``vocab.json`` and ``merges.txt`` or ``tokenizer.json``.
        output: Folder to write: ``model.pt``, ``dict.txt``, ``encoder.json``, ``vocab.bpe``,
            ``subwords.json``.
        encoder_json: GPT-2's file, for a vocabulary whose numbers cannot be computed from its
            merges.
        overwrite: True to replace files of an existing folder.

    Raises:
        UserError: if fairseq's BART cannot compute the model, a file is missing or damaged, or the
            output cannot be written.
    """
    check_output_folder(output, overwrite=overwrite, reads=folder)
    config = read_config(folder)
    path = os.path.join(folder, "config.json")
    if config["model_type"] != "bart":
        raise UserError(f"{path}: `model_type` must be bart, but is {config['model_type']}.")
    options, arch = _options(config, path)
    weights = read_weights(folder)
    notes: list[str] = []
    weights, sizes = _rename(weights, options, folder, notes)
    vocabulary = read_huggingface_vocabulary(folder, sizes.rows, encoder_json=encoder_json)
    subwords = Subwords("gpt2", files=_files(vocabulary))
    defaults = _LARGE if arch.endswith("large") else _BASE
    changed = {name: x for name, x in options.items() if defaults.get(name) != x}
    flags = [text for name, x in options.items() for text in (_option(name), str(x))]
    state = checkpoint_state([".", "--task", "denoising", "--arch", arch, *flags], weights)
    # BARTModel.from_pretrained puts its own `bpe` into every part that has the name; the task's is
    # another thing
    state["cfg"]["task"].pop("bpe", None)
    with output_folder(output) as partial:
        subwords.save(partial)
        with open(os.path.join(partial, "dict.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in vocabulary.dictionary_lines())
        torch.save(state, os.path.join(partial, "model.pt"))
    parameters = sum(x.numel() for name, x in weights.items() if name not in EMBEDDINGS[1:])
    return ConvertedBart(output, arch, changed, parameters, sizes.rows, notes)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _options(config: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the options of fairseq's model, and the architecture with the nearest defaults."""
    for name, expected in _FIXED.items():
        if config.get(name, expected) != expected:
            raise UserError(
                f"{path}: `{name}` is {json.dumps(config[name])}, but fairseq's BART is as with "
                f"{json.dumps(expected)}."
            )
    options: dict[str, Any] = {}
    for name, theirs in SIZES.items():
        value = config.get(theirs)
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: `{theirs}` must be a number, but is {json.dumps(value)}.")
        options[name] = value
    for name, theirs in RATES.items():
        options[name] = float(config.get(theirs, _COMMON[name]))  # its defaults are fairseq's
    activations = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
    activation = config.get("activation_function", "gelu")
    if activation not in activations:
        raise UserError(
            f"{path}: `activation_function` must be {' or '.join(activations)}, but is "
            f"{activation}."
        )
    options["activation_fn"] = activations[activation]
    size = "large" if options["encoder_embed_dim"] >= _LARGE["encoder_embed_dim"] else "base"
    # architectures differ in whether embeddings are scaled, which is no option of the command line
    family = "mbart" if config.get("scale_embedding") else "bart"
    return options, f"{family}_{size}"


def _rename(
    weights: dict[str, Tensor], options: dict[str, Any], folder: str, notes: list[str]
) -> tuple[dict[str, Tensor], BartSizes]:
    """Rename the weights for fairseq, and return them with their sizes."""
    weights = {
        name[len(_PREFIX) :] if name.startswith(_PREFIX) else name: x.float()
        for name, x in weights.items()
    }
    bias = weights.pop(_BIAS, None)
    if bias is not None and bias.any():
        raise UserError(
            f"{folder}: {_BIAS} is not zero: the model adds a number to the score of each word, "
            "for which fairseq's BART has no place."
        )
    head = [name for name in weights if name.startswith(_HEAD)]
    if head:
        notes.append("The head that classifies texts is left out.")
        for name in head:
            del weights[name]
    embeddings = share_embeddings(weights, _EMBEDDINGS, folder)
    weights[EMBEDDINGS[0]] = embeddings
    sizes = BartSizes(
        len(embeddings),
        options["encoder_embed_dim"],
        tuple(options[f"max_{x}_positions"] + FIRST_POSITION for x in ("source", "target")),
        tuple(options[f"{part}_layers"] for part in ("encoder", "decoder")),
        tuple(options[f"{part}_ffn_embed_dim"] for part in ("encoder", "decoder")),
    )
    check_tensors(weights, sizes, folder)
    return {**weights, **dict.fromkeys(EMBEDDINGS, embeddings)}, sizes


def _files(vocabulary: BartVocabulary) -> dict[str, bytes]:
    merges = "".join(f"{line}\n" for line in vocabulary.merge_lines())
    return {
        "encoder.json": (json.dumps(vocabulary.encoder) + "\n").encode(),
        "vocab.bpe": merges.encode(),
    }
