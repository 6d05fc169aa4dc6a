"""Converts checkpoints of fairseq's BART to folders that Hugging Face's transformers loads.

The checkpoint can be a published checkpoint, a result of :mod:`fairseq_mm.conversion.bart`, or a
checkpoint trained from such a file, of any version of fairseq.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Optional

from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from torch import Tensor

from fairseq_mm.conversion.bart import (
    ACTIVATIONS,
    EMBEDDINGS,
    FIRST_POSITION,
    RATES,
    SIZES,
    check_tensors,
    share_embeddings,
)
from fairseq_mm.conversion.bart_vocabulary import (
    MASK,
    SPECIAL,
    BartVocabulary,
    read_encoder,
    read_merges,
    write_vocab_json,
)
from fairseq_mm.conversion.foreign_checkpoint import (
    checkpoint_options,
    checkpoint_path,
    read_foreign_checkpoint,
)
from fairseq_mm.conversion.huggingface_folder import (
    ConvertedPretrained,
    write_json_files,
    write_safetensors,
)
from fairseq_mm.conversion.new_checkpoint import complete_options
from fairseq_mm.conversion.output_folder import check_output_folder, output_folder
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.errors import UserError

# second copies of stock fairseq's encoder layers, named for PyTorch's own kernel
_DUPLICATES = re.compile(r"(en|de)coder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")
# in published checkpoints: a version number, and a tensor that only held the dtype
_WITHOUT_WEIGHTS = re.compile(r"(en|de)coder\.(version|embed_positions\._float_tensor)")
_HEADS = "classification_heads."
# fairseq's option -> the only value that Hugging Face's BART supports
_FIXED = {
    "encoder_normalize_before": False,
    "decoder_normalize_before": False,
    "encoder_learned_pos": True,
    "decoder_learned_pos": True,
    "layernorm_embedding": True,
    "no_token_positional_embeddings": False,
    "adaptive_softmax_cutoff": None,
}
# fairseq's published models have the first, data folders of summaries the second
_DICTIONARIES = ("dict.txt", "dict.desc.txt")


def convert_bart_to_huggingface(
    checkpoint: str,
    output: str,
    *,
    data: Optional[str] = None,
    overwrite: bool = False,
    state: Optional[Mapping[str, Any]] = None,
) -> ConvertedPretrained:
    """Convert fairseq's BART to Hugging Face's format, and return a summary of the conversion.

    Args:
        checkpoint: Path of a checkpoint of fairseq's BART, or of a folder with ``model.pt``.
        output: Folder to write: ``config.json``, ``generation_config.json``, ``model.safetensors``,
            ``vocab.json``, ``merges.txt``, ``tokenizer_config.json``.
        data: Folder with ``dict.txt`` (or ``dict.desc.txt``), ``encoder.json`` and ``vocab.bpe``;
            None for the checkpoint's folder.
        overwrite: True to replace files of an existing folder.
        state: Content of the checkpoint; None to read it from the file.
    """
    path = checkpoint_path(checkpoint)
    check_output_folder(output, overwrite=overwrite, reads=path)
    state = read_foreign_checkpoint(path) if state is None else state
    arch, options = _options(state, path)
    weights, notes = _select_weights(state)
    embeddings = share_embeddings(weights, EMBEDDINGS, path)
    num_rows = len(embeddings)
    weights[EMBEDDINGS[0]] = embeddings
    # Counted in the table: the option of this name is also the task's limit for texts. config.json
    # has one number for both sides, so the decoder's table must be as long.
    positions = weights.get("encoder.embed_positions.weight")
    num_positions = 0 if positions is None else len(positions)
    check_tensors(weights, options, (num_positions, num_positions), path)
    folder = data or os.path.dirname(os.path.abspath(path))
    vocabulary = _read_vocabulary(folder, num_rows, notes)
    try:
        pieces = vocabulary.pieces()
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    config = _build_config(options, num_rows, num_positions - FIRST_POSITION)
    # one copy: safetensors refuses to save two names for the same memory
    del weights[EMBEDDINGS[0]]
    renamed = {"model.shared.weight": embeddings.float()}
    renamed.update({f"model.{name}": x.float() for name, x in weights.items()})
    # a buffer that save_pretrained writes, too; fairseq adds nothing to its logits
    renamed["final_logits_bias"] = embeddings.new_zeros(1, num_rows).float()
    with output_folder(output) as partial:
        write_safetensors(renamed, os.path.join(partial, "model.safetensors"))
        write_vocab_json(pieces, os.path.join(partial, "vocab.json"))
        with open(os.path.join(partial, "merges.txt"), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in vocabulary.merge_lines())
        write_json_files(
            {
                "config.json": config,
                # the token ids alone: fairseq's search options are not part of a checkpoint
                "generation_config.json": {
                    name: x for name, x in config.items() if name.endswith("token_id")
                },
                "tokenizer_config.json": _tokenizer_config(has_mask=MASK in pieces),
            },
            partial,
        )
    parameters = sum(x.numel() for name, x in renamed.items() if name != "final_logits_bias")
    return ConvertedPretrained(output, arch, {}, parameters, num_rows, notes)


def _options(state: Mapping[str, Any], path: str) -> tuple[str, dict[str, Any]]:
    """Return ``--arch`` and all options of the model in a checkpoint.

    Raise UserError if Hugging Face's BART does not support the value of an option.

    Args:
        state: Content of the checkpoint.
        path: Path of the checkpoint, for messages.
    """
    arch, saved = checkpoint_options(state, path)
    if ARCH_MODEL_NAME_REGISTRY.get(arch) != "bart":
        raise UserError(f"{path}: must be of fairseq's BART, but is of --arch {arch}.")
    options = complete_options(arch, saved)
    for name, expected in _FIXED.items():
        value = options.get(name, expected)
        if (value or None) != (expected or None):  # False, None and 0 all switch an option off
            raise UserError(
                f"{path}: --{name.replace('_', '-')} is {value}, but Hugging Face's BART is as "
                f"with {expected}."
            )
    if options["encoder_embed_dim"] != options["decoder_embed_dim"]:
        raise UserError(f"{path}: --encoder-embed-dim and --decoder-embed-dim differ.")
    if options["activation_fn"] not in ACTIVATIONS:
        raise UserError(
            f"{path}: --activation-fn must be {' or '.join(ACTIVATIONS)}, but is "
            f"{options['activation_fn']}."
        )
    return arch, options


def _select_weights(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the weights that Hugging Face's BART has, too, and notes about omitted weights.

    The weights keep fairseq's names. ``state`` is the content of the checkpoint.
    """
    notes = []
    if any(name.startswith(_HEADS) for name in state["model"]):
        notes.append("Heads that classify texts are left out.")
    weights = {
        name: x.detach()
        for name, x in state["model"].items()
        if isinstance(x, Tensor)
        and not name.startswith(_HEADS)
        and not _DUPLICATES.fullmatch(name)
        and not _WITHOUT_WEIGHTS.fullmatch(name)
    }
    return weights, notes


