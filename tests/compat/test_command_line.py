"""fairseq-generate with the plugin: its log, and options that do not fit."""

import os
import subprocess

import pytest
from toy_data import PACKAGE, make_captions_folder, run_fairseq

TRAIN = ("--optimizer", "adam", "--lr", "0.1", "--cpu", "--batch-size", "4", "--max-update", "1")


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
    assert (
        main(["score", str(output), "--data", str(data), "--metrics", "bleu", "--signatures"]) == 0
    )
    assert "|unk:no|" in capsys.readouterr().out


@pytest.fixture
def hypotheses(captioner, monkeypatch, capsys):
    """Function that runs ``fairseq-generate`` in this process and returns its hypotheses."""
    _, data, checkpoint = captioner
    task = ("--task", "multimodal_captioning", "--path", checkpoint, "--cpu", *VALID)

    def run(*options):
        capsys.readouterr()
        run_fairseq(monkeypatch, "generate", data, *task, *options)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("H-")]

    return run


@pytest.mark.parametrize(("options", "texts"), [((), 1), (("--nbest", "3"), 3)])
def test_sampling_without_a_beam_draws_as_many_texts_as_it_prints(hypotheses, options, texts):
    assert len(hypotheses("--sampling", "--sampling-topk", "10", *options)) == 7 * texts


def test_shards_of_a_split_are_the_whole_split(hypotheses):
    options = ("--batch-size", "2", "--beam", "2")
    shards = [hypotheses(*options, "--num-shards", "2", "--shard-id", shard) for shard in "01"]
    assert 0 < len(shards[0]) < 7
    assert sorted(shards[0] + shards[1]) == sorted(hypotheses(*options))


def test_sampling_other_texts_than_it_prints_is_one_line(captioner):
    options = ("--sampling", "--beam", "2", "--nbest", "3")
    done = generate(captioner, *options, command="interactive")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("give --beam 3 or --nbest 2.")
