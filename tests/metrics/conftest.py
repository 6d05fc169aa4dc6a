"""Fixtures shared by the tests of metrics."""

import os
import stat
import sys

import pytest


@pytest.fixture
def java_that(tmp_path, monkeypatch):
    """Puts a program named java that runs the given Python lines first on the PATH."""
    pytest.importorskip("pycocoevalcap")

    def install(code):
        program = tmp_path / "java"
        program.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install
