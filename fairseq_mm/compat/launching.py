"""Starts several processes of a training, and stops a training on a signal.

fairseq takes the number of processes from the number of visible GPUs. This is wrong on machines
without GPUs, and if each process sees only its own GPU; this module sets the right number. A
training that receives ``SIGUSR1``, which schedulers send before they take a machine away, saves a
checkpoint and ends.
"""

import atexit
import functools
import gc
import importlib
import logging
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from fairseq_mm.compat import activation, allocator, dropout_masks
from fairseq_mm.compat.command_line import check_sampling
from fairseq_mm.compat.fairseq import configure_command
from fairseq_mm.compat.loading import named_failures
from fairseq_mm.compat.scope import is_ours, is_program, names_ours
from fairseq_mm.compat.sharding import check_block_momentum, check_ddp_backend
from fairseq_mm.compat.training import end_workers
from fairseq_mm.errors import UserError

# the logger of the training, because --log-file saves its messages
logger = logging.getLogger("fairseq_cli.train")

# number of updates after which processes agree on stopping by a message of one number
UPDATES_BETWEEN_AGREEMENTS = 5


# Starting ------------------------------------------------------------------------------------


def configure_launch(cfg: Any, environment: Mapping[str, str] = os.environ) -> None:
    """Set the number of processes and this process's rank from the variables of a launcher.

    fairseq counts GPUs before it reads these variables. If each process sees at most one GPU, every
    process would train a model of its own.

    Args:
        cfg: Config of a fairseq command, whose group ``distributed_training`` is changed in place.
        environment: Environment variables, which ``torchrun`` or SLURM's ``srun`` has set.
    """
    import torch

    distributed = cfg.distributed_training
    if distributed.distributed_world_size < 1:
        raise UserError(
            "--distributed-world-size must be 1 or more, but is "
            f"{distributed.distributed_world_size} instead."
        )
    if cfg.common.tpu:
        return
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    if distributed.distributed_init_method is not None:
        if on_cpu and distributed.distributed_world_size > 1:
            # fairseq would start one process per GPU: none, and end with status 0
            distributed.distributed_no_spawn, distributed.distributed_backend = True, "gloo"
        return
    if "MASTER_ADDR" in environment and int(environment.get("WORLD_SIZE", 1)) > 1:
        world, rank = int(environment["WORLD_SIZE"]), int(environment["RANK"])
        local, address = int(environment.get("LOCAL_RANK", 0)), "env://"
    elif "SLURM_STEP_NODELIST" in environment and int(environment.get("SLURM_NTASKS", 1)) > 1:
        world, rank = int(environment["SLURM_NTASKS"]), int(environment["SLURM_PROCID"])
        one_a_node = world == int(environment.get("SLURM_NNODES", 1))
        if one_a_node and not on_cpu and torch.cuda.device_count() > 1:
            return  # fairseq starts a process for each GPU of the node
        if distributed.distributed_port <= 0:
            raise UserError(
                f"--distributed-port: is needed where SLURM starts {world} processes; give a port "
                "that is free on the first node, such as 29500."
            )
        local = int(environment.get("SLURM_LOCALID", 0))
        host = _first_host(environment["SLURM_STEP_NODELIST"])
        address = f"tcp://{host}:{distributed.distributed_port}"
    else:
        return
    count = torch.cuda.device_count()
    distributed.distributed_world_size, distributed.distributed_rank = world, rank
    distributed.distributed_init_method = address
    distributed.distributed_no_spawn = True
    # a launcher may show each process only its own GPU
    distributed.device_id = 0 if on_cpu else local % max(count, 1)
    if on_cpu:
        distributed.distributed_backend = "gloo"


