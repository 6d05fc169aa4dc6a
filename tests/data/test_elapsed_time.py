"""The line that shows the time of a computation without a progress bar."""

import io
import re
import sys
import threading

import pytest

from fairseq_mm.data import elapsed_time as module
from fairseq_mm.data.elapsed_time import elapsed_time


class Stream(io.StringIO):
    """Standard error of a terminal, or of a pipe; says when something has been written."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal
        self.is_written = threading.Event()

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        count = super().write(text)
        if text.strip():
            self.is_written.set()
        return count


@pytest.fixture
def stderr(monkeypatch):
    def install(*, is_terminal):
        stream = Stream(is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return install


def test_a_terminal_shows_work_and_time(monkeypatch, stderr):
    monkeypatch.setattr(module, "DELAY", 0.001)
    stream = stderr(is_terminal=True)
    with elapsed_time("meteor"):
        assert stream.is_written.wait(30)
    text = stream.getvalue()
    assert re.search(r"meteor: 00:0\d", text)
    # the line is removed
    assert text.endswith("\r")
    assert text.split("\r")[-2].strip() == ""


def test_short_work_shows_nothing(stderr):
    stream = stderr(is_terminal=True)
    with elapsed_time("meteor"):
        pass
    assert stream.getvalue().strip() == ""


def test_a_pipe_gets_nothing(monkeypatch, stderr):
    monkeypatch.setattr(module, "DELAY", 0.001)
    stderr(is_terminal=False)
    count = threading.active_count()
    with elapsed_time("meteor"):
        assert threading.active_count() == count
    monkeypatch.setattr(sys, "stderr", None)
    with elapsed_time("meteor"):
        pass


def test_errors_pass_and_end_the_line(stderr):
    stderr(is_terminal=True)
    count = threading.active_count()
    with pytest.raises(KeyError), elapsed_time("meteor"):
        raise KeyError("x")
    assert threading.active_count() == count
