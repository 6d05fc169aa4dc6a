"""The file of likelihoods: what a killed run leaves is used, what is of something else refused."""

import json

import pytest

from fairseq_mm.cli.rank_stories import PairScores
from fairseq_mm.errors import UserError

IDENTITY = {"checkpoints": ["ab12"], "words": 30}


def test_scores_come_back_to_the_last_bit(tmp_path):
    first = PairScores(str(tmp_path / "new"), IDENTITY)
    first.append([((3, 0), -1 / 3), ((3, 7), -1e-300)])
    first.append([((5, 1), -12.25)])
    assert PairScores(str(tmp_path / "new"), IDENTITY).scores == {
        (3, 0): -1 / 3,
        (3, 7): -1e-300,
        (5, 1): -12.25,
    }


@pytest.mark.parametrize("kept", [5, 40, -1])
def test_a_line_that_was_being_written_is_dropped_and_written_again(tmp_path, kept):
    file = PairScores(str(tmp_path), IDENTITY)
    file.append([((0, 1), -2.0)])
    whole = file.path.read_bytes()
    # cut in the first line, in the first line's end, or in the last
    header = whole.index(b"\n") + 1
    cut = kept if kept == 5 else (len(whole) - 1 if kept < 0 else header - 1)
    file.path.write_bytes(whole[:cut])
    again = PairScores(str(tmp_path), IDENTITY)
    assert again.scores == {}
    again.append([((0, 1), -2.0)])
    assert file.path.read_bytes() == whole


def test_scores_of_another_checkpoint_are_refused(tmp_path):
    PairScores(str(tmp_path), IDENTITY)
    with pytest.raises(UserError, match=r"with words = 30, but this run has 40: give another"):
        PairScores(str(tmp_path), {**IDENTITY, "words": 40})


def test_another_file_is_refused(tmp_path):
    file = PairScores(str(tmp_path), IDENTITY)
    for content in (
        "{}\n",
        '{"scores_of": 5}\n',
        json.dumps({"scores_of": IDENTITY}) + "\nnothing\n",
    ):
        file.path.write_text(content)
        with pytest.raises(UserError, match=r"is no file of likelihoods; delete it to start anew"):
            PairScores(str(tmp_path), IDENTITY)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"likelihoods.jsonl: cannot be written \(.*\)"):
        PairScores(str(tmp_path / "file" / "folder"), IDENTITY)
