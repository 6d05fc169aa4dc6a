"""`fairseq-mm pretrained-options`: dropouts of a checkpoint as options, and refusals."""

from argparse import Namespace

import pytest
import torch
from toy_bart import write_bart

from fairseq_mm.cli.main import main


def printed(capsys, *arguments):
    assert main(["pretrained-options", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def write(path, **options):
    torch.save({"args": Namespace(**options), "model": {"x": torch.zeros(1)}}, path)
    return path


def test_options_of_a_folder_for_both_trainers(tmp_path, capsys):
    rates = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.0}
    write_bart(tmp_path / "model.pt", **rates)
    flags = "--dropout 0.2 --attention-dropout 0.1 --activation-dropout 0.0\n"
    assert printed(capsys, tmp_path) == printed(capsys, tmp_path / "model.pt") == flags
    overrides = "model.dropout=0.2 model.attention_dropout=0.1 model.activation_dropout=0.0\n"
    assert printed(capsys, tmp_path, "--hydra") == overrides


def test_what_a_checkpoint_does_not_say_is_its_architectures(tmp_path, capsys):
    path = write(tmp_path / "a.pt", arch="bart_base", attention_dropout=0.1, relu_dropout=0.3)
    flags = "--dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.3\n"
    assert printed(capsys, path) == flags


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "lbl"}, "a.pt: must be a checkpoint of BART or T5 with dropouts below 1, but is"),
        ({"arch": "bart_base", "dropout": 1.5}, "below 1, but is of --arch bart_base with {'dropo"),
        ({"arch": "bart_base", "dropout": "$(id)"}, "below 1, but is of --arch bart_base with {'d"),
        ({"arch": "denoising"}, "below 1, but is of --arch denoising with {}."),
        ({}, "a.pt: is no checkpoint of fairseq: it has no model, or no options."),
    ],
)
def test_what_has_no_dropouts_is_refused_in_one_line(tmp_path, capsys, options, message):
    assert main(["pretrained-options", str(write(tmp_path / "a.pt", **options))]) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    for part in message.split(".*"):
        assert part in stderr


def test_a_missing_checkpoint_is_named(tmp_path, capsys):
    assert main(["pretrained-options", str(tmp_path / "absent.pt")]) == 2
    assert f"{tmp_path}/absent.pt: cannot be read (No such" in capsys.readouterr().err
