"""fairseq's commands answer names that do not exist, and a missing task, in one line."""

import logging
import os
import subprocess

import pytest
from toy_data import PACKAGE, make_captions_folder, run_fairseq

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


@pytest.fixture(scope="module")
def captioner(started_python, tmp_path_factory):
    """A python that starts within milliseconds, data, and a checkpoint."""
    folder = tmp_path_factory.mktemp("captioner")
    data = make_captions_folder(folder / "data")
    task = (
        "--task",
        "multimodal_captioning",
        "--arch",
        "m_rnn_tiny",
        "--criterion",
        "cross_entropy",
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        options = ("--disable-validation", "--num-workers", "0", "--save-dir", folder)
        run_fairseq(monkeypatch, "train", data, *task, *TRAIN, *options)
    return started_python, data, folder / "checkpoint_last.pt"


def generate(captioner, *options, command="generate", **variables):
    """Run ``fairseq-<command>`` as a program of its own."""
    python, data, checkpoint = captioner
    program = f"from fairseq_cli.{command} import cli_main; cli_main()"
    arguments = ("--task", "multimodal_captioning", "--user-dir", PACKAGE, "--path", checkpoint)
    return subprocess.run(
        [python, "-c", program, *map(str, (data, *arguments, "--cpu", *options))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables},
    )


VALID = ("--gen-subset", "valid", "--num-workers", "0")


def test_the_log_of_generate_is_in_its_output_and_score_reads_its_settings(
    captioner, tmp_path, capsys
):
    from fairseq_mm.cli.main import main

    done = generate(captioner, *VALID, "--beam", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fairseq_cli.generate" not in done.stderr
    first = done.stdout.splitlines()[0]
    assert " | INFO | fairseq_cli.generate | {" in first
    assert "'beam': 2" in first
    output = tmp_path / "captions-valid.txt"
    output.write_text(done.stdout)
    data = captioner[1]
    assert main(["score", str(output), "--data", str(data), "--metrics", "bleu"]) == 0
    assert "|unk:no|" in capsys.readouterr().out


def test_the_log_of_generate_follows_its_results(captioner, tmp_path):
    done = generate(captioner, *VALID, "--results-path", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "fairseq_cli.generate" not in done.stdout
    assert " | INFO | fairseq_cli.generate | {" in (tmp_path / "generate-valid.txt").read_text()


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("generate", ("--beam", "5"), "--nbest is 1: give --beam 1 or --nbest 5."),
        ("interactive", (), "but --beam is 3 and --nbest is 1: give --beam 1 or --nbest 3."),
        ("interactive", ("--beam", "2", "--nbest", "3"), "give --beam 3 or --nbest 2."),
    ],
)
def test_sampling_other_texts_than_it_prints_is_one_line(captioner, command, options, message):
    subset = VALID if command == "generate" else ()
    done = generate(captioner, *subset, "--sampling", *options, command=command)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(message)


def test_handlers_of_a_program_stay(captioner, monkeypatch, plugin):
    """Also the handlers of pytest, which are handlers of a program."""
    _, data, checkpoint = captioner
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    run_fairseq(
        monkeypatch,
        "generate",
        *(data, "--task", "multimodal_captioning", "--path", checkpoint, "--cpu", *VALID),
    )
    assert logging.getLogger().handlers == [handler]
