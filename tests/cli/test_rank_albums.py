"""`fairseq-mm rank` of visual stories: figures against the model itself, resuming, messages."""

import json

import numpy as np
import pytest
import torch
from toy_data import make_dictionary, make_visual_stories_folder
from toy_visual_story_models import random_story_model, write_story_checkpoint

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.metrics.condition_ranking import draw_distractors, rank_albums

ALBUMS = np.arange(10) // 2  # two stories each


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank_albums")
    data = make_visual_stories_folder(folder / "data")
    # the second story of the first album has other images of it
    for name in ("references", "album_references"):
        (data / f"valid.{name}.jsonl").unlink()
    lines = (data / "valid.visual_ids").read_text().splitlines()
    lines[1] = "\t".join(reversed(lines[1].split("\t")))
    (data / "valid.visual_ids").write_text("".join(f"{line}\n" for line in lines))
    return data, write_story_checkpoint(folder / "a.pt", "glac_tiny")


@pytest.fixture
def rank(made, tmp_path, run_for_json):
    """Runs the command; returns exit status, content of ranking.json, stdout, stderr."""
    data, path = made

    def run(*options, output=tmp_path / "out", path=path):
        arguments = [data, "--checkpoint", path, "--output", output, "--device", "cpu", *options]
        return run_for_json(output / "ranking.json", "rank", *arguments)

    return run


@torch.no_grad()
def naive_scores(data):
    """``[stories, albums]``, a pair at a time, by the model's forward pass."""
    model, dictionary = random_story_model("glac_tiny"), make_dictionary(separator=True)
    store = open_features([data / "features.h5"])
    lines = (data / "valid.visual_ids").read_text().splitlines()
    scores = np.zeros((10, 5))
    for s, text in enumerate((data / "text/valid.txt").read_text().splitlines()):
        target = torch.tensor([dictionary.index(word) for word in text.split()] + [2])
        previous = torch.cat([torch.tensor([2]), target[:-1]]).unsqueeze(0)
        for a in range(5):
            line = lines[s] if ALBUMS[s] == a else lines[2 * a]
            features = np.concatenate([store.read(key) for key in line.split("\t")])
            padding_mask = torch.zeros(1, 5, dtype=torch.bool)
            logits, _ = model(torch.from_numpy(features).unsqueeze(0), padding_mask, previous)
            lprobs = logits[0].double().log_softmax(1)
            scores[s, a] = lprobs.gather(1, target.unsqueeze(1)).sum()
    return scores


def test_figures_are_those_of_the_models_own_probabilities(rank, made, tmp_path):
    status, result, out, err = rank("--candidates", 4, "--draws", 6, "--seed", 3)
    assert status == 0
    scores = naive_scores(made[0])
    distractors = draw_distractors(ALBUMS, 5, draws=6, distractors=3, seed=3)
    expected = rank_albums(scores, ALBUMS, distractors, seed=3)
    assert 0 < expected.first.value < 1
    for name, figure in (("first", expected.first), ("mean_rank", expected.mean_rank)):
        assert result[name]["value"] == pytest.approx(figure.value)
        assert result[name]["interval"] == pytest.approx(list(figure.interval))
    assert (result["first"]["chance"], result["mean_rank"]["chance"]) == (0.25, 2.5)
    assert "10 of 10 stories, 5 different albums, 4 candidates, 6 draws, seed 3" in out
    assert f"ranked first  {100 * expected.first.value:6.1f} %  95% interval [" in out
    assert "chance 25.0 %" in out
    assert f"mean rank     {expected.mean_rank.value:6.2f}  95% interval [" in out
    assert "ties:against-the-model-within-0.001-nats" in out
    assert "(50 pairs)" in err
    entries = [json.loads(line) for line in (tmp_path / "out/stories.jsonl").open()]
    assert [entry["id"] for entry in entries] == list(range(10))
    np.testing.assert_allclose(
        [entry["score"] for entry in entries], scores[range(10), ALBUMS], atol=1e-3
    )
    assert np.mean([entry["ranks"] for entry in entries]) == pytest.approx(expected.mean_rank.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--candidates", "6"], "10 stories of valid have 5 different albums, but --candidates 6"),
    ],
)
def test_wrong_options_are_one_line(rank, options, message):
    status, _, _, err = rank(*options)
    assert status == 2
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("options", "of"),
    [(["--words", 9], "stories of prompts"), (["--marginal", "none"], "captions")],
)
def test_options_of_other_checkpoints_are_refused(rank, options, of):
    status, _, _, err = rank(*options)
    assert status == 2
    assert f"{options[0]}: is for checkpoints of {of}, but " in err
    assert "a.pt is one of visual stories." in err
