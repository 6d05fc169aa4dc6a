"""Converts a checkpoint of ``--arch t5`` to a folder that Hugging Face's package loads.

Reads checkpoints that :mod:`fairseq_mm.conversion.t5` has written, or that were trained from one:
they carry their dictionary and sentencepiece model.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from omegaconf import DictConfig, OmegaConf

from fairseq_mm.conversion.foreign_checkpoint import checkpoint_path, read_foreign_checkpoint
from fairseq_mm.conversion.huggingface_folder import write_safetensors
from fairseq_mm.conversion.output_folder import check_output_folder, output_folder
from fairseq_mm.conversion.t5 import PIECES_FILE, ConvertedT5
from fairseq_mm.conversion.t5_layout import (
    EMBEDDINGS,
    FEED_FORWARD,
    OUTPUT,
    RATES,
    SIZES,
    THEIR_EMBEDDINGS,
    THEIR_OUTPUT,
    weight_names,
)
from fairseq_mm.conversion.t5_vocabulary import END, PAD, num_extra_ids, t5_dictionary, to_t5_rows
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError
from fairseq_mm.models._backbone_weights import t5_backbone
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance, symbols_of


def is_t5(state: Mapping[str, Any]) -> bool:
    """Return whether the content of a checkpoint names ``--arch t5``."""
    return str((_model_options(state) or {}).get("_name")).startswith("t5")


def _model_options(state: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    cfg = state.get("cfg")
    if isinstance(cfg, DictConfig):
        cfg = OmegaConf.to_container(cfg)
    options = cfg.get("model") if isinstance(cfg, dict) else None
    return options if isinstance(options, dict) else None


def convert_t5_to_huggingface(
    checkpoint: str,
    output: str,
    *,
    overwrite: bool = False,
    state: Optional[Mapping[str, Any]] = None,
) -> ConvertedT5:
    """Convert a T5 to Hugging Face's.

    Args:
        checkpoint: Checkpoint of ``--arch t5``, or a folder with ``model.pt``.
        output: Folder to write: ``config.json``, ``generation_config.json``, ``model.safetensors``,
            ``spiece.model``, ``tokenizer_config.json``.
        overwrite: True to replace files of an existing folder.
        state: Content of the checkpoint, if it has been read already.

    Raises:
        UserError: if the checkpoint is damaged or is no text-only T5 with T5's vocabulary, or the
            output cannot be written.
    """
    path = checkpoint_path(checkpoint)
    check_output_folder(output, overwrite=overwrite, reads=path)
    state = read_foreign_checkpoint(path) if state is None else state
    weights, options = state.get("model"), _model_options(state)
    if not isinstance(weights, dict) or options is None or STATE_KEY not in weights:
        raise UserError(f"{path}: is no checkpoint of --arch t5.")
    arch = str(options.get("_name"))
    if t5_backbone(weights) is None:
        raise UserError(f"{path}: must be of --arch t5, but is of --arch {arch}.")
    provenance = decode_provenance(weights[STATE_KEY])
    subwords = _subwords(provenance, path)
    embedding = weights[EMBEDDINGS[0]]
    notes: list[str] = []
    expected = t5_dictionary(subwords.files["sentencepiece.model"], len(embedding), path, notes)
    if symbols_of(expected) != provenance["words"]:
        raise UserError(
            f"{path}: its dictionary is not in the order of T5's vocabulary, which fairseq-mm "
            "convert keeps: there is no such model of Hugging Face's."
        )
    names = dict(weight_names(options))
    is_known = {STATE_KEY, OUTPUT, *EMBEDDINGS, *names}
    others = sorted(name for name in weights if name not in is_known)
    if others:
        raise UserError(
            f"{path}: is of --arch {arch}: Hugging Face's T5 has no place for {others[0]} "
            f"({len(others)} such tensors)."
        )
    renamed = {theirs: weights[ours].float() for ours, theirs in names.items()}
    renamed[THEIR_EMBEDDINGS[0]] = to_t5_rows(embedding.float())
    if OUTPUT in weights:
        renamed[THEIR_OUTPUT] = to_t5_rows(weights[OUTPUT].float())
    config = _config(options, len(embedding), is_tied=OUTPUT not in weights)
    with output_folder(output) as partial:
        write_safetensors(renamed, os.path.join(partial, "model.safetensors"))
        with open(os.path.join(partial, PIECES_FILE), "wb") as file:
            file.write(subwords.files["sentencepiece.model"])
        for name, content in (
            ("config.json", config),
            ("generation_config.json", _starts_and_ends()),
            ("tokenizer_config.json", _tokenizer_config(subwords, len(embedding))),
        ):
            with open(os.path.join(partial, name), "w", encoding="utf-8") as text:
                text.write(json.dumps(content, indent=2) + "\n")
    parameters = sum(x.numel() for x in renamed.values())
    return ConvertedT5(output, arch, {}, parameters, len(embedding), notes)


def _subwords(provenance: Mapping[str, Any], path: str) -> Subwords:
    subwords = Subwords.from_state(provenance.get("subwords") or {"kind": "none"})
    if subwords.kind != "sentencepiece":
        raise UserError(
            f"{path}: was trained on subwords of kind {subwords.kind!r}, but Hugging Face's T5 has "
            "a sentencepiece model."
        )
    return subwords


def _config(options: Mapping[str, Any], num_rows: int, *, is_tied: bool) -> dict[str, Any]:
    config = {key: options[name] for name, (key, _) in {**SIZES, **RATES}.items()}
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        **config,
        "vocab_size": num_rows,
        "feed_forward_proj": FEED_FORWARD[str(options["feed_forward"])],
        "tie_word_embeddings": is_tied,
        # what transformers 5 goes by
        "scale_decoder_outputs": is_tied,
        **_starts_and_ends(),
    }


def _tokenizer_config(subwords: Subwords, num_rows: int) -> dict[str, Any]:
    """Return the config of the tokenizer, with as many extra ids as there are rows: more ids would
    exceed the embedding.
    """
    import sentencepiece

    pieces = subwords.files["sentencepiece.model"]
    num_pieces = sentencepiece.SentencePieceProcessor(model_proto=pieces).get_piece_size()
    return {
        "tokenizer_class": "T5Tokenizer",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "extra_ids": num_extra_ids(num_pieces, num_rows),
    }


def _starts_and_ends() -> dict[str, int]:
    return {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
