"""Scores survive a kill at every point, and no run continues another's."""

import os

import numpy as np
import pytest

from fairseq_mm.retrieval.score_file import PairScores, ScoreFile

S, N = 7, 4
BLOCKS = [np.array([5, 0, 3]), np.array([1, 2]), np.array([6, 4])]
LOG_PROBS = -np.arange(S * N, dtype=np.float32).reshape(S, N) - 1
MARGINALS = -np.arange(S, dtype=np.float64) / 3
SETTINGS = {"checkpoint": "abc", "images": 4, "sizes": (1, 2)}


def open_file(folder, **changes):
    return ScoreFile(str(folder), {**SETTINGS, **changes}, S, N)


def write(file, *blocks):
    for block in blocks:
        rows = BLOCKS[block]
        file.write(rows, LOG_PROBS[rows], MARGINALS[rows])


def test_scores_are_read_back(tmp_path):
    file = open_file(tmp_path)
    write(file, 0, 1, 2)
    file.finished[0].hardlink_to(file.partial[0])  # killed between the two renames
    open_file(tmp_path).finish()
    file.partial[0].unlink()
    again = open_file(tmp_path)
    again.finish()
    assert again.has(np.arange(S))
    np.testing.assert_array_equal(again.log_probs, LOG_PROBS)
    np.testing.assert_array_equal(again.log_marginals, MARGINALS)
    names = ["log_marginals.npy", "log_probs.npy", "scores.json"]
    assert sorted(os.listdir(tmp_path)) == names


def test_a_killed_run_continues_after_its_last_block(tmp_path):
    file = open_file(tmp_path)
    write(file, 2)
    file.log_probs[BLOCKS[0]] = 99  # killed before the marginals of the block
    again = open_file(tmp_path)
    assert [again.has(block) for block in BLOCKS] == [False, False, True]
    write(again, 0, 1)
    np.testing.assert_array_equal(open_file(tmp_path).log_probs, LOG_PROBS)


@pytest.mark.parametrize(
    "lost", ["scores.json", "log_probs.partial.npy", "log_marginals.partial.npy"]
)
def test_a_kill_before_all_files_are_there_starts_anew(tmp_path, lost):
    write(open_file(tmp_path), 1)
    (tmp_path / lost).unlink()
    assert not open_file(tmp_path).has(BLOCKS[1])


def test_pairs_come_back_to_the_last_bit(tmp_path):
    first = PairScores(str(tmp_path), SETTINGS)
    first.append([((3, 0), -1 / 3), ((3, 7), -1e-300)])
    first.append([((5, 1), -12.25)])
    expected = {(3, 0): -1 / 3, (3, 7): -1e-300, (5, 1): -12.25}
    assert PairScores(str(tmp_path), SETTINGS).scores == expected


@pytest.mark.parametrize("kept", [5, 40, -1])
def test_a_line_that_was_being_written_is_dropped_and_written_again(tmp_path, kept):
    file = PairScores(str(tmp_path), SETTINGS)
    file.append([((0, 1), -2.0)])
    whole = file.path.read_bytes()
    # cut in the first line, in the first line's end, or in the last
    header = whole.index(b"\n") + 1
    cut = kept if kept == 5 else (len(whole) - 1 if kept < 0 else header - 1)
    file.path.write_bytes(whole[:cut])
    again = PairScores(str(tmp_path), SETTINGS)
    assert again.scores == {}
    again.append([((0, 1), -2.0)])
    assert file.path.read_bytes() == whole
