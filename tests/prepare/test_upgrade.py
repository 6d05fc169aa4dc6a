"""``fairseq-mm prepare upgrade``: folders of version 0.2 and of fairseq-preprocess as records.

That generation is the same before and after is tested with the golden checkpoints.
"""

import json
import os

import pytest
from written_folder import binarised, names_in, records, tokens

from fairseq_mm.cli.main import main
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.prepare import data_folder

ENTRIES = [
    {"image": "1.jpg", "captions": ["A dog runs.", "A brown dog!"]},
    {"image": "2.jpg", "captions": ["Two cats"]},
]


@pytest.fixture
def prepared(tmp_path):
    """Prepared captions in which files of version 0.2 stand in place of the records."""
    data, folder = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text("".join(f"{json.dumps(entry)}\n" for entry in ENTRIES))
    arguments = [str(data), "--threshold", "1", "--output", str(folder)]
    assert main(["prepare", "captions", *arguments]) == 0
    lines = ["a dog runs", "a brown dog", "two cats"]
    (folder / "text").mkdir()
    (folder / "text" / "train.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.visual_ids").write_text("1.jpg\n1.jpg\n2.jpg\n")
    (folder / "train.tags").write_text("D N V\nD A N\nN N\n")
    references = [{"id": entry["image"], "references": entry["captions"]} for entry in ENTRIES]
    path = folder / "train.references.jsonl"
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in references))
    (folder / "train.jsonl").unlink()
    (folder / "features.h5").write_text("took hours")
    report = json.loads((folder / "prepare.json").read_text())
    report = {**report, "command": "fairseq-preprocess", "package_version": "0.1"}
    (folder / "prepare.json").write_text(json.dumps(report))
    return folder


KEPT = ["dict.txt", "features.h5", "prepare.json", "train.bin", "train.idx", "train.jsonl"]


def upgrade(folder):
    return main(["prepare", "upgrade", str(folder)])


def check(folder):
    assert names_in(folder) == KEPT
    assert records(folder, "train") == [
        {"id": "1.jpg", "captions": ENTRIES[0]["captions"], "tags": ["D N V", "D A N"]},
        {"id": "2.jpg", "captions": ENTRIES[1]["captions"], "tags": ["N N"]},
    ]
    assert binarised(folder, "train") == tokens(folder, "train")


def test_a_folder_of_version_0_2_becomes_records(prepared, capsys):
    text = (prepared / "train.bin").read_bytes()
    assert upgrade(prepared) == 0
    assert capsys.readouterr().out.endswith(f"{prepared}: wrote train.jsonl\n")
    check(prepared)
    assert (prepared / "train.bin").read_bytes() == text
    report = json.loads((prepared / "prepare.json").read_text())
    assert "command" not in report
    assert report["package_version"] != "0.1"
    before = (prepared / "prepare.json").stat().st_mtime_ns
    assert upgrade(prepared) == 0
    assert capsys.readouterr().out == f"{prepared}: nothing is to do\n"
    assert (prepared / "prepare.json").stat().st_mtime_ns == before


def test_tokens_that_the_tokenizer_does_not_make_stay_in_the_records(prepared):
    path = prepared / "text" / "train.txt"
    path.write_text(path.read_text().replace("a dog runs", "a dog run"))
    assert upgrade(prepared) == 0
    with_tokens, without = records(prepared, "train")
    assert with_tokens["tokens"] == ["a dog run", "a brown dog"]
    assert "tokens" not in without


@pytest.mark.parametrize("changed", ["", "a dog\n", "a dog runs\na brown dog\na dog runs\na dog\n"])
def test_text_of_other_words_than_were_binarised_is_refused(prepared, changed, capsys):
    path = prepared / "text" / "train.txt"
    path.write_text(changed)
    with pytest.raises(UserError, match="must be the text that was binarised to"):
        open_split(prepared, "train").tokens()
    assert upgrade(prepared) == 2
    assert f"{path}:" in capsys.readouterr().err
    assert not (prepared / "train.jsonl").exists()


def test_a_folder_of_fairseq_preprocess_becomes_records(prepared):
    for name in ("text/train.txt", "train.tags", "train.references.jsonl", "prepare.json"):
        (prepared / name).unlink()
    before = open_split(prepared, "train")
    texts, references = before.texts, before.references()
    assert upgrade(prepared) == 0
    assert names_in(prepared) == KEPT
    after = open_split(prepared, "train")
    assert (after.texts, after.references()) == (texts, references)
    assert binarised(prepared, "train") == tokens(prepared, "train") == texts


def test_a_folder_without_splits_is_refused(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "none"):
        assert upgrade(folder) == 2
        assert f"{folder}: is no data folder: it has no split.\n" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("call", range(3))
def test_a_killed_upgrade_is_completed_by_the_next(prepared, monkeypatch, call):
    class KilledError(BaseException):
        pass

    real, calls = os.replace, iter(range(100))

    def replace_or_die(*args):
        if next(calls) == call:
            raise KilledError
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(data_folder.os, "replace", replace_or_die)
        patch.setattr(data_folder.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KilledError):
            upgrade(prepared)
    assert upgrade(prepared) == 0
    check(prepared)


def test_prompts_and_stories_of_unequal_length_are_one_line(tmp_path, capsys):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.wp_source").write_text("a\nb\n")
    (tmp_path / "text" / "train.wp_target").write_text("c\n")
    assert upgrade(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "its prompt, story: must agree line by line (zip() argument" in line
