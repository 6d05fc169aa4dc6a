"""Converts Hugging Face's BART to a checkpoint, a dictionary and a GPT-2 BPE of fairseq.

The output folder has the files of fairseq's published models (``model.pt``, ``dict.txt``) and the
files of the tokenizer.

Names of tensors differ only by a prefix: fairseq's ``encoder.layers.0.fc1.weight`` is Hugging
Face's ``model.encoder.layers.0.fc1.weight``. Encoder, decoder and output layer share the
embeddings, which fairseq stores three times and Hugging Face once. In both packages, the first word
has row 2 of the position embeddings.

The embeddings of Hugging Face and of fairseq have the same order: four special symbols, the BPE
tokens, and ``<mask>`` last. Hugging Face's ``vocab.json`` lists a token by its letters. fairseq's
``dict.txt`` lists a token by its number in GPT-2's ``encoder.json``; it lacks ``<mask>``, which
fairseq's denoising task adds. GPT-2's numbers can be computed without ``encoder.json``: first come
the 256 bytes, then the tokens that result from the merges in ``merges.txt``, in their order, then
``<|endoftext|>``.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode
from torch import Tensor

from fairseq_mm.conversion.huggingface_folder import (
    ConvertedPretrained,
    pop_embeddings,
    read_options,
    read_weights,
)
from fairseq_mm.conversion.new_checkpoint import checkpoint_state, complete_options, format_flags
from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.data.input_files import read_json
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import file_errors
from fairseq_mm.extract.weights import check_tensors

# Row of the first word in the position tables: fairseq numbers positions from padding_idx + 1 on,
# which is 2, and Hugging Face's BART has this offset as a constant.
FIRST_POSITION = 2
EMBEDDINGS = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)
# of BartConfig
RATES = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
# gelu_new is the tanh approximation
ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "tanh": "tanh", "gelu_new": "gelu_accurate"}
# config.json has one width and one length for both sides
FIELDS = {
    "encoder_embed_dim": ("d_model", None, int),
    "encoder_layers": ("encoder_layers", None, int),
    "encoder_ffn_embed_dim": ("encoder_ffn_dim", None, int),
    "encoder_attention_heads": ("encoder_attention_heads", None, int),
    "decoder_embed_dim": ("d_model", None, int),
    "decoder_layers": ("decoder_layers", None, int),
    "decoder_ffn_embed_dim": ("decoder_ffn_dim", None, int),
    "decoder_attention_heads": ("decoder_attention_heads", None, int),
    "max_source_positions": ("max_position_embeddings", None, int),
    "max_target_positions": ("max_position_embeddings", None, int),
    **{name: (name, default, float) for name, default in RATES.items()},
    "activation_fn": ("activation_function", "gelu", ACTIVATIONS),
}
_PREFIX = "model."
_SHARED_EMBEDDINGS = (
    "shared.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "lm_head.weight",
)
_BIAS = "final_logits_bias"
_HEAD = "classification_head."
# Fields with the only value that fairseq's BART computes. They are BartConfig's defaults, too, so a
# config without the field passes.
_FIXED = {
    name: (name, value, (value,))
    for name, value in {
        "normalize_before": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "normalize_embedding": True,
        "tie_word_embeddings": True,
        "decoder_start_token_id": 2,  # fairseq's decoder begins with </s>
    }.items()
}
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
# fairseq fills dictionaries up to a multiple of 8 with these words
_FILLER = re.compile(r"madeupword\d+")


def convert_bart(folder: str, output: str) -> ConvertedPretrained:
    """Convert Hugging Face's BART (``config.json``, weights, and ``vocab.json`` with ``merges.txt``
    or ``tokenizer.json``) to fairseq's format; return a summary."""
    path = os.path.join(folder, "config.json")
    config = read_json(path)
    # the config is checked first: reading the weights of a large model takes a minute
    read_options(config, path, _FIXED)
    options = read_options(config, path, FIELDS)
    size = "large" if options["encoder_embed_dim"] >= 1024 else "base"
    # bart_* do not scale embeddings, and --no-scale-embedding cannot be negated; mbart_* do
    arch = f"{'mbart' if config.get('scale_embedding') else 'bart'}_{size}"
    notes: list[str] = []
    weights = _rename(read_weights(folder), options, folder, notes)
    num_rows = len(weights[EMBEDDINGS[0]])
    vocabulary = read_huggingface_vocabulary(folder, num_rows)
    # readers skip the first line of GPT-2's file: without it they would skip the first merge
    pairs = (" ".join(pair) for pair in vocabulary.merges)
    merges = "".join(f"{line}\n" for line in ("#version: 0.2", *pairs))
    encoder = json.dumps(vocabulary.encoder) + "\n"
    subwords = Subwords(
        "gpt2", files={"encoder.json": encoder.encode(), "vocab.bpe": merges.encode()}
    )
    flags = format_flags(options)
    # the task denoising is the one that gives the dictionary its last row, <mask>
    state = checkpoint_state([".", "--task", "denoising", "--arch", arch, *flags], weights)
    # BARTModel.from_pretrained overrides `bpe` in every part of the config that has the name, and
    # the task's `bpe` has another meaning
    state["cfg"]["task"].pop("bpe", None)
    words = vocabulary.symbols[len(SPECIAL) :]
    # the denoising task adds <mask> at the end: a file that had it would have it once more
    if words[-1:] == [MASK]:
        words = words[:-1]
    with output_folder(output) as partial:
        subwords.save(partial)
        with open(os.path.join(partial, "dict.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"{word} 1\n" for word in words)
        with library_errors():
            torch.save(state, os.path.join(partial, "model.pt"))
    # bart_* do not set activation_dropout, whose default is BartConfig's
    defaults = {**RATES, **complete_options(arch, {})}
    changed = {name: x for name, x in options.items() if defaults.get(name) != x}
    # fairseq has three names for one table of embeddings
    parameters = sum(x.numel() for name, x in weights.items() if name not in EMBEDDINGS[1:])
    return ConvertedPretrained(arch, changed, parameters, num_rows, notes)


def _rename(
    weights: Mapping[str, Tensor], options: Mapping[str, Any], folder: str, notes: list[str]
) -> dict[str, Tensor]:
    """Return Hugging Face's weights by fairseq's names; raise UserError if they do not fit."""
    # the base class BartModel saves its weights without the prefix
    weights = {name.removeprefix(_PREFIX): x.float() for name, x in weights.items()}
    # another bias of the words' scores stays, and is refused: fairseq's BART has no place for it
    if not weights.get(_BIAS, torch.ones(1)).any():
        del weights[_BIAS]
    head = [name for name in weights if name.startswith(_HEAD)]
    if head:
        notes.append("The head that classifies texts is left out.")
        for name in head:
            del weights[name]
    embeddings = pop_embeddings(weights, _SHARED_EMBEDDINGS, folder)
    weights[EMBEDDINGS[0]] = embeddings
    # max_position_embeddings does not count the unused rows at the start of the tables
    source, target = (options[f"max_{x}_positions"] + FIRST_POSITION for x in ("source", "target"))
    check_tensors(weights, _expected_shapes(options, len(embeddings), (source, target)), folder)
    return {**weights, **dict.fromkeys(EMBEDDINGS, embeddings)}


def _expected_shapes(
    options: Mapping[str, Any], num_rows: int, positions: tuple[int, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a BART's tensors by fairseq's names; a shared one occurs once."""
    C = options["encoder_embed_dim"]
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS[0]: (num_rows, C)}

    def add_linear(name: str, rows: int, columns: int) -> None:
        shapes.update({f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)})

    def add_norm(name: str) -> None:
        shapes.update({f"{name}.weight": (C,), f"{name}.bias": (C,)})

    for part, length in zip(("encoder", "decoder"), positions):
        ffn_dim = options[f"{part}_ffn_embed_dim"]
        shapes[f"{part}.embed_positions.weight"] = (length, C)
        add_norm(f"{part}.layernorm_embedding")
        for layer in range(options[f"{part}_layers"]):
            stem = f"{part}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn") if part == "decoder" else ("self_attn",):
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    add_linear(f"{stem}.{attention}.{projection}", C, C)
                add_norm(f"{stem}.{attention}_layer_norm")
            add_linear(f"{stem}.fc1", ffn_dim, C)
            add_linear(f"{stem}.fc2", C, ffn_dim)
            add_norm(f"{stem}.final_layer_norm")
    return shapes


class BartVocabulary(NamedTuple):
    """Vocabulary of a BART."""

    # fairseq's symbols in the order of the embeddings, special ones and ``<mask>`` too
    symbols: list[str]
    # GPT-2's number of each BPE token, which replaces the token in fairseq's texts
    encoder: dict[str, int]
    merges: list[tuple[str, str]]  # pairs of tokens that the BPE merges, in their order


def read_huggingface_vocabulary(folder: str, rows: int) -> BartVocabulary:
    """Read the vocabulary of Hugging Face's BART, whose embedding has ``rows`` rows."""
    problem = (
        f"its tokenizer must be a BPE as BART's, which gives each piece a number of its own below "
        f"{rows}, the rows of the embeddings, and begins with {', '.join(SPECIAL)}, but is not"
    )
    with file_errors(folder, problem):
        pieces, merges = _read_tokenizer(folder)
        by_row = {row: piece for piece, row in pieces.items()}
        # fairseq's Dictionary has the four special symbols in fixed places, which are BART's
        if (
            any(pieces.get(word) != row for row, word in enumerate(SPECIAL))
            or len(by_row) < len(pieces)
            or any(row >= rows and piece != MASK for row, piece in by_row.items())
        ):
            raise ValueError("a piece has no number of its own")
    encoder = _numbers(merges, by_row)
    return BartVocabulary(_symbols(by_row, rows, encoder), encoder, merges)


def _read_tokenizer(folder: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Read a tokenizer in Hugging Face's format."""
    vocabulary, merges, whole = (
        os.path.join(folder, name) for name in ("vocab.json", "merges.txt", "tokenizer.json")
    )
    if os.path.isfile(vocabulary) and os.path.isfile(merges):
        pieces = dict(read_json(vocabulary))
        # tokens of tokenizer.add_tokens are in a file of their own
        added = os.path.join(folder, "added_tokens.json")
        if os.path.isfile(added):
            pieces.update(read_json(added))
        with open(merges, encoding="utf-8-sig", newline="\n") as file:
            lines = [line.rstrip("\r") for line in file.read().split("\n")]
        start = 1 if lines[0].startswith("#version") else 0
        pairs = [_pair(line.split(" ")) for line in lines[start:] if line]
        return pieces, pairs
    content = read_json(whole)  # which needs no vocab.json and merges.txt
    model = content["model"]
    if model["type"] != "BPE":
        raise ValueError(f"{whole} is {model['type']}")
    pieces = dict(model["vocab"])
    for token in content.get("added_tokens") or []:
        pieces[token["content"]] = token["id"]
    # tokenizers 0.20 and newer write a merge as a list, older versions as a text
    merges_of_file = (x.split(" ") if isinstance(x, str) else x for x in model.get("merges") or [])
    return pieces, [_pair(x) for x in merges_of_file]


def _pair(parts: Sequence[str]) -> tuple[str, str]:
    first, second = parts
    return first, second


def _numbers(merges: list[tuple[str, str]], by_row: dict[int, str]) -> dict[str, int]:
    """Return the number that GPT-2's ``encoder.json`` would have for each BPE token."""
    alphabet = list(bytes_to_unicode().values())
    encoder: dict[str, int] = {}
    for piece in (*alphabet, *("".join(pair) for pair in merges)):
        # two merges may produce the same piece; the first has its number
        encoder.setdefault(piece, len(encoder))
    letters = set(alphabet)
    for row in sorted(by_row):
        piece = by_row[row]
        is_special = piece in SPECIAL or piece == MASK or _FILLER.fullmatch(piece)
        # added words that are made of bytes: GPT-2's BPE could not decode others
        if not is_special and set(piece) <= letters:
            encoder.setdefault(piece, len(encoder))
    return encoder


def _symbols(by_row: dict[int, str], rows: int, encoder: dict[str, int]) -> list[str]:
    """Return the symbols of fairseq's dictionary in the order of the embeddings."""
    symbols = list(SPECIAL)
    used = set(by_row.values())
    fillers = (f"madeupword{i:04}" for i in range(10 * rows))
    for row in range(len(SPECIAL), rows):
        piece = by_row.get(row, "")
        if piece in encoder:
            symbols.append(str(encoder[piece]))
        elif piece == MASK or _FILLER.fullmatch(piece):
            symbols.append(piece)
        else:  # a row without a word, or with one that is not made of bytes
            symbols.append(next(word for word in fillers if word not in used))
    return symbols
