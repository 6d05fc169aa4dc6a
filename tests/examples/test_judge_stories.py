"""judge_stories.py: how often a story is most likely under its own images."""

import runpy
from types import SimpleNamespace

import pytest
from fairseq.data import Dictionary
from toy_data import PACKAGE

from fairseq_mm.errors import UserError

PROGRAM = str(PACKAGE.parent / "examples/visual_storytelling/judge_stories.py")
ALBUMS = [f"album {n}" for n in range(11)]
ONE = SimpleNamespace(others=10, seed=1)


class Judge:
    """A model by which ``better`` other albums of each story are likelier than its own."""

    dictionary = Dictionary()

    def __init__(self, better):
        self.better = better

    def score_tokens(self, targets, conditions, batch_size):
        own = None
        for place, (_, album) in enumerate(zip(targets, conditions)):
            if place % 11 == 0:
                own, rank = album, 0
            else:
                rank += 1
                assert album != own
            log_prob = -2.0 if rank == 0 else -1.0 if rank <= self.better else -3.0
            yield SimpleNamespace(positional_scores=[log_prob / 2, log_prob / 2])


@pytest.fixture(scope="module")
def first_share():
    return runpy.run_path(PROGRAM)["first_share"]


# of 10 sets of 9 other albums, one lacks the album that is likelier
@pytest.mark.parametrize(("better", "share"), [(0, 1.0), (1, 0.1), (2, 0.0)])
def test_the_share_is_the_mean_over_all_sets_of_nine(first_share, better, share):
    found = first_share(Judge(better), ["a dog ."] * 11, ALBUMS, ALBUMS, ONE)
    assert found == pytest.approx(share)


def test_fewer_than_nine_other_albums_are_refused(first_share):
    with pytest.raises(UserError, match=r"must be 9 or more, .* but only 8 can be compared"):
        first_share(Judge(0), ["a"] * 11, ALBUMS, ALBUMS, SimpleNamespace(others=8, seed=1))
    albums = [*ALBUMS[:9], "album 0", "album 0"]
    with pytest.raises(UserError, match="only 8 can be compared"):
        first_share(Judge(0), ["a"] * 11, albums, albums, ONE)
