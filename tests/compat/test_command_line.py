"""fairseq's commands answer names that do not exist, and a missing task, in one line."""

import pytest
from toy_data import make_captions_folder, run_fairseq

from fairseq_mm.compat import command_line
from fairseq_mm.errors import UserError


@pytest.fixture
def plugin(monkeypatch):
    """What ``--user-dir`` installs, for one test."""
    from fairseq import options

    monkeypatch.setattr(options, "parse_args_and_arch", options.parse_args_and_arch)
    command_line.explain_arguments()


TRAIN = ("--optimizer", "adam", "--lr", "0.1", "--cpu", "--batch-size", "4", "--max-update", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--task multimodal_captioning --arch m_rn", "--arch: there is no 'm_rn': did you mean m_"),
        ("--task multimodal_captioning -a glacc", "--arch: there is no 'glacc': did you mean glac"),
        ("--arch qqqqzz", "there is no 'qqqqzz': the plugin's models are conv_story, gcnn_lm, gl"),
        ("--task multimodal_captionin --arch m_rnn", "did you mean multimodal_captioning?"),
        (
            "--task qqqqzz --arch m_rnn",
            "The plugin's tasks are hierarchical_story, multimodal",
        ),
        (
            "--criterion pairwise_rankin --arch m_rnn",
            "there is no 'pairwise_rankin': did you mean p",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_one_line(monkeypatch, capsys, plugin, options, message):
    with pytest.raises(SystemExit, match="2"):
        run_fairseq(monkeypatch, "train", "data", *options.split(), *TRAIN)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("command", ["train", "generate", "validate"])
def test_a_missing_task_names_those_of_the_plugin(monkeypatch, tmp_path, plugin, command):
    folder = make_captions_folder(tmp_path / "data")
    options = ("--arch", "m_rnn_tiny", *TRAIN) if command == "train" else ("--path", "a.pt")
    with pytest.raises(UserError, match=r"--task is missing.* tasks are hierarchical_story, multi"):
        run_fairseq(monkeypatch, command, folder, *options)


def test_a_task_that_does_not_fit_the_model_is_named(monkeypatch, tmp_path, plugin):
    from toy_story_models import make_story_folder

    folder = make_story_folder(tmp_path / "stories")
    with pytest.raises(UserError, match="--arch m_rnn_tiny: needs the attribute `feature_dim` of"):
        run_fairseq(monkeypatch, "train", folder, "--arch", "m_rnn_tiny", "--no-save", *TRAIN)


def test_other_mistakes_are_answered_by_fairseq(monkeypatch, capsys, plugin):
    with pytest.raises(SystemExit, match="2"):
        run_fairseq(
            monkeypatch, "train", "d", "--task", "multimodal_captioning", "--arch", "m_rnn", "--lrr"
        )
    assert "unrecognized arguments: --lrr" in capsys.readouterr().err


def test_programs_that_import_the_package_keep_fairseqs_parser():
    from fairseq import options

    assert not hasattr(options.parse_args_and_arch, "__wrapped__")
