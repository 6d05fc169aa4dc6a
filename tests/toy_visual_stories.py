"""Untrained models of visual stories whose text has punctuation, and whose features may come from
pixels, saved as fairseq-train saves them."""

from argparse import Namespace
from pathlib import Path
from typing import Any, Optional

import torch
import torchvision
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from toy_captioner import SIDE
from toy_data import EXTRACTOR, write_store, write_visual_story_split

from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.extract.extractor import build_extractor

STORY_WORDS = "the dog did n't run we saw it a . ? big lake".split()  # noqa: SIM905


def story_dictionary(words: Optional[list[str]] = None) -> Dictionary:
    dictionary = Dictionary()
    for word in [*(words or STORY_WORDS), SEPARATOR]:
        dictionary.add_symbol(word)
    return dictionary


def save_story_model(
    path: Path,
    arch: str = "glac_tiny",
    *,
    dim: int = 5,
    rows: int = 1,
    extractor: Optional[dict[str, Any]] = None,
    words: Optional[list[str]] = None,
    seed: int = 7,
    options: Optional[dict[str, Any]] = None,
) -> Path:
    """
    Args:
        path: file to write.
        arch: of the task ``visual_storytelling``.
        dim: channels of the features.
        rows: of the features of an image.
        extractor: attributes of the features.
        words: of the stories.
        seed: of the weights.
        options: of the model.
    """
    dictionary = story_dictionary(words)
    task = Namespace(
        target_dictionary=dictionary,
        separator_index=dictionary.index(SEPARATOR),
        feature_dim=dim,
        feature_attributes=EXTRACTOR if extractor is None else extractor,
        rows_per_image=rows,
    )
    cfg = Namespace(**(options or {}))
    ARCH_CONFIG_REGISTRY[arch](cfg)
    cls = ARCH_MODEL_REGISTRY[arch]
    fields = cls.__dataclass.__dataclass_fields__
    values = {**{key: field.default for key, field in fields.items()}, **vars(cfg), "_name": arch}
    model = cls.build_model(Namespace(**values), task)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # words depend on the images and on the words before them
        for x in model.parameters():
            x.add_(torch.randn(x.shape, generator=generator) * 0.4)
    state = {
        "args": None,
        "cfg": {"task": {"_name": "visual_storytelling"}, "model": values, "common": {}},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "CrossEntropy", "best_loss": None}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
    return path


def save_pixel_story_model(folder: Path, **options: Any) -> Path:
    """``checkpoint_best.pt`` of one that was trained on images, and ``squeezenet.pth``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(2)
    weights = folder / "squeezenet.pth"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights)
    extractor = build_extractor("squeezenet1_1", weights=str(weights), resize="squash", size=SIDE)
    return save_story_model(
        folder / "checkpoint_best.pt",
        dim=extractor.dim,
        extractor=extractor.identity,
        **options,
    )


def write_story_split(folder: Path, *, sequences: int = 4, missing: str = "") -> Path:
    """A data folder with the split ``valid``: two stories of each sequence of images, that of
    sequence i and sentence k being "we saw it .", where "we" stands i + k times.

    Args:
        folder: the data folder.
        sequences: of five images, ``p<i>_<k>``.
        missing: an image that has no features.
    """
    (folder / "text").mkdir(parents=True)
    dictionary = story_dictionary()
    dictionary.save(str(folder / "dict.txt"))
    lines, keys = [], []
    for i in range(sequences):
        names = [f"p{i}_{k}" for k in range(NUM_IMAGES)]
        keys += [name for name in names if name != missing]
        for mark in (".", "?"):
            sentences = [" ".join(["we"] * (i + k) + ["saw", "it", mark]) for k in range(5)]
            lines.append(("\t".join(names), f" {SEPARATOR} ".join(sentences)))
    write_visual_story_split(folder, "valid", lines, dictionary)
    write_store(folder / "features.h5", keys)
    if missing:
        (folder / "missing_images.txt").write_text(f"{missing}\n")
    return folder
