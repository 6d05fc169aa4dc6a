"""Commands that start within milliseconds, as forks of a process that has imported before.

:class:`ForkedShell` runs scripts in which fairseq's commands, ``fairseq-mm`` and ``python`` are
forks of this process, with PyTorch, fairseq and the package. This file as a program serves a
``python`` that has imported what fairseq needs, but neither fairseq nor the package.
"""

import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

# sends its arguments, folder, environment and streams; ends with the status that comes back
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
call = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)])
socket.send_fds(server, [b"."], [0, 1, 2])
with server.makefile("rw") as stream:
    print(call, file=stream, flush=True)
    sys.exit(int(stream.readline() or 70))
"""


# torch._dynamo is what the first step of an optimizer imports, for seconds
IMPORTED_ONCE = (
    *("fairseq_cli.generate", "fairseq_cli.train", "torch._dynamo", "torchvision"),
    *("fairseq_mm.inference.pretrained", "fairseq_mm.extract.backbones"),
    *("hydra.core.override_parser.overrides_parser", "matplotlib.backends.backend_agg"),
    *("matplotlib.figure", "jinja2", "PIL.ImageMath", "PIL.GifImagePlugin", "tqdm.auto"),
)

# what takes seconds of `import fairseq`, and of training and reading features with it
NEEDED_BY_FAIRSEQ = (
    *("torch", "torchaudio", "sklearn.metrics", "scipy.stats", "hydra.experimental", "omegaconf"),
    *("sacrebleu", "bitarray", "h5py", "fairscale", "torch._dynamo", "torchvision"),
)


# seconds after which a command is ended
LIMIT = 300


def import_once() -> None:
    """Import what forked commands would each import for themselves."""
    for module in IMPORTED_ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


class Done(NamedTuple):
    status: int
    output: str


class ForkedShell:
    """bash in a folder.

    Args:
        folder: where scripts run; ``.shell`` in it has the commands.
        adapt: changes the arguments of a command, given its name, before it runs.
        variables: further ones of the environment.

    Skips the test where processes cannot be forked.
    """

    PROGRAMS = (
        *("fairseq-mm", "fairseq-preprocess", "fairseq-train", "fairseq-generate"),
        *("fairseq-hydra-train", "python"),
    )

    def __init__(
        self,
        folder: Path,
        adapt: Callable[[str, list[str]], list[str]] = lambda name, words: words,
        variables: Mapping[str, str] = {},
    ) -> None:
        import pytest
        import quick_configuration
        from toy_processes import CANNOT_FORK

        if CANNOT_FORK:
            pytest.skip(CANNOT_FORK)
        self.folder, self.adapt = folder, adapt
        import_once()
        quick_configuration.prepare()
        programs = folder / ".shell"
        self.server = _listen(programs, self.PROGRAMS)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        }

    def run(self, script: str) -> Done:
        """Stops at the first command that fails; standard error is part of the output."""
        log = self.folder / ".shell" / "output"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            children = []
            while process.poll() is None:
                if select.select([self.server], [], [], 0.05)[0]:
                    children.append(self._fork())
            for child in children:
                os.waitpid(child, 0)
        return Done(process.returncode, log.read_text("utf-8", "replace"))

    def close(self) -> None:
        self.server.close()

    def _fork(self) -> int:
        return _fork(self.server, lambda name, words: call_program(name, self.adapt(name, words)))


def _listen(folder: Path, names: Sequence[str]) -> socket.socket:
    """Writes programs of these names into a new folder; they connect to the socket."""
    folder.mkdir()
    address = str(folder / "socket")
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    for name in names:
        (folder / name).write_text(CLIENT.format(python=sys.executable, address=address))
        (folder / name).chmod(0o755)
    return server


def _fork(server: socket.socket, call: Callable[[str, list[str]], int]) -> int:
    """Process id of a child that calls with the next program's name and arguments."""
    client, _ = server.accept()
    _, streams, *_ = socket.recv_fds(client, 1, 3)
    child = os.fork()
    if child:
        client.close()
        for stream in streams:
            os.close(stream)
        return child
    signal.alarm(LIMIT)
    with client.makefile("rw") as connection:
        name, words, folder, environment = json.loads(connection.readline())
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        status = call(name, words)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        print(status, file=connection, flush=True)
    os._exit(0)


def call_program(name: str, words: list[str]) -> int:
    """The command's exit status."""
    sys.argv = [name, *words]
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO if name.startswith("fairseq-") and name != "fairseq-mm" else "WARNING",
        stream=sys.stdout if name != "fairseq-mm" else sys.stderr,
        force=True,
    )
    try:
        status = _program(name, words)
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    return int(status or 0)


def _program(name: str, words: list[str]) -> object:
    if name == "fairseq-mm":
        from fairseq_mm.cli.main import main

        return main(words)
    if name == "python":
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        return runpy.run_path(words[0], run_name="__main__") and None
    from fairseq.checkpoint_utils import save_checkpoint

    # the best score of this process, by which a second training would write no checkpoint_best.pt
    vars(save_checkpoint).pop("best", None)
    module = name.replace("fairseq-", "").replace("-", "_")
    return importlib.import_module(f"fairseq_cli.{module}").cli_main()


def _call_python(_: str, words: list[str]) -> int:
    """The exit status of ``python FILE``, ``python -m MODULE`` or ``python -c CODE``."""
    sys.path[0] = "" if words[0].startswith("-") else str(Path(words[0]).parent)
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        elif words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code
    except BaseException:
        status = 1
        try:
            sys.excepthook(*sys.exc_info())
        except SystemExit as end:  # errors.report_on_exit
            status = end.code
    return int(status or 0)


def serve(folder: Path) -> None:
    """Writes a program ``python`` into a new folder, and runs it until standard input ends."""
    for module in NEEDED_BY_FAIRSEQ:
        with contextlib.suppress(ImportError, OSError):  # a library of another PyTorch
            importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = _listen(folder, ["python"])
    print("ready", flush=True)
    while sys.stdin not in select.select([sys.stdin, server], [], [])[0]:
        _fork(server, _call_python)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
