"""Drawn captions and features of Flickr8k's size, and fairseq's trainer on them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import fairseq_mm  # noqa: F401 - registers the task and the models
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

WORDS, FEATURES, CAPTIONS_PER_IMAGE = 2534, 1280, 5


def write_data(
    folder: Path, images: int, draw_length: Callable[[np.random.Generator], float]
) -> None:
    """Write a data folder whose training split has five captions of each image."""
    generator = np.random.default_rng(1)
    dictionary = Dictionary()
    for number in range(WORDS):
        dictionary.add_symbol(f"word{number}")
    dictionary.save(str(folder / "dict.txt"))
    for split, count in (("train", images), ("valid", 10)):
        with open(folder / f"{split}.jsonl", "w") as file:
            for image in range(count):
                lengths = [int(draw_length(generator)) for _ in range(CAPTIONS_PER_IMAGE)]
                texts = [
                    " ".join(f"word{x}" for x in generator.integers(WORDS, size=length))
                    for length in lengths
                ]
                print(json.dumps({"id": str(image), "captions": texts, "tokens": texts}), file=file)
    with FeatureStoreWriter(folder / "features.h5", dim=FEATURES, attributes={}) as writer:
        for image in range(images):
            rows = np.abs(generator.normal(size=(1, FEATURES))).astype(np.float16)
            writer.append(str(image), rows)
        writer.finish()


def build_trainer(folder: Path, save_dir: Path, *arguments: str) -> Trainer:
    """Return the trainer of ``fairseq-train`` with these arguments, on the CPU."""
    words = [str(folder), "--task", "multimodal_captioning", "--cpu", "--optimizer", "adam"]
    words += ["--batch-size", "128", "--save-dir", str(save_dir), *arguments]
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_training_parser(), words)
    )
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train", combine=True, epoch=1)
    task.load_dataset("valid", combine=False, epoch=1)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
