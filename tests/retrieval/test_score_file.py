"""Scores survive a kill at every point, and no run continues another's."""

import errno
import os

import numpy as np
import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.score_file import ScoreFile

S, N = 7, 4
BLOCKS = [np.array([5, 0, 3]), np.array([1, 2]), np.array([6, 4])]
LOG_PROBS = -np.arange(S * N, dtype=np.float32).reshape(S, N) - 1
MARGINALS = -np.arange(S, dtype=np.float64) / 3
IDENTITY = {"checkpoint": "abc", "images": 4, "sizes": (1, 2)}


def open_file(folder, **changes):
    return ScoreFile(folder, {**IDENTITY, **changes}, S, N)


def write(file, block):
    rows = BLOCKS[block]
    file.write_block(block, rows, LOG_PROBS[rows], MARGINALS[rows])


def test_finished_scores_are_read_back(tmp_path):
    file = open_file(tmp_path / "new" / "folder")
    for block in (0, 1, 2):
        write(file, block)
    assert not file.is_finished
    file.finish()
    again = open_file(tmp_path / "new" / "folder")
    assert again.is_finished
    np.testing.assert_array_equal(again.log_probs, LOG_PROBS)
    np.testing.assert_array_equal(again.log_marginals, MARGINALS)
    assert sorted(path.name for path in again.folder.iterdir()) == [
        "log_marginals.npy",
        "log_probs.npy",
        "scores.json",
    ]


def test_a_killed_run_continues_after_its_last_block(tmp_path):
    file = open_file(tmp_path)
    write(file, 2)
    file.log_probs[BLOCKS[0]] = 99  # killed between the scores of a block and its record
    again = open_file(tmp_path)
    assert again.finished_blocks == {2}
    write(again, 0)
    write(again, 1)
    again.finish()
    np.testing.assert_array_equal(open_file(tmp_path).log_probs, LOG_PROBS)


def test_half_a_line_of_the_record_does_not_count(tmp_path):
    write(open_file(tmp_path), 1)
    with open(tmp_path / "scores.blocks", "a") as file:
        file.write("2")
    file = open_file(tmp_path)
    assert file.finished_blocks == {1}
    write(file, 0)
    assert open_file(tmp_path).finished_blocks == {0, 1}


def test_a_kill_before_the_identity_is_written_starts_anew(tmp_path):
    write(open_file(tmp_path), 1)
    (tmp_path / "scores.json").unlink()
    assert open_file(tmp_path).finished_blocks == set()


def test_a_kill_between_the_two_final_names_continues(tmp_path):
    file = open_file(tmp_path)
    for block in (0, 1, 2):
        write(file, block)
    (tmp_path / "log_probs.partial.npy").rename(tmp_path / "log_probs.npy")
    again = open_file(tmp_path)
    assert again.finished_blocks == {0, 1, 2}
    again.finish()
    np.testing.assert_array_equal(open_file(tmp_path).log_probs, LOG_PROBS)


def test_a_kill_after_the_final_names_leaves_no_record(tmp_path):
    file = open_file(tmp_path)
    for block in (0, 1, 2):
        write(file, block)
    record = (tmp_path / "scores.blocks").read_text()
    file.finish()
    (tmp_path / "scores.blocks").write_text(record)
    assert open_file(tmp_path).is_finished
    assert not (tmp_path / "scores.blocks").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_scores_of_something_else_are_refused(tmp_path, finished):
    file = open_file(tmp_path)
    write(file, 1)
    if finished:
        file.finish()
    with pytest.raises(UserError, match=r"scores with checkpoint = 'abc', but this run has 'xyz'"):
        open_file(tmp_path, checkpoint="xyz")
    with pytest.raises(UserError, match=r"scores with seed = None, but this run has 3 "):
        open_file(tmp_path, seed=3)


def test_files_that_are_not_whole_are_refused(tmp_path):
    open_file(tmp_path)
    with pytest.raises(UserError, match=r"log_probs.partial.npy: must be an array \(8, 4\)"):
        ScoreFile(tmp_path, IDENTITY, S + 1, N)
    (tmp_path / "log_marginals.partial.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"log_marginals.partial.npy: cannot be read"):
        open_file(tmp_path)
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(UserError, match=r"scores.json: must be a JSON object; delete"):
        open_file(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/scores: cannot be made: Not a directory"):
        open_file(tmp_path / "file" / "scores")


def test_a_full_disk_is_one_line_and_no_signal(tmp_path, monkeypatch):
    def refuse(handle, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(UserError, match=r"log_probs.*: cannot be written \(No space left"):
        open_file(tmp_path)
