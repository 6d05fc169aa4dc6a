"""A user's mistake is one line and exit status 2, whatever wrapped it on its way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_mm
from fairseq_mm.errors import UserError, first_line, import_extra

SCRIPT = """
from fairseq_mm import errors
errors.report_on_exit()
def fail():
    raise errors.UserError("x.txt:3: must be one,\\n but is two.")
{body}
"""


def run(body, python=sys.executable):
    script = SCRIPT.format(body=body)
    return subprocess.run([python, "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize(
    "body",
    [
        "fail()",
        "try:\n    fail()\nexcept Exception:\n    raise Exception('Cannot load model parameters')",
        "try:\n    fail()\nexcept Exception as e:\n    raise RuntimeError('cannot') from e",
    ],
)
def test_uncaught_mistake_is_one_line_and_status_2(body):
    result = run(body)
    assert result.returncode == 2
    assert result.stderr == "error: x.txt:3: must be one, but is two.\n"


def test_mistake_in_a_data_loader_is_one_line(started_python):
    body = (
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): fail()\n"
        "list(torch.utils.data.DataLoader(Data(), num_workers=1))"
    )
    result = run(body, started_python)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: x.txt:3: must be one, but is two."
    assert "Traceback" not in result.stderr


def test_mistake_in_a_spawned_process_is_one_line(tmp_path):
    path = tmp_path / "spawned.py"
    path.write_text(
        "import torch.multiprocessing as mp\n"
        "from fairseq_mm import errors\n"
        "def work(i):\n"
        "    # as torch's data loader does it in its own processes\n"
        "    name = 'fairseq_mm.errors.UserError'\n"
        "    raise errors.UserError(f'Caught UserError in x. {name}: x.txt:3: must be one.')\n"
        "if __name__ == '__main__':\n"
        "    errors.report_on_exit()\n"
        "    mp.spawn(work, nprocs=1)\n"
    )
    root = Path(fairseq_mm.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == "error: x.txt:3: must be one."


@pytest.mark.parametrize(
    "body",
    [
        "raise RuntimeError('a bug')",
        "try:\n    fail()\nexcept ValueError:\n    None + 1",
        "try:\n    None + 1\nexcept TypeError:\n    len(3)",
    ],
)
def test_other_errors_keep_their_traceback(body):
    result = run(body)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "error: x.txt" not in result.stderr


def test_an_interruption_is_one_word():
    result = run("raise KeyboardInterrupt")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_missing_extra_names_the_command_that_helps():
    with pytest.raises(
        UserError, match=r"^reading HEIC needs the package no_such_module, .* 'fairseq-mm\[heif\]'$"
    ):
        import_extra("no_such_module.part", extra="heif", purpose="reading HEIC")


def test_a_foreign_error_is_told_by_its_first_line_or_its_class():
    assert first_line(OSError("\nno route\nto the hub")) == "no route"
    assert first_line(OSError(300 * "x")) == 200 * "x"
    assert first_line(AssertionError(" \n")) == "AssertionError"
