"""Runs shell scripts in which fairseq's commands, ``fairseq-mm`` and ``python`` are forks of this
process, which has PyTorch and fairseq imported already: a command starts within milliseconds."""

import contextlib
import importlib
import json
import logging
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
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
IMPORTED_ONCE = ("fairseq_cli.generate", "fairseq_cli.train", "torch._dynamo", "torchvision")


class Done(NamedTuple):
    status: int
    output: str


class ForkedShell:
    """bash in a folder.

    Args:
        folder: where scripts run; ``.shell`` in it has the commands.
        adapt: changes the arguments of a command, given its name, before it runs.
        variables: further ones of the environment.
    """

    PROGRAMS = ("fairseq-mm", "fairseq-train", "fairseq-generate", "fairseq-hydra-train", "python")

    def __init__(
        self,
        folder: Path,
        adapt: Callable[[str, list[str]], list[str]] = lambda name, words: words,
        variables: Mapping[str, str] = {},
    ) -> None:
        self.folder, self.adapt = folder, adapt
        for module in IMPORTED_ONCE:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        programs = folder / ".shell"
        programs.mkdir()
        address = str(programs / "socket")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(address)
        self.server.listen()
        for name in self.PROGRAMS:
            (programs / name).write_text(CLIENT.format(python=sys.executable, address=address))
            (programs / name).chmod(0o755)
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
        client, _ = self.server.accept()
        _, streams, *_ = socket.recv_fds(client, 1, 3)
        child = os.fork()
        if child:
            client.close()
            for stream in streams:
                os.close(stream)
            return child
        with client.makefile("rw") as connection:
            name, words, folder, environment = json.loads(connection.readline())
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            print(_call(name, self.adapt(name, words)), file=connection, flush=True)
        os._exit(0)


def _call(name: str, words: list[str]) -> int:
    """The command's exit status."""
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
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
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return int(status or 0)


def _program(name: str, words: list[str]) -> object:
    if name == "fairseq-mm":
        from fairseq_mm.cli.main import main

        return main(words)
    if name == "python":
        sys.argv = words
        return runpy.run_path(words[0], run_name="__main__") and None
    from fairseq.checkpoint_utils import save_checkpoint

    # the best score of this process, by which a second training would write no checkpoint_best.pt
    vars(save_checkpoint).pop("best", None)
    module = name.replace("fairseq-", "").replace("-", "_")
    return importlib.import_module(f"fairseq_cli.{module}").cli_main()
