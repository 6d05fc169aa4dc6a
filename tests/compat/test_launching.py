"""Several processes are started, joined and stopped wherever they run."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from toy_data import PACKAGE, make_captions_folder, needs_float16_on_cpu, run_fairseq
from toy_processes import needs_fork, train_by, training_configuration

from fairseq_mm.compat import launching
from fairseq_mm.errors import UserError

ROOT = Path(__file__).parents[2]
TRAINING = (
    *("--task", "multimodal_captioning", "--arch", "m_rnn_tiny", "--criterion", "cross_entropy"),
    *("--optimizer", "adam", "--lr", "0.01", "--batch-size", "6", "--cpu", "--seed", "3"),
    *("--num-workers", "0", "--required-batch-size-multiple", "1", "--ddp-backend", "legacy_ddp"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_captions_folder(tmp_path_factory.mktemp("captions") / "data")


# Starting ------------------------------------------------------------------------------------


def configured(environment, *, port=-1, cpu=True, **given):
    distributed = {
        "distributed_init_method": None,
        "distributed_world_size": 1,
        "distributed_rank": 0,
        "distributed_port": port,
        "distributed_no_spawn": False,
        "distributed_backend": "nccl",
        "device_id": 0,
        **given,
    }
    cfg = Namespace(
        common=Namespace(cpu=cpu, tpu=False), distributed_training=Namespace(**distributed)
    )
    launching.configure_launch(cfg, environment)
    return cfg.distributed_training


def programs(folder, **texts):
    """Programs of bash in a folder, and the PATH with it in front."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "3"}
SLURM = {
    "SLURM_STEP_NODELIST": "node[7-8]",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_processes_of_torchrun_join_without_a_gpu():
    """fairseq counts one process where it sees no GPU, and each would train a model alone."""
    found = configured({**TORCHRUN, "LOCAL_RANK": "1"})
    assert (found.distributed_world_size, found.distributed_rank) == (4, 3)
    assert (found.distributed_init_method, found.distributed_no_spawn) == ("env://", True)
    assert (found.distributed_backend, found.device_id) == ("gloo", 0)


def test_tasks_of_slurm_join(monkeypatch, tmp_path):
    path = programs(tmp_path / "bin", scontrol='test "$*" = "show hostnames node[7-8]" && echo n7')
    monkeypatch.setenv("PATH", path)
    found = configured(SLURM, port=29500)
    assert found.distributed_init_method == "tcp://n7:29500"
    assert (found.distributed_world_size, found.distributed_rank) == (4, 3)
    with pytest.raises(UserError, match=r"--distributed-port: is needed where SLURM starts 4"):
        configured(SLURM)


def test_slurm_that_names_no_node_is_said_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", programs(tmp_path / "bin", scontrol="exit 1"))
    with pytest.raises(UserError, match=r"does not name the first node: give --distributed-init"):
        configured(SLURM, port=29500)


@pytest.mark.parametrize("count", [0, -1])
def test_no_processes_are_refused(count):
    """fairseq starts none, and ends with status 0."""
    with pytest.raises(UserError, match=rf"^--distributed-world-size must be 1 or .* is {count} "):
        configured({}, distributed_world_size=count)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cfg = Namespace(distributed_world_size=4, distributed_port=29500)
    with pytest.raises(UserError, match=r"is 4, but 2 GPUs are visible: give 2 at most"):
        utils._infer_single_node_init(cfg)
    cfg.distributed_world_size = 2
    utils._infer_single_node_init(cfg)
    # stock fairseq draws a port
    assert cfg.distributed_init_method.startswith("tcp://localhost:")


def test_a_command_is_one_process_where_the_address_is_given_and_no_gpu_is_there():
    """fairseq starts a process for each GPU: none, and ends with status 0."""
    address = {"distributed_init_method": "tcp://a:1", "distributed_rank": 1}
    found = configured({}, **address, distributed_world_size=2)
    assert (found.distributed_no_spawn, found.distributed_backend) == (True, "gloo")
    assert (found.distributed_rank, found.distributed_init_method) == (1, "tcp://a:1")


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, {}),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, {}),
        (TORCHRUN, {"distributed_init_method": "tcp://a:1"}),
        ({**SLURM, "SLURM_NTASKS": "1"}, {}),
    ],
)
def test_other_launches_are_left_to_fairseq(environment, given):
    before = given.get("distributed_init_method")
    assert configured(environment, **given).distributed_init_method == before


