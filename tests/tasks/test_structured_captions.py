"""Models of structures train on a split's own tags, and generate by those of training."""

import pytest
from toy_data import make_captions_folder, run_fairseq

from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError
from fairseq_mm.tasks.multimodal_captioning import (
    MultimodalCaptioningConfig,
    MultimodalCaptioningTask,
)


def tag(folder):
    """The tag of a word is its number of letters; each caption's length is known from its text."""
    from fairseq.data import Dictionary
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    dictionary = Dictionary.load(str(folder / "dict.txt"))
    for split in ("train", "valid"):
        text = MMapIndexedDataset(str(folder / split))
        lines = [dictionary.string(line).split() for line in text]
        (folder / f"{split}.tags").write_text(
            "".join(" ".join(f"L{len(word)}" for word in line) + "\n" for line in lines)
        )


@pytest.fixture
def folder(tmp_path):
    folder = make_captions_folder(tmp_path / "data")
    tag(folder)
    return folder


def train(monkeypatch, folder, out, *options):
    run_fairseq(
        monkeypatch,
        "train",
        *(folder, "--task", "multimodal_captioning", "--arch", "sc_nlm_tiny", "--cpu"),
        *("--optimizer", "adam", "--lr", 0.01, "--max-update", 3, "--batch-size", 8),
        *("--save-dir", out, "--num-workers", 0, *options),
    )


def test_a_model_trains_on_tags_and_generates_by_drawn_ones(monkeypatch, folder, tmp_path, capsys):
    train(monkeypatch, folder, tmp_path / "out")
    (folder / "valid.tags").unlink()  # they are the references'
    run_fairseq(
        monkeypatch,
        "generate",
        *(folder, "--task", "multimodal_captioning", "--gen-subset", "valid", "--cpu"),
        *("--path", tmp_path / "out" / "checkpoint_last.pt", "--batch-size", 3, "--max-len-b", 9),
    )
    out = capsys.readouterr().out
    ids = [int(line[2:].split("\t")[0]) for line in out.splitlines() if line.startswith("H-")]
    assert sorted(ids) == [0, 3, 6, 9, 12, 15, 18]
    assert main(["rank", str(folder), "--checkpoint", str(tmp_path / "out")]) == 2
    assert "that reads no tags" in capsys.readouterr().err


def test_misaligned_tags_end_the_training_in_one_line(monkeypatch, folder, tmp_path):
    lines = (folder / "train.tags").read_text().splitlines()
    lines[4] += " L1"
    (folder / "train.tags").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"line 5: each token must have one tag, but a caption has"):
        train(monkeypatch, folder, tmp_path / "out")


def test_training_without_tags_names_the_script(monkeypatch, tmp_path):
    folder = make_captions_folder(tmp_path / "data")
    with pytest.raises(UserError, match=r"line 1: has no `tags`: .*scripts/tag_pos\.py"):
        train(monkeypatch, folder, tmp_path / "out")


def test_other_models_read_no_tags(folder):
    (folder / "train.tags").write_text("misaligned\n")
    task = MultimodalCaptioningTask.setup_task(MultimodalCaptioningConfig(data=str(folder)))
    task.load_dataset("train", combine=True)
    batch = task.dataset("train").collater([task.dataset("train")[0]])
    assert "src_tokens" not in batch["net_input"]
