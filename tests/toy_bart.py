"""Small BARTs: in a folder as Hugging Face writes it, its BPE learned from a few sentences, and as
fairseq's published ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.models.bart import BARTModel
from omegaconf import OmegaConf
from toy_data import video_task

from fairseq_mm.models.vg_bart import VgBartConfig, bart_options

SENTENCES = [
    "how to tie a knot in this free video from an expert on fishing",
    "learn how to tie the knots that you need to fish with this expert's tips",
    "the café's owner, 42, says: you'll never guess what's in the soup!",
    "transcript not available",
]
SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 30,
}
FILLERS = 2


def import_transformers() -> Any:
    return pytest.importorskip(
        "transformers", reason="transformers is not installed: nothing to compare with"
    )


def write_vocabulary(folder: Path) -> int:
    """``vocab.json`` and ``merges.txt`` in BART's order; returns the number of words."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        SENTENCES * 5,
        vocab_size=310,
        min_frequency=2,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
    )
    bpe.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    pieces = sorted(vocabulary, key=vocabulary.get)
    # BART's order is by frequency, not that of the merges
    pieces = [*pieces[:4], *pieces[:3:-1], "<|endoftext|>"]
    pieces += [f"madeupword{i:04}" for i in range(FILLERS)] + ["<mask>"]
    content = {piece: row for row, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(content), encoding="utf-8")
    return len(pieces)


def write_huggingface_bart(
    folder: Path, *, scale: float = 1.0, ending: float = 0.0, seed: int = 1, **config: Any
) -> Any:
    """A model of random weights and its tokenizer; returns the model.

    Args:
        folder: to make.
        scale: of the weights: greater ones make surer models.
        ending: added to the score of ``</s>``, for texts that end soon.
        seed: of the weights.
        **config: of ``BartConfig``.
    """
    transformers = import_transformers()
    folder.mkdir(parents=True, exist_ok=True)
    words = write_vocabulary(folder)
    torch.manual_seed(seed)
    settings = {"vocab_size": words, **SIZES, **config}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1).mul_(scale)
        end = model.model.shared.weight[2]
        bias = model.model.decoder.layers[-1].final_layer_norm.bias
        bias.add_(ending * end / end.dot(end))
    model.save_pretrained(folder)
    return model


TINY_BART: dict[str, Any] = {
    "encoder_embed_dim": 8,
    "encoder_ffn_embed_dim": 12,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_ffn_embed_dim": 10,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
}


def write_bart(path: Path, **chosen: Any) -> tuple[Path, dict[str, torch.Tensor]]:
    """A checkpoint of fairseq's own BART, as published ones are, and its weights."""
    names = {name: field.default for name, field in VgBartConfig.__dataclass_fields__.items()}
    options = bart_options(OmegaConf.create({**names, **TINY_BART, **chosen}))
    torch.manual_seed(3)
    weights = BARTModel.build_model(options, video_task()).state_dict()
    options.arch, options.task, options.criterion = "bart_base", "translation", "cross_entropy"
    optimizer = {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}
    progress = {"train_iterator": {"epoch": 1}}
    state = {"args": options, "model": weights, "optimizer_history": [optimizer]}
    state["extra_state"] = progress
    torch.save(state, path)
    return path, weights
