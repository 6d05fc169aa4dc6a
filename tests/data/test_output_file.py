"""Output is whole or absent, and never takes the place of a device."""

import os
import platform
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.data.output_file import output_file, partial_path
from fairseq_mm.errors import UserError


def write(path, text="new\n"):
    with output_file(path) as file:
        file.write(text)


def test_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old\n")
    with output_file(path) as file:
        file.write("new\n")
        file.flush()
        assert path.read_text() == "old\n"
    assert path.read_text() == "new\n"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_link_stays_a_link(tmp_path):
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new\n"


def test_pipe_is_written_to_and_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    try:
        write(path)
    finally:
        if not path.is_fifo():  # a reader of a pipe that is gone would wait for ever
            pytest.fail("the pipe was replaced")
        reader.join()
    assert read == ["new\n"]


def test_standard_output_is_written_to_and_stays(tmp_path):
    before = os.stat("/dev/stdout", follow_symlinks=False)
    code = (
        "from fairseq_mm.data.output_file import output_file\n"
        "print('first', flush=True)\n"
        "with output_file('/dev/stdout') as file: file.write('second')"
    )
    command = [sys.executable, "-c", "import sys; sys.argv = ['fairseq-mm']\n" + code]
    # in a file: the shell's `> file`
    with open(tmp_path / "out", "wb") as out:
        subprocess.run(command, check=True, stdout=out)
    assert (tmp_path / "out").read_text() == "first\nsecond"
    assert os.stat("/dev/stdout", follow_symlinks=False).st_ino == before.st_ino


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "Is a directory"),
        ("absent/a.txt", "No such file or directory"),
        ("file/a.txt", "Not a directory"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, name, reason):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=rf"cannot be written \({reason}\)\.$"):
        write(tmp_path / name)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_is_named():
    with pytest.raises(UserError, match=r"^/dev/full: cannot be written \(No space left"):
        write("/dev/full")


def left_by(process, path, *, host=None, age=0):
    """What a killed process leaves beside ``path``."""
    host = re.sub(r"[^\w-]", "-", platform.node()) if host is None else host
    left = path.with_name(".".join(filter(None, (path.name, host, str(process), "partial"))))
    left.write_text("half")
    os.utime(left, (time.time() - age,) * 2)
    return left


def test_what_killed_writers_left_is_removed_and_what_living_ones_write_stays(tmp_path):
    path = tmp_path / "a.txt"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [left_by(gone.pid, path), left_by(7, path, host="", age=2e5)]
    left.append(left_by(7, path, host="other-machine", age=2e5))
    stay = [left_by(os.getppid(), path), left_by(7, path, host="another-machine")]
    stay.append(left_by(gone.pid, tmp_path / "b.txt"))
    stay.append(left_by(gone.pid, tmp_path / "a.txt.gz"))
    write(path)
    assert not any(map(Path.exists, left))
    assert all(map(Path.exists, stay))
    assert path.read_text() == "new\n"


def test_folders_of_killed_writers_are_removed(tmp_path):
    target = tmp_path / "converted"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with partial_path(str(target)) as partial:
        left = Path(partial.replace(str(os.getpid()), str(gone.pid)))
        left.mkdir()
        (left / "model.pt").write_text("half")
    with output_folder(str(target)) as folder:
        Path(folder, "model.pt").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["converted"]
