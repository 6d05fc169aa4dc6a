"""Processes that torchrun and SLURM have started train together."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from fairseq_mm.compat import command_line

ROOT = Path(__file__).parents[2]


def configured(environment, **given):
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.common.cpu = True
    cfg.distributed_training.update({"distributed_world_size": 1, **given})
    command_line.configure_command(cfg, environment)
    return cfg.distributed_training


def test_processes_of_torchrun_join_without_a_gpu():
    """fairseq counts one process where it sees no GPU, and each would train a model alone."""
    torchrun = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "3"}
    found = configured({**torchrun, "LOCAL_RANK": "1"})
    assert (found.distributed_world_size, found.distributed_rank) == (4, 3)
    assert (found.distributed_init_method, found.distributed_no_spawn) == ("env://", True)
    assert (found.distributed_backend, found.device_id) == ("gloo", 0)
    assert found.ddp_backend == "legacy_ddp"


def test_a_command_is_one_process_where_the_address_is_given_and_no_gpu_is_there():
    """fairseq starts a process for each GPU: none, and ends with status 0."""
    address = {"distributed_init_method": "tcp://a:1", "distributed_rank": 1}
    found = configured({}, **address, distributed_world_size=2)
    assert (found.distributed_no_spawn, found.distributed_backend) == (True, "gloo")
    assert (found.distributed_rank, found.distributed_init_method) == (1, "tcp://a:1")


def programs(folder, **texts):
    """Programs of bash in a folder, and the PATH with it in front."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


# starts the tasks of a step
SRUN = """
while [[ "${1:-}" == --* ]]; do shift; done
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NODELIST=local "$@" &
done
wait
"""


@pytest.fixture
def sbatch(tmp_path):
    """Runs a script as a job of two tasks on one node; ``programs`` replace fairseq's."""
    path = programs(tmp_path / "slurm", srun=SRUN)
    path = f"{tmp_path / 'slurm'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{path}"

    def start(script, *arguments, **variables):
        environment = {
            **os.environ,
            "PATH": path,
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
