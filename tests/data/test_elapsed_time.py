"""The line that shows the time of a computation without a progress bar."""

import io
import re
import sys
import threading
import time

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


def test_the_name_changes_with_the_part_of_the_work(monkeypatch, stderr):
    monkeypatch.setattr(module, "DELAY", 0.001)
    monkeypatch.setattr(module, "INTERVAL", 0.001)
    stream = stderr(is_terminal=True)
    with elapsed_time("tokenize") as show:
        assert stream.is_written.wait(30)
        show("cider")
        for _ in range(3000):
            if "cider" in stream.getvalue():
                break
            time.sleep(0.01)
    assert re.search(r"tokenize: 00:.*cider: 00:", stream.getvalue(), re.DOTALL)


def test_short_work_shows_nothing(stderr):
    stream = stderr(is_terminal=True)
    with elapsed_time("meteor"):
        pass
    assert stream.getvalue().strip() == ""


def test_a_pipe_gets_nothing(monkeypatch, stderr):
    monkeypatch.setattr(module, "DELAY", 0.001)
    stream = stderr(is_terminal=False)
    count = threading.active_count()
    with elapsed_time("meteor"):
        assert threading.active_count() == count
        assert not stream.is_written.wait(0.05)
    monkeypatch.setattr(sys, "stderr", None)
    with elapsed_time("meteor"):
        pass


def test_errors_pass_and_end_the_line(stderr):
    stderr(is_terminal=True)
    count = threading.active_count()
    with pytest.raises(KeyError), elapsed_time("meteor"):
        raise KeyError("x")
    assert threading.active_count() == count