def _first_host(nodes: str) -> str:
    """Return the first host of a node list in SLURM's notation, such as ``node[3-5]``."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        raise UserError(
            f"`{' '.join(command)}` does not name the first node: give --distributed-init-method "
            "tcp://HOST:PORT, --distributed-rank and --distributed-no-spawn."
        ) from None


def spawn_on_cpu(cfg: Any, main: Any, kwargs: dict[str, Any]) -> None:
    """Run a fairseq command in ``--distributed-world-size`` processes on CPUs, connected by gloo.

    Args:
        cfg: Config of the command, changed in place.
        main: Main function of the command.
        kwargs: Further arguments of ``main``.
    """
    import torch

    # fairseq would start one process per GPU: none, and end with status 0 without training
    distributed = cfg.distributed_training
    port = distributed.distributed_port
    # as fairseq does for processes on GPUs
    if port <= 0:
        port = random.randint(10000, 60000)
    distributed.distributed_init_method = f"tcp://localhost:{port}"
    distributed.distributed_backend = "gloo"
    distributed.distributed_num_procs = distributed.distributed_world_size
    distributed.distributed_rank = None
    torch.multiprocessing.spawn(
        run_process, (main, cfg, {**kwargs, "start_rank": 0}), distributed.distributed_world_size
    )


def refuse_more_processes_than_gpus() -> None:
    """Make fairseq refuse more processes than GPUs by a UserError that names the option."""
    from fairseq.distributed import utils

    original = utils._infer_single_node_init

    @functools.wraps(original)
    def infer(cfg: Any) -> None:
        import torch

        gpus = torch.cuda.device_count()
        if cfg.distributed_world_size > gpus:
            raise UserError(
                f"--distributed-world-size (GPUS of a recipe) is {cfg.distributed_world_size}, but "
                f"{gpus} GPUs are visible: give {gpus} at most, or start one process a GPU on "
                "several machines by torchrun or srun."
            )
        original(cfg)

    utils._infer_single_node_init = infer


def run_process(device_id: int, main: Any, cfg: Any, kwargs: dict[str, Any]) -> None:
    """Run a fairseq command in one of several processes; replaces fairseq's ``distributed_main``.

    Unlike the original, it applies the repairs, makes data workers fork instead of spawn, and ends
    the process group. Configs that use nothing of this package are passed to the original.

    Args:
        device_id: Index of the process on this machine, from 0.
        main: Main function of the command.
        cfg: Config of the command.
        kwargs: Further arguments of ``main``.
    """
    import torch
    from fairseq.distributed import utils

    original = getattr(utils.distributed_main, "original", utils.distributed_main)
    importlib.import_module(__name__.partition(".")[0]).register()  # in a spawned process
    if not names_ours(cfg):
        original(device_id, main, cfg, kwargs)
        return
    activation.activate()
    _tune_process(on_cpu=cfg.common.cpu or not torch.cuda.is_available())
    is_spawned = cfg.distributed_training.distributed_rank is None
    # spawned data workers would import everything in each epoch, and leave semaphores behind
    if is_spawned and "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork", force=True)
    original(device_id, main, cfg, kwargs)
    # PyTorch requires that a process group is ended; fairseq leaves it
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


run_process.original = None  # type: ignore[attr-defined]


def _tune_process(*, on_cpu: bool) -> None:
    """Make this process faster if it is a fairseq command.

    With ``on_cpu``, the allocator keeps freed memory, and dropout masks are drawn faster. When the
    command ends, Python does not search its objects for cycles, which takes .4 s after an import of
    fairseq.
    """
    if not is_program():
        return
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    if on_cpu:
        allocator.keep_freed_memory()
        dropout_masks.draw_in_words()


def name_processes_by_this_module() -> None:
    """Replace fairseq's ``distributed_main`` by :func:`run_process`."""
    from fairseq.distributed import utils

    # a spawned process imports the function by its module and name
    run_process.original = utils.distributed_main  # type: ignore[attr-defined]
    utils.distributed_main = run_process


