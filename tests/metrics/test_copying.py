"""Copied runs: those of comparing everything with everything; hashes never decide."""

import random

import pytest

from fairseq_mm.metrics import copying
from fairseq_mm.metrics.copying import CopiedRuns


def longest_copied_runs(stories, *files):
    runs = CopiedRuns(stories)
    for number, lines in enumerate(files):
        runs.read(lines, f"file {number}")
    return runs.results()


def naive_length(story, lines):
    """Every start in the story against every start in every line."""
    best = 0
    for line in lines:
        for i in range(len(story)):
            for j in range(len(line)):
                k = 0
                while i + k < len(story) and j + k < len(line) and story[i + k] == line[j + k]:
                    k += 1
                best = max(best, k)
    return best


def random_text(generator, words, size):
    return [generator.choice(words) for _ in range(size)]


@pytest.mark.parametrize("hash_bits", [64, 5, 0])
@pytest.mark.parametrize("block", [7, 60, 10_000])
def test_runs_are_those_of_comparing_everything(monkeypatch, hash_bits, block):
    monkeypatch.setattr(copying, "HASH_BITS", hash_bits)
    generator = random.Random(3)
    words = [f"w{i}" for i in range(7)]
    lines = [random_text(generator, words, generator.randrange(0, 30)) for _ in range(41)]
    stories = [random_text(generator, words, size) for size in (1, 5, 17, 23, 0, 29)]
    stories.append(["other", *lines[11][:9], "unseen", "words"])
    stories.append(next(line for line in lines[20:] if len(line) > 20))  # copied whole
    runs = CopiedRuns(stories)
    runs.read(map(" ".join, lines), "train", block=block)
    for story, run in zip(stories, runs.results()):
        assert run.length == naive_length(story, lines)
        assert list(run.words) == story[run.start : run.start + run.length]
        if run.length:
            line = lines[run.line - 1]
            places = range(len(line) - run.length + 1)
            assert any(line[i : i + run.length] == list(run.words) for i in places)
    assert runs.words_read == sum(map(len, lines))


def test_a_run_ends_with_its_training_story():
    (run,) = longest_copied_runs([["a", "b", "c", "d", "e", "x"]], ["a b", "c d e", "x"])
    assert run == (3, 2, ("c", "d", "e"), "file 0", 2)


def test_a_run_ends_with_its_generated_story():
    runs = longest_copied_runs([["a", "b"], ["c", "d"]], ["a b c d"])
    assert [run.length for run in runs] == [2, 2]


def test_several_files_count_as_one_text_and_the_place_names_the_file():
    (run,) = longest_copied_runs([["a", "b", "c"]], ["a", "b c"], ["z", "", "a b c d"])
    assert (run.length, run.file, run.line) == (3, "file 1", 3)


def test_words_are_separated_as_fairseq_separates_them_and_case_counts():
    (run,) = longest_copied_runs([["a", "b", "c", "d"]], ["a\u00a0b\u2009c D"])
    assert run.words == ("a", "b", "c")


def test_a_story_of_unseen_words_copies_nothing():
    assert longest_copied_runs([["q"], []], ["a"]) == [(0, 0, (), None, 0)] * 2
