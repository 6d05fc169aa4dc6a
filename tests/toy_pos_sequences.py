"""A small embedding, a model of part-of-speech sequences trained on its vectors, and their data."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from toy_captioner import DIM, SIDE
from toy_data import make_captions_folder, run_fairseq, write_store

from fairseq_mm.cli.main import main
from fairseq_mm.extract.extractor import build_extractor


class Trained(NamedTuple):
    """
    Attributes:
        data: folder of captions, with tags and text of training.
        embedding: folder of a ``vse_tiny`` checkpoint and its extractor's weights.
        decoder: folder of an ``sc_nlm_tiny`` checkpoint.
        vectors: feature store of the training captions' vectors.
        vector_data: the data folder whose features are those vectors.
    """

    data: Path
    embedding: Path
    decoder: Path
    vectors: Path
    vector_data: Path


class WordFrequencies:
    """A language model of known words: each, and the end, has the log-probability of its length."""

    def log_probs(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        return np.array([-0.5 - sum(0.3 * len(word) for word in words) for words in sentences])


def train(data: Path, folder: Path, *options: Any, updates: int = 6) -> Path:
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(
            monkeypatch,
            "train",
            *(data, "--task", "multimodal_captioning", "--save-dir", folder, "--cpu"),
            *("--max-update", updates, "--batch-size", 12, "--optimizer", "adam", "--lr", 0.02),
            *("--num-workers", 0, "--disable-validation", "--log-format", "none"),
            *("--no-epoch-checkpoints", *options),
        )
    return folder


def write_text_and_tags(data: Path, split: str) -> None:
    """Of a binarised split; the tag of a word is its number of letters."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    lines = [dictionary.string(line) for line in MMapIndexedDataset(str(data / split))]
    tags = [" ".join(f"L{len(word)}" for word in line.split()) for line in lines]
    (data / "text").mkdir(exist_ok=True)
    for path, content in ((data / "text" / f"{split}.txt", lines), (data / f"{split}.tags", tags)):
        path.write_text("".join(f"{line}\n" for line in content))


def make_trained(folder: Path) -> Trained:
    import torchvision

    torch.manual_seed(2)
    data = make_captions_folder(folder / "data")
    embedding = folder / "embedding"
    embedding.mkdir()
    weights = embedding / "squeezenet.pth"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights)
    extractor = build_extractor("squeezenet1_1", weights=str(weights), resize="squash", size=SIDE)
    (data / "features.h5").unlink()
    keys = [f"train{i}.jpg" for i in range(12)] + [f"valid{i}.jpg" for i in range(7)]
    write_store(data / "features.h5", keys, dim=DIM, attributes=extractor.identity)
    write_text_and_tags(data, "train")
    train(data, embedding, "--arch", "vse_tiny", "--criterion", "pairwise_ranking")
    vectors = folder / "vectors.h5"
    arguments = [data, "--checkpoint", embedding, "--split", "train", "--of", "sentences", "words"]
    assert main(["embed", *map(str, arguments), "--output", str(vectors)]) in (0, None)
    vector_data = folder / "vector_data"
    shutil.copytree(data, vector_data)
    shutil.copy(vectors, vector_data / "features.h5")
    shutil.copy(folder / "vectors.train.jsonl", vector_data / "train.jsonl")
    decoder = train(vector_data, folder / "decoder", "--arch", "sc_nlm_tiny")
    return Trained(data, embedding, decoder, vectors, vector_data)
