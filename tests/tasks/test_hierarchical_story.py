"""Stories under fairseq's own commands, on toy data: train, resume, validate, generate, move."""

import re
import shutil

import numpy as np
import pytest
import torch
from toy_data import run_fairseq
from toy_story_models import FUSION, make_story_folder

VALID = 13  # no multiple of anything
POSITIONS = ("--max-source-positions", "40", "--max-target-positions", "44")
TASKS = {
    "hierarchical_story": ("--task", "hierarchical_story", *POSITIONS),
    "translation": ("--task", "translation", *POSITIONS),
    "language_modeling": (
        *("--task", "language_modeling", "--sample-break-mode", "eos"),
        *("--tokens-per-sample", "42"),
    ),
}
FAST = ("--cpu", "--num-workers", "0")
TRAINING = (
    *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.02", "--batch-size", "3"),
    *FAST,
    "--no-epoch-checkpoints",
    "--log-format",
    "none",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_story_folder(tmp_path_factory.mktemp("stories") / "data", valid=VALID)


def train(data, save_dir, *options, task="hierarchical_story", arch="conv_story_tiny", epochs=2):
    arguments = (*TASKS[task], "--arch", arch, *TRAINING, "--save-dir", save_dir)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", data, *arguments, "--max-epoch", epochs, *options)
    return save_dir / "checkpoint_last.pt"


def fuse(data, save_dir, pretrained, *options, **settings):
    """Trains the small second model of another size than the first."""
    sizes = (*FUSION.split(), "--decoder-out-embed-dim", "10")
    checkpoint = ("--pretrained-checkpoint", pretrained)
    return train(
        data, save_dir, *checkpoint, *sizes, *options, arch="conv_story_fusion", **settings
    )


@pytest.fixture(scope="module")
def story(data, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("story"), "--no-save-optimizer-state")


@pytest.fixture(scope="module")
def fusion(data, story, tmp_path_factory):
    """Trained with a copy of the pretrained checkpoint that is no more, and moved since."""
    folder = tmp_path_factory.mktemp("fusion")
    copy = shutil.copy(story, folder / "pretrained.pt")
    fuse(data, folder / "ck", copy)
    (folder / "pretrained.pt").unlink()
    moved = (folder / "ck").rename(folder / "elsewhere")
    return moved / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def prompts_lm(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    return train(data / "prompts", folder, task="language_modeling", arch="gcnn_lm_tiny")


@pytest.fixture
def generate(monkeypatch, capsys):
    def run(data, path, *options, task="hierarchical_story"):
        """Line -> (score, hypothesis)."""
        capsys.readouterr()
        arguments = (data, "--path", path, "--gen-subset", "valid", *FAST, "--max-len-b", "9")
        run_fairseq(monkeypatch, "generate", *arguments, *TASKS[task][:2], *options)
        found = re.findall(r"^H-(\d+)\t(\S+)\t?(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
        assert len(found) == len({line for line, *_ in found})
        return {int(line): (float(score), text) for line, score, text in found}

    return run


@pytest.fixture
def validate(monkeypatch):
    def run(data, path, *options, task="hierarchical_story"):
        """Loss in bits."""
        logged = []
        monkeypatch.setattr(
            "fairseq.logging.progress_bar.JsonProgressBar.print",
            lambda self, stats, **kwargs: logged.append(stats),
        )
        arguments = (data, "--path", path, "--valid-subset", "valid", *FAST, *TASKS[task])
        options = ("--log-format", "json", "--batch-size", "4", *options)
        run_fairseq(monkeypatch, "validate", *arguments, *options)
        (stats,) = logged
        return float(stats["loss"])

    return run


def text_of(hypotheses):
    return {line: text for line, (_, text) in hypotheses.items()}


@pytest.mark.parametrize(
    ("size", "multiple"),
    [("1", "8"), ("3", "1"), ("8", "8")],
)
def test_every_story_is_generated_exactly_once(generate, data, story, size, multiple):
    options = ("--batch-size", size, "--required-batch-size-multiple", multiple)
    stories = generate(data, story, "--beam", "2", *options)
    assert sorted(stories) == list(range(VALID))
    if size != "1":
        alone = generate(data, story, "--beam", "2", "--batch-size", "1")
        assert text_of(stories) == text_of(alone)


def test_stories_are_generated_from_typed_prompts(monkeypatch, capsys, generate, data, fusion):
    prompts = (data / "text" / "valid.wp_source").read_text()
    typed = data.parent / "typed"
    typed.write_text(prompts)
    arguments = (data, "--path", fusion, "--input", typed, *FAST, "--max-len-b", "9")
    options = ("--task", "hierarchical_story", "--beam", "2", "--buffer-size", "5")
    capsys.readouterr()
    run_fairseq(monkeypatch, "interactive", *arguments, *options, "--batch-size", "5")
    found = re.findall(r"^H-(\d+)\t\S+\t?(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    expected = text_of(generate(data, fusion, "--beam", "2"))
    assert {int(line): text for line, text in found} == expected


def test_losses_are_over_all_stories_and_those_of_translation(validate, data, story, fusion):
    for path in (story, fusion):
        loss = validate(data, path)
        # translation loses the last batch but for this option
        options = ("--required-batch-size-multiple", "1", "-s", "wp_source", "-t", "wp_target")
        assert validate(data, path, *options, task="translation") == pytest.approx(loss, abs=1e-3)


def test_a_model_trained_under_translation_is_one_of_stories(generate, data, tmp_path):
    checkpoint = train(data, tmp_path / "ck", task="translation")
    stories = generate(data, checkpoint, "--beam", "2")
    translated = generate(
        data, checkpoint, "--beam", "2", "--required-batch-size-multiple", "1", task="translation"
    )
    assert stories.keys() == translated.keys()
    assert text_of(stories) == text_of(translated)


def weights_of(path):
    return torch.load(path, map_location="cpu")["model"]


def assert_equal_weights(one, other):
    one, other = weights_of(one), weights_of(other)
    assert one.keys() == other.keys()
    for key, weights in one.items():
        torch.testing.assert_close(weights, other[key], msg=key)


def test_training_a_fusion_model_resumes_without_the_pretrained_file(data, story, tmp_path):
    pretrained = shutil.copy(story, tmp_path / "pretrained.pt")
    straight = fuse(data, tmp_path / "straight", pretrained, epochs=3)
    fuse(data, tmp_path / "resumed", pretrained, epochs=1)
    (tmp_path / "pretrained.pt").unlink()
    assert_equal_weights(fuse(data, tmp_path / "resumed", pretrained, epochs=3), straight)


@pytest.mark.parametrize(
    "options",
    [
        ("--fp16", "--fp16-init-scale", "4", "--compat", "released", "--weight-decay", "1e-7"),
        ("--bf16", "--store-ema", "--update-freq", "3", "--max-tokens", "50"),
    ],
    ids=lambda options: options[0].strip("-"),
)
def test_stories_and_fusion_train_with(generate, data, story, tmp_path, options):
    for checkpoint in (
        train(data, tmp_path / "story", *options, epochs=1),
        fuse(data, tmp_path / "fusion", story, *options, epochs=1),
    ):
        state = torch.load(checkpoint, map_location="cpu")
        assert np.isfinite(state["extra_state"]["val_loss"])
        assert all(x.isfinite().all() for x in state["model"].values() if x.is_floating_point())
    generation = ("--fp16",) if "fp16" in options[0] else ()
    assert len(generate(data, checkpoint, "--beam", "2", *generation)) == VALID


def test_a_prompt_language_model_trains_validates_and_generates(
    monkeypatch, capsys, validate, data, prompts_lm
):
    every_line = ("--required-batch-size-multiple", "1")
    loss = validate(data / "prompts", prompts_lm, *every_line, task="language_modeling")
    assert 0 < loss < 99
    arguments = (data / "prompts", *TASKS["language_modeling"], "--path", prompts_lm, *FAST)
    capsys.readouterr()
    run_fairseq(
        monkeypatch,
        "generate",
        *(*arguments, "--gen-subset", "valid", "--prefix-size", "0", "--beam", "1"),
        *("--sampling", "--sampling-topk", "10", "--max-len-b", "9", "--batch-size", "4"),
        *every_line,
    )
    found = re.findall(r"^H-(\d+)\t\S+\t?(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert sorted(int(line) for line, _ in found) == list(range(VALID))
    run_fairseq(monkeypatch, "eval_lm", *arguments, "--gen-subset", "valid", "--batch-size", "4")
