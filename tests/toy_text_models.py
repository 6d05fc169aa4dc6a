"""Untrained models of text, saved as fairseq-train saves them."""

from argparse import Namespace
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from torch import nn

SOURCE_WORDS = "[ WP ] You find a door in the old house .".split()  # noqa: SIM905
STORY_WORDS = "I opened the door <newline> `` Who saw a dark room ? '' . it did n't".split()  # noqa: SIM905
NUM_POSITIONS = 43


def dictionary_of(words: list[str]) -> Dictionary:
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


def save_text_model(
    path: Path,
    arch: str = "conv_story_tiny",
    *,
    seed: int = 7,
    words: Optional[list[str]] = None,
    source_words: Optional[list[str]] = None,
    task_options: Optional[dict[str, Any]] = None,
    **options: Any,
) -> Path:
    """
    Args:
        path: file to write.
        arch: a story model or, with ``gcnn_lm`` in its name, a language model.
        seed: of the weights.
        words: of the texts that it writes.
        source_words: of the prompts that it reads.
        task_options: recorded of the task.
        **options: of the architecture.
    """
    is_language_model = arch.startswith("gcnn_lm")
    dictionary = dictionary_of(words or STORY_WORDS)
    task = Namespace(
        target_dictionary=dictionary,
        source_dictionary=dictionary_of(source_words or SOURCE_WORDS),
        feature_dim=0,
        feature_attributes={},
        cfg=Namespace(data=None),
    )
    sizes = {"max_source_positions": NUM_POSITIONS, "max_target_positions": NUM_POSITIONS}
    cfg = Namespace(**({"max_positions": NUM_POSITIONS} if is_language_model else sizes), **options)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    cls = ARCH_MODEL_REGISTRY[arch]
    fields = cls.__dataclass.__dataclass_fields__
    defaults = {key: value.default for key, value in fields.items()}
    cfg = {**defaults, **vars(cfg), "_name": arch}
    if is_language_model:
        cfg["tokens_per_sample"] = NUM_POSITIONS
    torch.manual_seed(seed)
    model = cls.build_model(Namespace(**cfg), task)
    _sharpen(model)
    cfg["compat"] = str(cfg.get("compat"))
    name = "language_modeling" if is_language_model else "translation"
    state = {
        "args": None,
        "cfg": {"task": {"_name": name, **(task_options or {})}, "model": cfg, "common": {}},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "CrossEntropy", "best_loss": None}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    return path


def _sharpen(model: nn.Module) -> None:
    """Makes words depend on the words before them and on the prompt, and ends less improbable."""
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "embedding.tokens" in name:
                x.mul_(8)
        model.decoder.output_proj.weight.mul_(6)
        model.decoder.output_proj.bias[2] = 1.0
