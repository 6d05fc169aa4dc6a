"""Commands name the work that takes their time, on a terminal only."""

import contextlib
import json

import pytest

from fairseq_mm.cli import prepare, score
from fairseq_mm.prepare import writer


@pytest.fixture
def shown(monkeypatch):
    """Names of the work that commands show."""
    names = []

    @contextlib.contextmanager
    def elapsed_time(work):
        names.append(work)
        yield names.append

    for module in (prepare, score, writer):
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
    assert shown == ["tokenize", "tokenize references", "rouge_l", "bleu"]


@pytest.mark.parametrize(("workers", "binarize"), [(1, ["binarize"]), (2, [])])
def test_prepare_names_its_parts_and_none_that_forks(
    tmp_path, run_command, shown, workers, binarize
):
    lines = write(
        tmp_path / "lines.jsonl",
        [
            {"prompt": "a dog", "story": "a dog runs far", "split": split}
            for split in ("train", "valid")
        ],
    )
    arguments = ("prepare", "prompts", lines, "--output", tmp_path / "data")
    status, _, _ = run_command(
        *arguments, "--workers", workers, "--target-threshold", 1, "--source-threshold", 1
    )
    assert status == 0
    assert shown == ["read", *binarize, "count unknown words"]
