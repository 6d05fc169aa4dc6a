"""Small summarisers as fairseq-train saves them, their extractor's weights, videos, transcripts."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_data import make_videos_folder, run_fairseq

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.extract.extractor import build_extractor

DIM = 512  # channels of mc3_18
SMALL: dict[str, Any] = {"size": 16, "frames": 4}
SIZES = (
    *("--encoder-embed-dim", "8", "--decoder-embed-dim", "8", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--encoder-attention-heads", "2", "--decoder-attention-heads", "2"),
    *("--encoder-ffn-embed-dim", "8", "--decoder-ffn-embed-dim", "8"),
)
ARCHITECTURES = {
    "vg_bart": ("--arch", "vg_bart_tiny"),
    "t5": ("--arch", "t5_tiny"),
    "pointer_generator": ("--arch", "pointer_generator_tiny"),
    "transformer": ("--arch", "transformer", *SIZES),
    "bart": ("--arch", "bart_base", *SIZES),
}


def save_videos(folder: Path) -> list[str]:
    """Of 4, 2 and 1 clips of 4 frames."""
    from toy_videos import frames_of, write_video  # skips the test where PyAV is missing

    folder.mkdir()
    return [
        write_video(folder / f"video{i}.mp4", frames_of(count, 40 + 2 * i, 50 - 4 * i, seed=i))
        for i, count in enumerate((17, 11, 3))
    ]


def save_transcripts(folder: Path) -> list[str]:
    """A text, one in subtitles, and another text, of WORDS."""
    paths = [folder / "a.txt", folder / "b.srt", folder / "c.txt"]
    paths[0].write_text("The dog runs on grass, the cat sits.\n")
    paths[1].write_text("1\n00:00:01,000 --> 00:00:02,500\nA big man\njumps in snow\n")
    paths[2].write_text("red cat blue dog")
    return [str(path) for path in paths]


def train_summarizer(folder: Path, data: Path, name: str, *options: str) -> Path:
    """Trains for an epoch and then moves all weights, so that each input has its own summary.

    Args:
        folder: gets ``checkpoint_best.pt``.
        data: data folder.
        name: of ``ARCHITECTURES``.
        *options: of fairseq-train.
    """
    command = (
        f"{data} --task video_summarization --save-dir {folder} --max-epoch 1 --batch-size 4 "
        "--optimizer adam --lr 0.01 --cpu --num-workers 0 --no-epoch-checkpoints --log-format none"
    )
    arguments = (*command.split(), *ARCHITECTURES[name], *options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *arguments)
    checkpoint = folder / "checkpoint_best.pt"
    state = torch.load(checkpoint)
    generator = torch.Generator().manual_seed(8)
    for weights in state["model"].values():
        if weights.is_floating_point():
            weights += 0.5 * torch.randn(weights.shape, generator=generator)
    torch.save(state, checkpoint)
    (folder / "checkpoint_last.pt").unlink()
    return checkpoint


def make_extracted_folder(data: Path, weights: Path) -> None:
    """A data folder whose features say that mc3_18 made them, with its weights in a file."""
    from torchvision.models import video

    torch.manual_seed(2)
    torch.save(video.mc3_18(weights=None).state_dict(), weights)
    extractor = build_extractor("mc3_18", weights=str(weights), **SMALL)
    assert extractor.dim == DIM
    make_videos_folder(data, dim=DIM)
    drawn = FeatureStore(str(data / "features.h5"))
    rows = {key: np.array(drawn.read(key)) for key in drawn.ids}
    (data / "features.h5").unlink()
    with FeatureStoreWriter(
        data / "features.h5", dim=DIM, dtype="float32", attributes=extractor.identity
    ) as writer:
        for key, features in rows.items():
            writer.append(key, features)
        writer.finish()


def train_video_summarizer(folder: Path, data: Path) -> None:
    """``checkpoint_best.pt`` and ``mc3_18.pth`` of a model that is then without its data folder,
    which is ``data.moved``."""
    make_extracted_folder(data, folder / "mc3_18.pth")
    train_summarizer(folder, data, "vg_bart", "--max-frames", "6", "--max-source-positions", "9")
    shutil.move(data, data.with_suffix(".moved"))
