"""``fairseq-mm serve`` starts, ends on a signal with status 0, and leaves no file."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from functools import partial

import pytest
import torch
from served import Client, Limits, running, wait_until
from toy_data import PACKAGE

from fairseq_mm.cli.main import main

# says which process gets the signals: the program may run as the fork of another, which has already
# chosen a folder for temporary files
PROGRAM = """
import os, sys, tempfile
tempfile.tempdir = None
from fairseq_mm.cli.main import main
print(os.getpid(), flush=True)
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def started(program, folder, *arguments, **environment):
    """A process of the command, the number for its signals, and a client of it."""
    command = [program, "-c", PROGRAM, "serve", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE.parent),
            "TMPDIR": str(folder),
            **environment,
        },
    )
    number = int(process.stdout.readline())
    try:
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/$", line)
        assert address, (line, process.communicate()[1])
        yield process, number, Client(int(address[1]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        process.communicate()


def test_a_signal_ends_the_server(started_python, models, images, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    arguments = ("--checkpoint", f"own={models['captions']}")
    with started(started_python, folder, *arguments) as (process, pid, client):
        (own,) = folder.iterdir()
        # larger than the part of a file that is kept in memory
        content = images[0].read_bytes() + bytes(2_000_000)
        status, record = client.upload("/api/caption", ("image", content, "a.png"))
        assert (status, record["system"]) == (200, "own")
        assert [*own.iterdir()] == []
        os.kill(pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert output == ""
    assert [line for line in errors.splitlines() if not line.startswith("own: --arch m_rnn")] == []
    assert [*folder.iterdir()] == []


def test_an_end_finishes_what_is_generated_and_refuses_what_waits(systems, gate, together, images):
    """As a signal does: ``stop`` is its handler."""
    part = ("image", images[0].read_bytes(), "a.png")
    answers = {}

    def send(name):
        answers[name] = client.upload("/api/caption", part)

    with running(systems, Limits()) as client, contextlib.ExitStack() as stack:
        together(partial(send, "generated"))
        gate.wait()
        together(partial(send, "waiting"))
        client.wait_for_requests(2)
        # a request whose body does not come
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", client.port)))
        connection.settimeout(10)
        connection.sendall(
            b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        client.wait_for_requests(3)
        client.http_server.stop()
        assert connection.recv(12) == b"HTTP/1.1 503"
        wait_until(lambda: answers)
        assert answers == {"waiting": (503, {"error": "the server is stopping."})}
        gate.open()
        wait_until(lambda: len(answers) == 2)
    assert answers["generated"][0] == 200


def test_a_token_of_the_environment_is_needed_and_not_printed(started_python, models, tmp_path):
    token = "0123456789abcdef"
    arguments = ("--checkpoint", models["story"], "--host", "127.0.0.1", "--max-words", 9)
    variables = {"FAIRSEQ_MM_TOKEN": token}
    with started(started_python, tmp_path, *arguments, **variables) as (process, pid, client):
        assert client.get("/api/systems")[0] == 401
        client.headers = {"Authorization": f"Bearer {token}"}
        status, about = client.get("/api/systems")
        assert (status, about["limits"]["words"]) == (200, 9)
        body = {"prompt": "a door", "options": {"min_len": 3}}
        assert client.post("/api/tell/prompt", body)[1]["options"]["max_len_b"] == 9
        assert token not in json.dumps(about)
        os.kill(pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert token not in output + errors


@pytest.fixture
def refused(run_command):
    """The line with which the command is refused."""

    def run(*arguments):
        status, output, errors = run_command("serve", "--device", "cpu", *arguments)
        assert (status, output) == (2, "")
        (line,) = errors.splitlines()
        return line.removeprefix("fairseq-mm serve: ")

    return run


def test_a_port_in_use(refused, models):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--checkpoint", models["story"], "--port", port)
    assert line == f"--host 127.0.0.1 --port {port}: cannot be opened (Address already in use)."


def test_hosts_of_other_machines_need_a_token(refused, models, tmp_path, monkeypatch):
    arguments = ("--checkpoint", models["story"], "--host", "0.0.0.0", "--port", 0)
    assert refused(*arguments) == (
        "--host 0.0.0.0: can be reached from other machines, and needs a token (--token-file FILE, "
        "or the variable FAIRSEQ_MM_TOKEN)."
    )
    file = tmp_path / "token"
    for token in ("", "short", "long enough, but has spaces", "0123456789abcdef\u00e4"):
        file.write_text(token)
        line = refused(*arguments, "--token-file", file)
        assert line.startswith(f"--token-file {file}: must have a token of at least 16 ASCII")
        assert not token or token not in line
    monkeypatch.setenv("FAIRSEQ_MM_TOKEN", "short")
    assert refused(*arguments).startswith("FAIRSEQ_MM_TOKEN: must have a token of at least 16")
    line = refused(*arguments, "--token-file", tmp_path / "none")
    assert line == f"--token-file {tmp_path / 'none'}: cannot be read (No such file or directory)."


def test_checkpoints_that_cannot_be_served(refused, models, tmp_path):
    assert refused("--checkpoint", "none.pt") == "none.pt: no such checkpoint or folder."
    assert refused("--checkpoint", "a=none.pt") == "none.pt: no such checkpoint or folder."
    line = refused("--checkpoint", models["story"], models["story"], "--port", 0)
    assert line.startswith("two systems are named conv_story_tiny: give them names")
    other = tmp_path / "text.pt"
    other.write_text("no checkpoint")
    assert refused("--checkpoint", other, "--port", 0).startswith(f"{other}: ")
    line = refused("--checkpoint", models["story"], "--host", "no.such.host.invalid")
    assert line == "--host no.such.host.invalid: has no address on this machine."
    line = refused("--checkpoint", models["story"], "--port", 0, "--weights", "none.pth")
    assert line == "--weights none.pth: no such file."


def test_a_model_of_another_task_is_refused(refused, models, tmp_path):
    state = torch.load(models["story"] / "checkpoint_best.pt", weights_only=False)
    state["cfg"]["task"]["_name"] = "masked_lm"
    torch.save(state, tmp_path / "other.pt")
    line = refused("--checkpoint", tmp_path / "other.pt", "--port", 0)
    assert line == (
        f"{tmp_path / 'other.pt'}: --arch conv_story_tiny (--task masked_lm) cannot be served: it "
        "is no model of captions, stories or summaries."
    )


def test_ports_are_numbers(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--checkpoint", "a.pt", "--port", "65536"])
    assert ended.value.code == 2
    assert "must be a number from 0 to 65535, but is '65536'" in capsys.readouterr().err
