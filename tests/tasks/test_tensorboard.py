"""--tensorboard-logdir gets losses, and the scores of validation that docs/training.md lists."""

import re
import struct
from pathlib import Path

import pytest
from fairseq.logging import progress_bar
from toy_data import (
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
    run_fairseq,
)
from toy_story_models import make_story_folder

event_pb2 = pytest.importorskip(
    "tensorboardX.proto.event_pb2", reason="tensorboardX is not installed"
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
UPDATES = 2
# what fairseq logs for every training
OF_FAIRSEQ = {"loss", "wps", "wpb", "bsz"}
CASES = {
    "`multimodal_captioning` with `--eval-gen`": (
        make_captions_folder,
        "--task multimodal_captioning --arch m_rnn_tiny --eval-gen",
    ),
    "`multimodal_captioning`, embeddings": (
        make_captions_folder,
        "--task multimodal_captioning --arch vse_tiny --criterion pairwise_ranking",
    ),
    "`visual_storytelling` with `--eval-gen`": (
        make_visual_stories_folder,
        "--task visual_storytelling --arch glac_tiny --eval-gen",
    ),
    "`video_summarization` with `--eval-gen`": (
        make_videos_folder,
        "--task video_summarization --source-lang tran --target-lang desc "
        "--arch mffg_rnn_tiny --eval-gen",
    ),
    "`hierarchical_story`": (
        make_story_folder,
        "--task hierarchical_story --source-lang wp_source --target-lang wp_target "
        "--arch conv_story_tiny",
    ),
}


def read_scalars(folder):
    """Tag -> updates at which the event files of a folder have a value of it.

    An event is framed by its length (8 bytes), a checksum (4), and another after it (4).
    """
    updates = {}
    for path in folder.glob("events.out.tfevents.*"):
        content, place = path.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = event_pb2.Event.FromString(content[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    updates.setdefault(value.tag, []).append(event.step)
    return updates


def scores_on_page(name):
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize("name", CASES, ids=lambda name: re.sub(r"\W+", " ", name).strip())
def test_a_training_logs_losses_and_the_scores_of_the_page(monkeypatch, tmp_path, name):
    make_folder, task = CASES[name]
    data = make_folder(tmp_path / "data")
    # fairseq keeps a writer of each name until the process ends
    monkeypatch.setattr(progress_bar, "_tensorboard_writers", {})
    run_fairseq(
        monkeypatch,
        *("train", data, *task.split(), "--optimizer", "adam", "--lr", "0.01", "--cpu"),
        *("--batch-size", "4", "--num-workers", "0", "--max-update", UPDATES, "--no-save"),
        *("--log-interval", "1", "--log-format", "none"),
        *("--tensorboard-logdir", tmp_path / "log"),
    )
    progress_bar._close_writers()
    inner = read_scalars(tmp_path / "log" / "train_inner")
    assert {"loss", "lr", "gnorm"} <= set(inner)
    assert inner["loss"] == list(range(1, UPDATES + 1))
    valid = read_scalars(tmp_path / "log" / "valid")
    assert set(valid) - OF_FAIRSEQ == scores_on_page(name)
    assert set(map(tuple, valid.values())) == {(UPDATES,)}
