"""Recipes, run with programs that only write down how they were called."""

import os
import subprocess

import pytest

OF_RECIPES = ("SIZE", "GPUS", "PAPER")  # variables that recipes read
PROGRAMS = ("fairseq-train", "fairseq-generate", "fairseq-mm")


@pytest.fixture
def run_recipe(tmp_path):
    """Runs a recipe of an example's folder; returns the arguments of each command that it called,
    or, where it is to fail, what it printed on stderr. ``prints``: program -> what it prints."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        text = f'#!/bin/sh\nprintf \'%s\\0\' {name} "$@" >> "$RECORD"\necho >> "$RECORD"\n'
        text += f'test ! -e "$RECORD.{name}" || cat "$RECORD.{name}"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(example, recipe, *arguments, status=0, prints=None, **variables):
        record = tmp_path / "calls"
        for program, text in (prints or {}).items():
            (tmp_path / f"calls.{program}").write_text(text)
        record.write_text("")
        done = subprocess.run(
            ["bash", str(example / f"{recipe}.sh"), *map(str, arguments)],
            cwd=tmp_path,
            env={
                **{name: x for name, x in os.environ.items() if name not in OF_RECIPES},
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "RECORD": str(record),
                **variables,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        calls = [line.split("\0")[:-1] for line in record.read_text().split("\n")[:-1]]
        return calls if status == 0 else done.stderr

    return run
