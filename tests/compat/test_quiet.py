"""fairseq's commands keep quiet about what a user cannot change, and say everything else."""

import logging
import os
import subprocess
import sys

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from toy_data import PACKAGE

from fairseq_mm.compat import quiet
from fairseq_mm.metrics.generated_output import read_settings

TRAIN = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--optimizer", "adam"),
    *("--lr", "0.1", "--cpu", "--batch-size", "4", "--max-update", "1", "--num-workers", "0"),
    *("--disable-validation", "--no-save"),
)
CALL = """
import sys
sys.argv[0] = {program!r}
from fairseq_cli.train import cli_main
{before}
cli_main()
"""
# warnings of a library and of a user's own module, and a second message of each kind
PROBE = """
import warnings
def warn(message, category, module):
    warnings.warn_explicit(message, category, module + ".py", 1, module=module)
import fairseq.options
original = fairseq.options.parse_args_and_arch
def parse(*args, **kwargs):
    warn("library is old", FutureWarning, "fairseq.tasks.fairseq_task")
    warn("\\nThe version_base parameter is not specified.", UserWarning, "sys")
    warn("mine is old", FutureWarning, "my_models.model")
    warn("torch is slow here", UserWarning, "torch.nn.functional")
    return original(*args, **kwargs)
import fairseq_cli.train
fairseq_cli.train.options.parse_args_and_arch = parse
"""


def train(python, data, tmp_path, *options, program="fairseq-train", before=""):
    done = subprocess.run(
        [
            *(python, "-c", CALL.format(program=program, before=before), data, *TRAIN),
            *("--user-dir", PACKAGE, "--save-dir", tmp_path, *options),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def test_a_training_logs_what_its_user_set_and_no_warnings_of_libraries(
    started_python, data, tmp_path
):
    options = ("--memory-efficient-bf16", "--log-file", tmp_path / "log")
    out, err = train(started_python, data, tmp_path, *options, before=PROBE)
    (settings,) = [line for line in out.splitlines() if "| fairseq_cli.train | {" in line]
    for kept in ("'lr': [0.1]", "'max_update': 1", "'_name': 'm_rnn_tiny'", "'seed': 1"):
        assert kept in settings
    assert "bmuf" not in settings
    assert "plasma_path" not in settings
    assert settings.partition("{")[2] in (tmp_path / "log").read_text()
    assert "reuse_dataloader" not in out
    assert "done training" in out
    # of the user's precision, his module, and of unknown content
    assert "--memory-efficient-bf16 keeps no float32 copy" in out
    for heard in ("FutureWarning: mine is old", "UserWarning: torch is slow here"):
        assert heard in err
    for hidden in ("library is old", "version_base", "hydra", "torch.cuda.amp.autocast"):
        assert hidden not in err


def test_a_program_that_calls_fairseq_keeps_its_log_and_warnings(started_python, data, tmp_path):
    out, err = train(started_python, data, tmp_path, program="my_program.py", before=PROBE)
    for text in ("'bmuf': {", "plasma_path", "reuse_dataloader = "):
        assert text in out
    for text in ("library is old", "mine is old"):
        assert text in err


def test_variable_of_zero_means_off(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-train"])
    for value, hides in (("0", True), ("", True), ("1", False)):
        monkeypatch.setenv("FAIRSEQ_MM_VERBOSE", value)
        assert quiet.hides_messages() is hides
    monkeypatch.delenv("FAIRSEQ_MM_VERBOSE")
    assert quiet.hides_messages()
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py"])
    assert not quiet.hides_messages()


@pytest.fixture
def config():
    # a plain one, into which other keys can be put
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig())))
    cfg.model = {"_name": "wav2vec2", "dropout": 0.1}
    cfg.task = {"_name": "multimodal_captioning", "allow_unk": False}
    return cfg


def test_changed_settings_of_a_training(config):
    config.optimization.lr = [0.5]
    config.dataset.batch_size = 4
    config.common.fp16 = True
    config.common["mine"] = None
    found = quiet.changed_settings(config, is_training=True)
    assert found["optimization"] == {"lr": [0.5]}
    # the defaults of these are the values of other settings
    assert "batch_size_valid" not in found["dataset"]
    assert "distributed_training" not in found
    assert found["common"]["mine"] is None
    assert found["model"] == {"_name": "wav2vec2", "dropout": 0.1}
    config.dataset.batch_size_valid = 7
    config.distributed_training.fp16 = False
    found = quiet.changed_settings(config, is_training=True)
    assert found["dataset"] == {"batch_size": 4, "gen_subset": "test", "batch_size_valid": 7}
    assert found["distributed_training"] == {"fp16": False}


def test_score_reads_the_same_settings_of_a_short_log_as_of_a_whole_one(config):
    config.common_eval.path = "m.pt"
    config.generation.beam = 3
    whole = str(OmegaConf.to_container(config, resolve=True))
    short = str(quiet.changed_settings(config, is_training=False))
    assert read_settings(short) == read_settings(whole)
    assert read_settings(short)["lenpen"] == 1
    assert "wav2vec2" in whole
    assert "wav2vec2" not in short
    assert len(short) < 0.4 * len(whole)


def test_filters_change_only_the_record_of_settings(config):
    def filtered(message):
        record = logging.LogRecord("fairseq_cli.train", logging.INFO, "", 1, message, (), None)
        assert quiet._shorten_settings(record, is_training=True)
        return record.msg

    assert filtered("training on 1 devices") == "training on 1 devices"
    other = OmegaConf.create({"mine": 1})
    assert filtered(other) is other
    assert "checkpoint" not in filtered(config)