@pytest.mark.parametrize(
    ("on_cpu", "processes", "precision", "message"),
    [
        (True, 2, "fp16", "FullyShardedDataParallel runs on CUDA GPUs alone"),
        (False, 1, "fp16", "needs several .* but there is one.* --nproc_per_node N, or"),
        (False, 2, "bf16", "^--bf16 with .* give --fp16, or"),
        (False, 2, "memory_efficient_fp16", "^--memory-efficient-fp16 with .* give --fp16, or"),
        (False, 2, "fp16", None),
    ],
)
def test_parameters_are_sharded_where_they_can_be(on_cpu, processes, precision, message):
    cfg = Namespace(
        common={precision: True},
        distributed_training=Namespace(
            ddp_backend="fully_sharded",
            distributed_world_size=processes,
            distributed_init_method=None,
        ),
    )
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        launching.check_ddp_backend(cfg, on_cpu=on_cpu)


@pytest.mark.parametrize(("on_cpu", "processes"), [(True, 2), (True, 1), (False, 2)])
def test_slowmo_is_refused_where_several_processes_have_no_gpus(on_cpu, processes):
    """Otherwise fairscale's CUDA calls end in a traceback of each process."""
    distributed = Namespace(ddp_backend="slowmo", distributed_world_size=processes)
    cfg = Namespace(common={}, distributed_training=distributed)
    is_refused = on_cpu and processes > 1
    message = "^--ddp-backend slowmo: .* CUDA GPUs alone; give pytorch_ddp or legacy_ddp"
    with pytest.raises(UserError, match=message) if is_refused else contextlib.nullcontext():
        launching.check_ddp_backend(cfg, on_cpu=on_cpu)


@pytest.mark.parametrize("precision", ["--fp16", "--memory-efficient-fp16", "--amp"])
def test_block_momentum_with_a_loss_scale_is_refused(data, tmp_path, monkeypatch, precision):
    """fairseq's trainer looks for the loss scaler in the wrapper of the optimizer."""
    options = (*TRAINING, "--save-dir", tmp_path, "--max-update", "1", "--use-bmuf", precision)
    with pytest.raises(UserError, match=rf"^{precision} with --use-bmuf: .* give --bf16"):
        run_fairseq(monkeypatch, "train", data, *options)


def test_bfloat16_is_refused_where_gloo_does_not_add_it(monkeypatch):
    distributed = Namespace(ddp_backend="legacy_ddp", distributed_world_size=3)
    cfg = Namespace(common={"bf16": True}, distributed_training=distributed)
    monkeypatch.setattr(torch, "__version__", "1.12.1+cpu")
    with pytest.raises(UserError, match=r"^--bf16 with 3 .* gloo of PyTorch 1\.12\.1\+cpu adds no"):
        launching.check_ddp_backend(cfg, on_cpu=True)
    launching.check_ddp_backend(cfg, on_cpu=False)


@needs_float16_on_cpu
@pytest.mark.parametrize(
    ("precision", "setting"), [("bf16", "tpu"), ("fp16", "fp16_no_flatten_grads")]
)
def test_processes_that_are_started_get_the_settings_of_half_precision(
    monkeypatch, precision, setting
):
    """Otherwise each looks for a TPU with ``--bf16``, and for a GPU with ``--fp16``."""
    started = []
    monkeypatch.setattr(
        launching, "spawn_on_cpu", lambda cfg, main, kwargs: started.append(cfg.common)
    )
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.task = "multimodal_captioning"
    cfg.common.update({"cpu": True, "tpu": precision == "bf16", precision: True})
    cfg.distributed_training.distributed_world_size = 2
    utils.call_main(cfg, lambda cfg: None)
    assert [common[setting] for common in started] == [precision == "fp16"]