def watch_commands() -> None:
    """Wrap fairseq's ``call_main``, through which all commands of fairseq start.

    If the command's config names a task, model or the like of this package, the wrapper applies all
    repairs, corrects the settings and starts several processes if there are no GPUs. Other commands
    are not changed.
    """
    from fairseq.distributed import utils

    original = utils.call_main

    @functools.wraps(original)
    def call_main(cfg: Any, main: Any, **kwargs: Any) -> Any:
        import torch
        from omegaconf import open_dict

        if not names_ours(cfg):
            return original(cfg, main, **kwargs)
        activation.activate()
        # started as `python -m`, the program's module is __main__, so its name says nothing
        module = sys.modules.get(getattr(main, "__module__", None) or "")
        is_training = hasattr(module, "validate_and_save")
        if is_training and cfg.optimizer is None:
            raise UserError("--optimizer must be given, such as adam with --lr 1e-3, but is not.")
        check_sampling(cfg.generation)
        configure_command(cfg)
        distributed = cfg.distributed_training
        with open_dict(cfg):
            configure_launch(cfg)
            on_cpu = cfg.common.cpu or not torch.cuda.is_available()
            _tune_process(on_cpu=on_cpu)
            check_ddp_backend(cfg, on_cpu=on_cpu)
            check_block_momentum(cfg)
            if distributed.distributed_world_size > 1 and not distributed.distributed_no_spawn:
                _forward_signal()
                if on_cpu and distributed.distributed_init_method is None:
                    return spawn_on_cpu(cfg, main, kwargs)
        if main.__module__ != "fairseq_cli.validate":
            return original(cfg, main, **kwargs)
        with named_failures(cfg.common_eval.path, "cannot be validated with its criterion"):
            return original(cfg, main, **kwargs)

    utils.call_main = call_main


# Stopping ------------------------------------------------------------------------------------

_has_signal = False  # True if this process has received the signal
_stops = False  # True if all processes have agreed to stop


def stop_on_signal() -> None:
    """Make trainings stop when they receive ``SIGUSR1``; the same command then continues them.

    The training finishes the current update, saves ``checkpoint_last.pt`` without validation, and
    ends. If the update is the last of an epoch, the epoch ends as usual, with validation, and the
    training stops after the first update of the next epoch.
    """
    from fairseq.trainer import Trainer

    original = Trainer.__init__

    @functools.wraps(original)
    def init(self: Any, cfg: Any, task: Any, *args: Any, **kwargs: Any) -> None:
        original(self, cfg, task, *args, **kwargs)
        if not is_ours(task) and not names_ours(cfg):
            return
        _handle(_note)
        # the program that trains is imported by now under one of the two names
        for name in ("fairseq_cli.train", "__main__"):
            module = sys.modules.get(name)
            function = getattr(module, "validate_and_save", None)
            if function is not None and not hasattr(function, "__wrapped__"):
                module.validate_and_save = _saving_on_signal(function)

    Trainer.__init__ = init


def _handle(handler: Any) -> None:
    # Python sets handlers in the main thread only, and Windows has no SIGUSR1
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and hasattr(signal, "SIGUSR1"):
        global _has_signal, _stops
        _has_signal = _stops = False
        signal.signal(signal.SIGUSR1, handler)


def _note(number: int, frame: Any) -> None:
    global _has_signal
    _has_signal = True


def _forward_signal() -> None:
    """Make this process pass ``SIGUSR1`` on to the processes that it starts."""

    def forward(number: int, frame: Any) -> None:
        for child in multiprocessing.active_children():
            if child.pid is not None:
                os.kill(child.pid, number)

    _handle(forward)


def _saving_on_signal(original: Any) -> Any:
    @functools.wraps(original)
    def validate_and_save(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: Any, end_of_epoch: bool
    ) -> Any:
        last = cfg.optimization.max_update or math.inf
        is_last = end_of_epoch or trainer.get_num_updates() >= last
        # asked before the other condition, because all processes must communicate at the same
        # update
        if not _is_stopped(trainer) or is_last:
            losses, stops = original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
            if stops:
                end_workers()
            return losses, stops
        from fairseq import checkpoint_utils

        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
        end_workers()
        if trainer.is_data_parallel_master:
            logger.warning(
                f"stopped by SIGUSR1 after {trainer.get_num_updates()} updates: the same command "
                f"continues from checkpoint_last.pt in {cfg.checkpoint.save_dir}."
            )
        return [None], True

    return validate_and_save


def _is_stopped(trainer: Any) -> bool:
    """Return True if any process has received ``SIGUSR1``.

    All processes of the training must call this after every update; they get the same answer.
    """
    import torch
    from fairseq.distributed import utils

    global _stops
    if trainer.data_parallel_world_size == 1:
        _stops = _has_signal
    # all processes must stop at the same update, but each may get the signal at another
    elif not _stops and trainer.get_num_updates() % UPDATES_BETWEEN_AGREEMENTS == 0:
        count = torch.tensor([_has_signal], dtype=torch.float32, device=trainer.device)
        utils.all_reduce(count, group=trainer.data_parallel_process_group)
        _stops = bool(count.item())
    return _stops