def _read_vocabulary(folder: str, rows: int, notes: list[str]) -> BartVocabulary:
    paths = [os.path.join(folder, name) for name in _DICTIONARIES]
    path = next((x for x in paths if os.path.isfile(x)), None)
    if path is None:
        raise UserError(f"{folder}: has no {' or '.join(_DICTIONARIES)}; --data DIR names another.")
    dictionary = load_dictionary(path)
    symbols = list(SPECIAL) + dictionary.symbols[dictionary.nspecial :]
    # fairseq's denoising task adds the word when it loads the file
    if len(symbols) == rows - 1 and MASK not in symbols:
        symbols.append(MASK)
    if len(symbols) != rows:
        raise UserError(
            f"{path}: has {len(symbols)} words with the special symbols, but the embeddings have "
            f"{rows} rows: it is another model's dictionary."
        )
    if MASK not in symbols:
        notes.append("It has no <mask>: the checkpoint's task had none.")
    for name in ("encoder.json", "vocab.bpe"):
        if not os.path.isfile(os.path.join(folder, name)):
            raise UserError(
                f"{folder}: has no {name}, GPT-2's, which the tokenizer is made of; --data DIR "
                "names another."
            )
    encoder = read_encoder(os.path.join(folder, "encoder.json"))
    return BartVocabulary(symbols, encoder, read_merges(os.path.join(folder, "vocab.bpe")))


def _build_config(options: Mapping[str, Any], num_rows: int, positions: int) -> dict[str, Any]:
    return {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        **{theirs: options[ours] for ours, theirs in SIZES.items()},
        **{name: options.get(name) or 0.0 for name in RATES},
        "max_position_embeddings": positions,
        "vocab_size": num_rows,
        "activation_function": ACTIVATIONS[options["activation_fn"]],
        "scale_embedding": not options["no_scale_embedding"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        # fairseq's decoder begins with </s>, and its search ends every text with it
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    }


def _tokenizer_config(*, has_mask: bool) -> dict[str, Any]:
    return {
        "tokenizer_class": "BartTokenizer",
        "add_prefix_space": False,
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        # null, because BartTokenizer would otherwise add a <mask> beyond the last row
        "mask_token": MASK if has_mask else None,
    }
