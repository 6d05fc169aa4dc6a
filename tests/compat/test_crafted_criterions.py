"""Criterions and file names in a checkpoint: fairseq's commands run them or end in one line."""

import os
import sys

import pytest
import torch
from toy_captioner import train_captioner
from toy_data import run_fairseq

import fairseq_mm
from fairseq_mm import errors
from fairseq_mm.compat.evaluated_options import check_values
from fairseq_mm.compat.loading import named_failures
from fairseq_mm.errors import UserError

NAMES = (
    *("ctc", "wav2vec", "masked_lm", "adaptive_loss", "sentence_prediction", "model", "legacy_"),
    *("label_smoothed_cross_entropy", "composite_loss", "tacotron2", "no_such_criterion"),
    *("pairwise_ranking", "coverage_cross_entropy", "chunked_cross_entropy", "latency_augmented"),
    *("label_smoothed_cross_entropy_with_alignment", "nat_loss", "sentence_ranking", "hubert"),
)
SMOOTHED = "label_smoothed_cross_entropy"
VALUES = (
    "abc",
    None,
    [1, 2],
    {"a": 1},
    float("nan"),
    10**40,
    -5,
    True,
    "",
    "???",
    "${model.dropout}",
)
CRITERIONS = [
    *({"_name": name} for name in NAMES),
    *({"_name": SMOOTHED, "label_smoothing": value} for value in VALUES),
    *({"_name": SMOOTHED, "ignore_prefix_size": value} for value in VALUES),
    *({"_name": "chunked_cross_entropy", "chunk_size": value} for value in (*VALUES, 0)),
    *({"_name": value} for value in (None, 3, ["cross_entropy"], "", b"cross_entropy")),
    *(None, [], "cross_entropy", 3, {}, {"a": {"b": [{}]}}, {"_name": "cross_entropy", "x": 3}),
    {"_name": "cross_entropy", "sentence_avg": "nothing"},
    {"_name": "ctc", "wer_kenlm_model": "/no/such/file", "wer_lexicon": "/tmp"},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("criterions")
    train_captioner(folder, folder / "data")
    return folder


def run(monkeypatch, capsys, *arguments):
    """Runs a command as a program; returns None, or what it prints of its error."""
    try:
        run_fairseq(monkeypatch, *arguments)
    except Exception as error:
        capsys.readouterr()
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        errors.report_on_exit()
        with pytest.raises(SystemExit, match="2"):
            sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err
    return None


@pytest.mark.parametrize("criterion", CRITERIONS, ids=str)
def test_validation_with_a_crafted_criterion_ends_in_one_line(
    trained, tmp_path, monkeypatch, capsys, criterion
):
    state = torch.load(trained / "checkpoint_best.pt")
    path = tmp_path / "a.pt"
    torch.save({**state, "cfg": {**state["cfg"], "criterion": criterion}}, path)
    printed = run(
        monkeypatch,
        capsys,
        *("validate", trained / "data.moved", "--task", "multimodal_captioning", "--path", path),
        *("--valid-subset", "valid", "--batch-size", 4, "--num-workers", 0, "--cpu"),
        *("--log-format", "none"),
    )
    if printed is not None:
        (line,) = printed.splitlines()
        assert f"{path}: " in line or "--criterion" in line
        assert len(line) < 1000


def test_validation_with_the_checkpoints_criterion_works(trained, monkeypatch, capsys):
    printed = run(
        monkeypatch,
        capsys,
        *("validate", trained / "data.moved", "--task", "multimodal_captioning", "--path"),
        *(trained / "checkpoint_best.pt", "--batch-size", 4, "--num-workers", 0, "--cpu"),
    )
    assert printed is None


@pytest.fixture
def endless(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return {"pipe": str(tmp_path / "pipe"), "device": "/dev/zero"}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["encoder_embed_path", "decoder_embed_path", "word_vectors"])
@pytest.mark.parametrize("section", ["model", "task", "criterion"])
def test_a_device_or_a_pipe_in_a_checkpoint_is_not_opened(
    trained, tmp_path, endless, kind, name, section
):
    state = torch.load(trained / "checkpoint_best.pt")
    cfg = {**state["cfg"], section: {**state["cfg"][section], name: endless[kind]}}
    torch.save({**state, "cfg": cfg}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=rf"a\.pt: cfg\.{section}\.{name} must name a file, but"):
        fairseq_mm.from_pretrained(tmp_path / "a.pt")


def test_outputs_may_be_devices():
    check_values({"common": {"log_file": os.devnull}}, "cfg", "a.pt")
    check_values({"log_file": os.devnull}, "args", "a.pt")
    with pytest.raises(UserError, match="must name a file"):
        check_values({"decoder_embed_path": os.devnull}, "args", "a.pt")


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_files_that_a_checkpoint_names_are_named_where_they_cannot_be_read(tmp_path, kind):
    named = tmp_path / "embeddings"
    if kind == "folder":
        named.mkdir()
    message = rf"^a\.pt: no model .* names {named}, which cannot be read"
    with pytest.raises(UserError, match=message), named_failures("a.pt"):
        open(named).close()
    with pytest.raises(OSError, match="No such file"), named_failures(str(tmp_path / "a.pt")):
        open(tmp_path / "a.pt").close()
