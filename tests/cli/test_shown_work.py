"""Commands name the work that takes their time, on a terminal only."""

import contextlib
import json

import pytest

from fairseq_mm.cli import score


@pytest.fixture
def shown(monkeypatch):
    """Names of the work that commands show."""
    names = []

    @contextlib.contextmanager
    def elapsed_time(work):
        names.append(work)
        yield names.append

    for module in (score,):
        monkeypatch.setattr(module, "elapsed_time", elapsed_time)
    return names


def write(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_score_names_each_metric(tmp_path, run_command, shown):
    texts = write(tmp_path / "texts.jsonl", [{"id": "a", "hypothesis": "a dog runs"}])
    references = write(tmp_path / "r.jsonl", [{"id": "a", "references": ["a dog sits"]}])
    arguments = ("score", texts, "--references", references, "--metrics", "rouge_l,bleu")
    status, _, err = run_command(*arguments)
    assert (status, err) == (0, "")
    assert shown == ["tokenize", "rouge_l", "bleu"]