def train_in_shell(folder, data, *options):
    program = Path(sys.executable).parent / "fairseq-train"
    arguments = (data, "--user-dir", PACKAGE, *TRAINING, "--save-dir", folder, *options)
    command = [*map(str, (program, *arguments))]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision",
    [(), *((f"--{memory}{x}",) for memory in ("", "memory-efficient-") for x in ("fp16", "bf16"))],
    ids="".join,
)
def test_processes_that_fairseq_starts_without_a_gpu_train_together_and_end_cleanly(
    data, tmp_path, precision
):
    """Bit for bit as processes that join by themselves, and no warning at the end."""
    if precision and torch.__version__.startswith("1."):
        pytest.skip(f"PyTorch {torch.__version__} has neither precision there")
    options = ("--max-epoch", "1", "--distributed-world-size", "2", "--num-workers", "1")
    options = (*options, *precision)
    done = train_in_shell(tmp_path / "spawned", data, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    for word in ("leaked", "Traceback", "destroy_process_group"):
        assert word not in done.stderr
    cfg = training_configuration(data, *TRAINING, "--max-epoch", "1", *precision)
    joined = train_by(2, cfg, tmp_path / "joined")
    state = torch.load(tmp_path / "spawned" / "checkpoint_last.pt", map_location="cpu")
    for name, values in joined["model"].items():
        assert torch.equal(state["model"][name], values), name


# Stopping ------------------------------------------------------------------------------------


@needs_fork
def test_the_last_update_of_all_ends_a_training_as_ever(monkeypatch, data, tmp_path):
    """A checkpoint without the validation would be trained beyond ``--max-update`` later."""
    cfg = training_configuration(data, *TRAINING, "--max-update", "4", "--no-epoch-checkpoints")
    whole = train_by(1, cfg, tmp_path / "whole")
    step = Trainer.train_step

    def signalled_step(self, samples, raise_oom=False):
        found = step(self, samples, raise_oom)
        if self.get_num_updates() == 4:
            os.kill(os.getpid(), signal.SIGUSR1)
        return found

    monkeypatch.setattr(Trainer, "train_step", signalled_step)
    signalled = train_by(1, cfg, tmp_path / "signalled")
    assert signalled["extra_state"]["val_loss"] == whole["extra_state"]["val_loss"] is not None
    assert "stopped by SIGUSR1" not in (tmp_path / "signalled" / "log").read_text()


@needs_fork
@pytest.mark.parametrize(
    ("processes", "signalled", "stopped"),
    # epochs of six updates, or of three by two processes, which agree at every second update
    [(1, 4, 4), (2, 4, 4), (1, 6, 7), (2, 6, 7), (1, 18, 18)],
)
def test_a_training_that_is_stopped_continues_bit_for_bit(
    monkeypatch, data, tmp_path, processes, signalled, stopped
):
    """The signal reaches one process; all end after the same update, which is not an epoch's last:
    its validation, by which rates and checkpoints are chosen, is not left out."""
    monkeypatch.setattr(launching, "UPDATES_BETWEEN_AGREEMENTS", 2)
    plateau = (
        "--lr-scheduler",
        "reduce_lr_on_plateau",
        "--lr-threshold",
        "9",
        "--lr-patience",
        "0",
    )
    options = (*plateau, "--max-epoch", "3", "--no-epoch-checkpoints")
    cfg = training_configuration(data, *TRAINING, *options)
    whole = train_by(processes, cfg, tmp_path / "whole")
    step, rank = Trainer.train_step, {1: 0, 2: 1}[processes]

    def stopped_step(self, samples, raise_oom=False):
        found = step(self, samples, raise_oom)
        if self.get_num_updates() == signalled and self.data_parallel_rank == rank:
            os.kill(os.getpid(), signal.SIGUSR1)
        return found

    with monkeypatch.context() as context:
        context.setattr(Trainer, "train_step", stopped_step)
        first = train_by(processes, cfg, tmp_path / "stopped")
    assert first["optimizer_history"][-1]["num_updates"] == stopped
    log = (tmp_path / "stopped" / "log").read_text()
    if stopped == 18:
        assert "stopped by SIGUSR1" not in log  # it was at its end
    else:
        assert f"stopped by SIGUSR1 after {stopped} updates: the same command continues" in log
    resumed = train_by(processes, cfg, tmp_path / "stopped")
    assert resumed["optimizer_history"][-1]["num_updates"] == {1: 18, 2: 9}[processes]
    for name, values in whole["model"].items():
        assert torch.equal(resumed["model"][name], values), name
    assert resumed["extra_state"]["best"] == whole["extra_state"]["best"]


# SLURM's scripts -----------------------------------------------------------------------------

# starts the tasks of a step and passes signals on to their process groups, as slurmstepd does
SRUN = """
tasks=()
trap 'for task in "${tasks[@]}"; do kill -USR1 -- "-$task"; done' USR1
while [[ "${1:-}" == --* ]]; do shift; done
set -m
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=local "$@" &
    tasks+=($!)
done
status=0
for task in "${tasks[@]}"; do
    while :; do
        wait "$task" && found=0 || found=$?
        if [ "$found" -le 128 ] || ! kill -0 "$task" 2> /dev/null; then break; fi
    done
    if [ "$found" != 0 ]; then status=$found; fi
done
exit $status
"""
SCONTROL = 'if [ "$1" = show ]; then echo localhost; else echo "$*" >> "$REQUEUED"; fi'


@pytest.fixture
def sbatch(tmp_path):
    """Runs a script as a job of two tasks on one node; ``programs`` replace fairseq's."""
    path = programs(tmp_path / "slurm", srun=SRUN, scontrol=SCONTROL)
    path = f"{tmp_path / 'slurm'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{path}"

    def start(script, *arguments, **variables):
        environment = {
            **os.environ,
            "PATH": path,
            "REQUEUED": str(tmp_path / "requeued"),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_NTASKS": "2",
            "SLURM_NNODES": "1",
            **variables,
        }
        return subprocess.Popen(
            ["bash", str(ROOT / "scripts" / "slurm" / f"{script}.sbatch"), *map(str, arguments)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def test_jobs_of_extraction_take_a_part_each(sbatch, tmp_path):
    programs(tmp_path / "slurm", **{"fairseq-mm": 'printf "%s " "$@"'})
    variables = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_NTASKS": "1"}
    job = sbatch("extract", "features.h5", "images", "--model", "resnet152", **variables)
    output, _ = job.communicate(timeout=60)
    expected = "extract images --model resnet152 --output features.h5 --shard 3/8 "
    assert (job.returncode, output) == (0, expected)


def test_a_job_trains_a_task_for_each_gpu(sbatch, tmp_path):
    text = 'echo "$SLURM_PROCID: $*" >> calls'
    programs(tmp_path / "slurm", **{"fairseq-train": text})
    recipe = ROOT / "examples" / "visual_storytelling" / "1_train.sh"
    job = sbatch("train", recipe, "data", "saved", "glac", "--patience", "3")
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0, output
    calls = sorted((tmp_path / "calls").read_text().splitlines())
    port = 20000 + os.getpid() % 20000
    assert [call[:3] for call in calls] == ["0: ", "1: "]
    for call in calls:
        assert "--batch-size 32 --distributed-world-size 2" in call
        assert call.endswith(f"--patience 3 --distributed-port {port}")
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("script", ["train", "extract"])
def test_scripts_without_arguments_say_what_they_take(sbatch, script):
    job = sbatch(script)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 2
    assert output.startswith("# ")
    assert output.count("\n") == 1


@pytest.mark.slow
def test_a_job_that_is_stopped_is_queued_again_and_continues(sbatch, data, tmp_path):
    recipe = ROOT / "examples" / "multimodal_captioning" / "train_m_rnn.sh"
    options = (*TRAINING[4:], "--max-update", "4000", "--log-interval", "50")
    options += ("--disable-validation", "--log-file", tmp_path / "log")
    arguments = ("train", recipe, data, tmp_path / "saved", "m_rnn_tiny", *options)
    job = sbatch(*arguments)
    log = tmp_path / "log"
    while not (log.exists() and "num_updates" in log.read_text()):
        assert job.poll() is None, job.stdout.read()[-3000:]
        time.sleep(0.2)
    job.send_signal(signal.SIGUSR1)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output[-3000:]
    assert "stopped by SIGUSR1" in output
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    state = torch.load(tmp_path / "saved" / "checkpoint_last.pt")
    count = state["optimizer_history"][-1]["num_updates"]
    assert 0 < count < 4000
    job = sbatch(*arguments, "--max-update", count + 20)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 0, output[-3000:]
    assert f"@ {count} updates" in output
    state = torch.load(tmp_path / "saved" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == count + 20
