"""The four tasks train, resume and generate; `make test-legacy` runs this on stock fairseq."""

import pytest
from toy_data import (
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
    run_fairseq,
)
from toy_story_models import make_story_folder
from toy_training_states import assert_same_training, train_until

from fairseq_mm.inference.checkpoint import load_models

PROMPTS = ("--source-lang", "wp_source", "--target-lang", "wp_target")
# architecture -> maker of the data folder, task, and options of the task
TASKS = {
    "m_rnn_tiny": (make_captions_folder, "multimodal_captioning", ()),
    "conv_story_tiny": (make_story_folder, "translation", PROMPTS),
    "glac_tiny": (make_visual_stories_folder, "visual_storytelling", ()),
    "vg_bart_tiny": (make_videos_folder, "video_summarization", ()),
}


@pytest.mark.parametrize("arch", TASKS)
def test_a_task_trains_resumes_and_generates(arch, tmp_path, monkeypatch, capsys):
    make_folder, task, options = TASKS[arch]
    data = make_folder(tmp_path / "data")
    training = ("--task", task, *options, "--arch", arch)
    whole = train_until(data, tmp_path / "whole", 2, *training)
    train_until(data, tmp_path / "parts", 1, *training)
    assert_same_training(train_until(data, tmp_path / "parts", 2, *training), whole)
    path = tmp_path / "whole" / "checkpoint_last.pt"
    capsys.readouterr()
    length = "--max-words-per-sentence" if arch == "glac_tiny" else "--max-len-b"
    generation = ("--path", path, "--gen-subset", "valid", "--beam", "2", length, "5")
    run_fairseq(monkeypatch, "generate", data, "--task", task, *options, "--cpu", *generation)
    assert "\nH-" in capsys.readouterr().out
    assert load_models(path, device="cpu").architectures == [arch]
