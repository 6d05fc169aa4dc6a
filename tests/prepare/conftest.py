"""Fixtures shared by the tests of preparation."""

import json

import pytest


@pytest.fixture
def jsonl(tmp_path):
    def write(*entries, name="data.jsonl"):
        path = tmp_path / name
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write
