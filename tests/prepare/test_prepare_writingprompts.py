"""``fairseq-mm prepare writingprompts``: the official release becomes a data folder."""

import pytest
from written_folder import tokens


@pytest.fixture
def prepare(run_command, tmp_path):
    def call(*options):
        out = tmp_path / "out"
        return run_command(
            "prepare", "writingprompts", tmp_path, "--output", out, "--workers", 1, *options
        )

    return call


@pytest.fixture
def release(tmp_path):
    for split, stories in (("train", 4), ("valid", 2)):
        (tmp_path / f"{split}.wp_source").write_text("[ WP ] a  cat .\n[ WP ] a dog .\n" * 2)
        (tmp_path / f"{split}.wp_target").write_text("It was n't. <newline> \n" * stories)
    (tmp_path / "valid.wp_source").write_text("[ WP ] a bird .\n" * 2)
    return tmp_path


THRESHOLDS = ["--source-threshold", 2, "--target-threshold", 4]


def test_the_release_is_taken_as_it_is_split(prepare, release):
    status, out, err = prepare(*THRESHOLDS)
    assert status == 0
    assert out.splitlines()[:2] == [
        "train: 4 pairs, 2 prompts, 24 prompt words (0.00% unknown), 16 story words (0.00% "
        "unknown), 2 duplicate pairs; on average 6.0 words a prompt, 4.0 a story",
        "valid: 2 pairs, 1 prompts, 12 prompt words (16.67% unknown), 8 story words (0.00% "
        "unknown), 1 duplicate pairs; on average 6.0 words a prompt, 4.0 a story",
    ]
    assert err.splitlines() == [
        "train: 4 pairs found, 272,600 expected (writingprompts, split official)",
        "valid: 2 pairs found, 15,620 expected (writingprompts, split official)",
    ]
    assert tokens(release / "out", "train") == ["It was n't. <newline>"] * 4


def test_mean_lengths_are_of_whole_stories(prepare, release):
    status, out, _ = prepare("--source-threshold", 1, "--target-threshold", 1, "--story-words", 3)
    assert status == 0
    # four stories of 4 words, one of which is cut from each
    assert "12 story words (0.00% unknown), 4 stories cut, 4 words cut" in out
    assert "on average 6.0 words a prompt, 4.0 a story before the cut (16 words)" in out


def test_an_interruption_is_one_line(prepare, release, monkeypatch):
    from fairseq_mm.prepare import writer

    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "run_preprocess", interrupt)
    status, out, err = prepare(*THRESHOLDS)
    assert (status, out) == (130, "")
    assert err.endswith("fairseq-mm prepare: interrupted\n")
    assert not (release / "out").exists()
