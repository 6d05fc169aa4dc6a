"""A small captioner as fairseq-train saves it, its extractor's weights, and images."""

import json
import shutil
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
import torch
from PIL import Image
from toy_data import make_captions_folder, run_fairseq, write_store

from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.models._provenance import STATE_KEY

SIDE, DIM = 33, 512  # DIM: channels of squeezenet1_1's last map


def save_images(folder: Path, count: int = 5) -> list[str]:
    """Images of noise, all of different sizes."""
    folder.mkdir()
    generator = np.random.default_rng(5)
    paths = []
    for i in range(count):
        pixels = generator.integers(0, 256, size=(40 + 3 * i, 52 - 4 * i, 3), dtype=np.uint8)
        paths.append(str(folder / f"image{i}.png"))
        Image.fromarray(pixels).save(paths[-1])
    return paths


CAPTIONER = "--arch m_rnn_tiny --eval-gen"
EMBEDDER = "--arch vse_tiny --criterion pairwise_ranking"


def train_captioner(folder: Path, data: Path, model: str = CAPTIONER) -> None:
    """Trains on a data folder ``data``, then moved to ``data.moved``: checkpoints work without it.

    Args:
        folder: gets ``checkpoint_best.pt``, ``checkpoint_last.pt`` and ``squeezenet.pth``.
        data: where the data folder stands while training.
        model: options of fairseq-train, such as ``EMBEDDER``.
    """
    import torchvision

    torch.manual_seed(2)
    weights = folder / "squeezenet.pth"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights)
    extractor = build_extractor("squeezenet1_1", weights=str(weights), resize="squash", size=SIDE)
    assert extractor.dim == DIM
    make_captions_folder(data)
    (data / "features.h5").unlink()
    keys = [f"train{i}.jpg" for i in range(12)] + [f"valid{i}.jpg" for i in range(7)]
    write_store(data / "features.h5", keys, dim=DIM, attributes=extractor.identity)
    command = (
        f"{data} --task multimodal_captioning {model} --save-dir {folder} --max-epoch 3 "
        "--batch-size 8 --optimizer adam --lr 0.02 --cpu --num-workers 0 --no-epoch-checkpoints "
        "--log-format none"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    shutil.move(data, data.with_suffix(".moved"))


def change_checkpoint(
    source: Path,
    target: Path,
    *,
    weights: Optional[dict[str, Any]] = None,
    provenance: Optional[dict[str, Any]] = None,
    **top: Any,
) -> Path:
    """Saves a checkpoint with other content.

    Args:
        source: the checkpoint.
        target: where to save the other one.
        weights: name of a tensor -> function that changes it in place.
        provenance: entries to replace.
        **top: entries of the checkpoint to replace.
    """
    state = torch.load(source)
    state.update(top)
    if provenance is not None:
        content = json.loads(bytes(state["model"][STATE_KEY].tolist()).decode())
        encoded = json.dumps({**content, **provenance}).encode()
        state["model"][STATE_KEY] = torch.tensor(list(encoded), dtype=torch.int32)
    for key, change in (weights or {}).items():
        change(state["model"][key])
    torch.save(state, target)
    return target
