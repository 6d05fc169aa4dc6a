"""Each repair of fairseq works, and only where its defect is present."""

import os
import socket
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from omegaconf import OmegaConf
from toy_data import PACKAGE, make_captions_folder, run_fairseq

from fairseq_mm import compat
from fairseq_mm.errors import UserError

TRAINING = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--lr", "0.01", "--max-epoch", "2", "--num-workers", "0", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "none", "--seed", "3"),
    # without dropout one process and two compute the same gradients
    *("--dropout", "0", "--embedding-dropout", "0", "--recurrent-dropout", "0"),
    *("--feature-dropout", "0"),
)


@pytest.fixture
def data(tmp_path):
    return make_captions_folder(tmp_path / "data")


def load_weights(path):
    return torch.load(path, map_location="cpu")


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def train_with_two_processes(data, save_dir, *options):
    """Output of both ranks."""
    address = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAINING]
    command += ["--user-dir", str(PACKAGE), "--save-dir", str(save_dir)]
    command += ["--distributed-world-size", "2", "--distributed-no-spawn"]
    command += ["--distributed-backend", "gloo", "--distributed-init-method", address]
    ranks = [
        subprocess.Popen(
            [*command, "--distributed-rank", str(rank), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs[0][-3000:] + outputs[1][-3000:]
    return outputs


def test_checkpoint_loads_with_weights_only(monkeypatch, tmp_path, data):
    run_fairseq(monkeypatch, "train", data, *TRAINING, "--save-dir", tmp_path, "--batch-size", "6")
    state = load_weights(tmp_path / "checkpoint_last.pt")
    assert state["cfg"]["model"]["_name"] == "m_rnn_tiny"


def test_namespace_and_configuration_load_with_weights_only(tmp_path):
    path = tmp_path / "objects.pt"
    content = {
        "args": Namespace(lr=[0.1], arch="x"),
        "cfg": OmegaConf.create({"a": {"b": [1, 2.5, None, "x", True]}}),
    }
    torch.save(content, path)
    loaded = load_weights(path)
    assert loaded["args"].lr == [0.1]
    assert loaded["cfg"].a.b[:3] == [1, 2.5, None]


@pytest.mark.skipif(
    not hasattr(torch.serialization, "add_safe_globals"), reason="older PyTorch unpickles anything"
)
def test_checkpoint_with_code_is_still_refused(tmp_path):
    path = tmp_path / "code.pt"
    torch.save({"model": subprocess.Popen}, path)
    with pytest.raises(Exception, match=r"weights_only|WeightsUnpickler"):
        load_weights(path)


def test_applying_twice_changes_nothing():
    from fairseq.distributed import utils

    before = utils.call_main
    compat.apply()
    assert utils.call_main is before


def called_with(monkeypatch, **settings):
    """Settings that fairseq's main gets."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.distributed import utils

    cfg = OmegaConf.structured(FairseqConfig())
    for group, values in settings.items():
        for key, value in values.items():
            cfg[group][key] = value
    seen = []
    utils.call_main(cfg, seen.append)
    return seen[0]


def test_bf16_asks_for_no_tpu(monkeypatch):
    cfg = called_with(monkeypatch, common={"bf16": True, "tpu": True, "cpu": True})
    assert not cfg.common.tpu
    assert not cfg.distributed_training.tpu
    assert cfg.common.bf16


def test_fp16_on_the_cpu_keeps_gradients_apart(monkeypatch):
    assert called_with(monkeypatch, common={"fp16": True, "cpu": True}).common.fp16_no_flatten_grads
    cfg = called_with(monkeypatch, common={"fp16": False, "cpu": True})
    assert not cfg.common.fp16_no_flatten_grads


def test_several_processes_without_a_gpu_are_not_silently_none(monkeypatch):
    with pytest.raises(UserError, match="fairseq would start no process at all"):
        called_with(
            monkeypatch,
            common={"cpu": True},
            distributed_training={"distributed_world_size": 2},
        )


def test_diverse_beams_generate_every_picture(monkeypatch, capsys, tmp_path, data):
    run_fairseq(monkeypatch, "train", data, *TRAINING, "--save-dir", tmp_path, "--batch-size", "6")
    capsys.readouterr()
    run_fairseq(
        monkeypatch,
        "generate",
        *(data, "--task", "multimodal_captioning", "--path", tmp_path / "checkpoint_last.pt"),
        *("--gen-subset", "valid", "--cpu", "--beam", "4", "--diverse-beam-groups", "2"),
        *("--diverse-beam-strength", "0.5", "--max-len-b", "8"),
    )
    assert capsys.readouterr().out.count("\nH-") == 7


@pytest.mark.parametrize(
    "options",
    [
        ("--ddp-backend", "legacy_ddp", "--bucket-cap-mb", "1"),
        ("--ddp-backend", "pytorch_ddp"),
        pytest.param(
            ("--ddp-backend", "legacy_ddp", "--zero-sharding", "os"), marks=pytest.mark.slow
        ),
    ],
)
def test_two_processes_train_as_one_does(monkeypatch, tmp_path, data, options):
    """36 captions in batches of 5: the last step has one caption, one process has none."""
    generated = ("--eval-gen", "--eval-gen-args", '{"beam": 2, "max_len_b": 9}')
    metric = ("--best-checkpoint-metric", "cider", "--maximize-best-checkpoint-metric")
    outputs = train_with_two_processes(
        *(data, tmp_path / "two", *options, *generated, *metric, "--batch-size", "5")
    )
    assert not any("Traceback" in output for output in outputs)
    two = load_weights(tmp_path / "two" / "checkpoint_last.pt")
    # one process takes both processes' batches before each step
    run_fairseq(
        monkeypatch,
        "train",
        *(data, *TRAINING, "--save-dir", tmp_path / "one", *generated, *metric),
        *("--batch-size", "5", "--update-freq", "2"),
    )
    one = load_weights(tmp_path / "one" / "checkpoint_last.pt")
    for key, weights in one["model"].items():
        torch.testing.assert_close(two["model"][key], weights, atol=1e-5, rtol=1e-4)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=1e-3)


def test_hydra_trains(tmp_path, data):
    config = {
        "common": {"user_dir": str(PACKAGE), "cpu": True, "log_format": "none"},
        "task": {"_name": "multimodal_captioning", "data": str(data)},
        "model": {"_name": "m_rnn", "hidden_dim": 12, "multimodal_dim": 20},
        "criterion": {"_name": "cross_entropy"},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"batch_size": 6, "num_workers": 0},
        "optimization": {"lr": [0.01], "max_epoch": 1},
        "distributed_training": {"distributed_world_size": 1},
        "checkpoint": {"save_dir": str(tmp_path / "ck")},
    }
    OmegaConf.save(OmegaConf.create(config), tmp_path / "m_rnn.yaml")
    command = [sys.executable, "-m", "fairseq_cli.hydra_train"]
    command += ["--config-dir", str(tmp_path), "--config-name", "m_rnn"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert (tmp_path / "ck" / "checkpoint_last.pt").exists()


def test_user_dir_is_found_by_its_bare_name_from_a_checkout(tmp_path, data):
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAINING]
    command += ["--user-dir", "fairseq_mm", "--save-dir", str(tmp_path), "--batch-size", "6"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent)
    assert result.returncode == 0, result.stderr[-2000:]


def test_mistake_ends_fairseq_train_with_one_line_and_status_2(tmp_path, data):
    (data / "features.h5").write_text("no store")
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), *TRAINING]
    command += ["--user-dir", str(PACKAGE), "--save-dir", str(tmp_path), "--batch-size", "6"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"error: {data}/features.h5: ")
