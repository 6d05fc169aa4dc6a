"""fairseq's length options: in training and generation, of every task, and as trained."""

import re
import shutil

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset
from toy_data import (
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
    run_fairseq,
)
from toy_story_models import make_story_folder

from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError

SKIP = "--skip-invalid-size-inputs-valid-test"
FAST = ("--cpu", "--num-workers", "0")
TRAINING = (
    *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.02", "--batch-size", "3"),
    *(*FAST, "--no-epoch-checkpoints", "--max-epoch", "1", "--log-format", "none"),
)
FOLDERS = {
    "hierarchical_story": make_story_folder,
    "multimodal_captioning": make_captions_folder,
    "visual_storytelling": make_visual_stories_folder,
    "video_summarization": make_videos_folder,
}
ARCHITECTURES = {
    "hierarchical_story": "conv_story_tiny",
    "multimodal_captioning": "m_rnn",
    "visual_storytelling": "glac_tiny",
    "video_summarization": "t5_tiny",
}
# leave out some lines of train and valid, and not all
SHORT = {
    "hierarchical_story": ("--max-source-positions", "8", "--max-target-positions", "20"),
    "multimodal_captioning": ("--max-target-positions", "5"),
    "visual_storytelling": ("--max-target-positions", "20"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {task: make(tmp_path_factory.mktemp(task) / "data") for task, make in FOLDERS.items()}


def train(task, data, save_dir, *options):
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (data, "--task", task, "--arch", ARCHITECTURES[task], *TRAINING)
        run_fairseq(monkeypatch, "train", *arguments, "--save-dir", save_dir, *options)
    return save_dir / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def short(folders, tmp_path_factory):
    """Task -> checkpoint of short texts; the longer ones were left out."""
    checkpoints = {}

    def of(task):
        if task not in checkpoints:
            folder = tmp_path_factory.mktemp("short")
            options = (*SHORT[task], SKIP)
            checkpoints[task] = train(task, folders[task], folder, *options)
        return checkpoints[task]

    return of


@pytest.fixture
def generate(monkeypatch, capsys):
    def run(task, data, path, *options):
        """Lines of the targets and lines of the hypotheses."""
        capsys.readouterr()
        arguments = (data, "--task", task, "--path", path, "--gen-subset", "valid", *FAST)
        lengths = {"hierarchical_story": ("--max-len-b", "9")}.get(task, ())
        run_fairseq(monkeypatch, "generate", *arguments, *lengths, *options)
        out = capsys.readouterr().out
        targets = dict(re.findall(r"^T-(\d+)\t(.*)$", out, flags=re.MULTILINE))
        return targets, sorted(map(int, re.findall(r"^H-(\d+)\t", out, flags=re.MULTILINE)))

    return run


def sizes(folder, *, is_source=False):
    split = open_split(folder, "valid")
    base = split.base(split.sides[0 if is_source else -1] if split.sides else None)
    text = MMapIndexedDataset(str(base))
    return np.array(text.sizes)  # the file is mapped as long as the text is open


@pytest.mark.parametrize("task", SHORT)
def test_training_leaves_long_texts_out_where_it_is_asked_to(folders, short, tmp_path, task):
    state = torch.load(short(task), map_location="cpu")
    assert np.isfinite(state["extra_state"]["val_loss"])
    with pytest.raises(UserError, match=SKIP) as caught:
        train(task, folders[task], tmp_path / "ck", *SHORT[task])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["multimodal_captioning", "visual_storytelling"])
def test_generation_takes_references_of_any_length(folders, short, generate, task):
    data = folders[task]
    expected = np.unique((data / "valid.visual_ids").read_text().splitlines(), return_index=True)[1]
    for options in ((), (SKIP,), ("--max-tokens", "9"), SHORT[task]):
        targets, lines = generate(task, data, short(task), *options)
        assert lines == sorted(expected)
        assert {int(n): len(x.split()) + 1 for n, x in targets.items()} == {
            n: sizes(data)[n] for n in lines
        }


def test_stories_are_generated_for_references_of_any_length(folders, short, generate):
    data, path = folders["hierarchical_story"], short("hierarchical_story")
    prompts = sizes(data, is_source=True)
    fitting = np.flatnonzero(prompts <= 6).tolist()
    assert 0 < len(fitting) < len(prompts)
    assert (sizes(data)[fitting] > 18).any()
    targets, lines = generate("hierarchical_story", data, path, SKIP, "--max-tokens", "12")
    assert lines == fitting
    assert {int(n): len(x.split()) + 1 for n, x in targets.items()} == {
        n: sizes(data)[n] for n in lines
    }
    with pytest.raises(UserError, match=rf"line \d+ .*: the prompt has .* at most 6.*{SKIP}"):
        generate("hierarchical_story", data, path)
    _, lines = generate("hierarchical_story", data, path, "--truncate-source")
    assert lines == list(range(len(prompts)))


def test_scores_of_references_need_positions_for_them(folders, short, generate):
    data, path = folders["hierarchical_story"], short("hierarchical_story")
    options = ("--truncate-source", "--score-reference")
    with pytest.raises(UserError, match=rf"line \d+ .*: the story has .* at most 18.*{SKIP}"):
        generate("hierarchical_story", data, path, *options)
    _, lines = generate("hierarchical_story", data, path, *options, SKIP)
    assert lines == np.flatnonzero(sizes(data) <= 18).tolist()
    targets, lines = generate("hierarchical_story", data, path, *options, "--truncate-target")
    assert lines == list(range(13))
    assert max(len(text.split()) for text in targets.values()) == 17


@pytest.fixture(scope="module")
def cut(folders, tmp_path_factory):
    """A checkpoint that was trained on texts that were cut."""
    options = ("--truncate-source", "--truncate-target", *SHORT["hierarchical_story"])
    folder = tmp_path_factory.mktemp("cut")
    return train("hierarchical_story", folders["hierarchical_story"], folder, *options)


def test_generation_cuts_prompts_as_the_checkpoint_was_trained(
    folders, cut, generate, monkeypatch, capsys, tmp_path
):
    data = folders["hierarchical_story"]
    assert generate("hierarchical_story", data, cut)[1] == list(range(13))
    assert generate("hierarchical_story", data, cut, "--score-reference")[1] == list(range(13))
    # checkpoints of earlier versions have the options in their configuration alone
    state = torch.load(cut, map_location="cpu")
    assert state.pop("task_state")["truncate_source"] is True
    torch.save(state, tmp_path / "earlier.pt")
    assert generate("hierarchical_story", data, tmp_path / "earlier.pt")[1] == list(range(13))
    (tmp_path / "prompts").write_text("door " * 20)
    arguments = (data, "--task", "hierarchical_story", "--input", tmp_path / "prompts", "--cpu")
    capsys.readouterr()
    run_fairseq(monkeypatch, "interactive", *arguments, "--path", cut, "--max-len-b", "5")
    assert capsys.readouterr().out.count("\nH-0\t") == 1


def test_a_checkpoint_says_how_long_its_texts_may_be(folders, monkeypatch, tmp_path):
    from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryConfig, HierarchicalStoryTask

    def task_of(**options):
        data = str(folders["hierarchical_story"])
        return HierarchicalStoryTask.setup_task(HierarchicalStoryConfig(data=data, **options))

    state = task_of(max_source_positions=2000, truncate_target=True).state_dict()
    task = task_of(max_target_positions=30)
    task.load_state_dict(state)
    assert task.max_positions() == (1998, 28)
    assert (task.cfg.truncate_source, task.cfg.truncate_target) == (False, True)
    task.load_state_dict({})
    assert task.max_positions() == (1998, 28)


def test_a_split_without_any_line_that_fits_is_one_line(folders, tmp_path):
    message = r"line \d+ of train .*: the caption has .* no line of train would be left\."
    with pytest.raises(UserError, match=message):
        train(
            *("multimodal_captioning", folders["multimodal_captioning"], tmp_path / "ck"),
            *("--max-target-positions", "2", SKIP),
        )


@pytest.mark.parametrize("task", FOLDERS)
def test_epochs_read_the_training_splits_of_successive_folders(folders, tmp_path, task):
    second = tmp_path / "second"
    shutil.copytree(folders[task], second)
    for path in second.glob("valid*"):
        path.unlink()
    data = f"{folders[task]}:{second}"
    train(task, data, tmp_path / "saved", "--max-epoch", "2")
    for path in second.glob("train*.idx"):
        path.unlink()
    with pytest.raises(Exception, match=f"{second}/train"):
        train(task, data, tmp_path / "again", "--max-epoch", "2")
