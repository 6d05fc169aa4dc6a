"""`fairseq-mm rank` of stories of prompts: figures against the models themselves, resuming."""

import json
import re

import numpy as np
import pytest
import torch
from toy_story_models import make_story_folder, train_stories

from fairseq_mm.cli.split_texts import BATCH_TOKENS
from fairseq_mm.inference.checkpoint import load_models
from fairseq_mm.metrics import condition_ranking
from fairseq_mm.retrieval.text_likelihood import TextLikelihood


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank_prompts")
    data = make_story_folder(folder / "data")
    return data, train_stories(data, folder / "a", "conv_story_tiny")


@pytest.fixture
def rank(trained, tmp_path, run_for_json):
    """Runs the command; returns exit status, content of ranking.json, stdout, stderr."""
    data, path = trained

    def run(*options, output=tmp_path / "out", data=data, path=path):
        arguments = [data, "--checkpoint", path, "--output", output, *options]
        return run_for_json(output / "ranking.json", "rank", *arguments)

    return run


def naive_scores(trained):
    """``[S, P]`` of the validation split, a pair at a time, by the model's forward pass."""
    data, path = trained
    loaded = load_models(path, device="cpu")
    (model,) = loaded.models
    prompts, stories = (
        [
            dictionary.encode_line(line, add_if_not_exist=False).long()
            for line in (data / f"text/valid.{side}").read_text().splitlines()
        ]
        for side, dictionary in (
            ("wp_source", loaded.source_dictionary),
            ("wp_target", loaded.dictionary),
        )
    )
    scores = np.zeros((len(stories), len(prompts)))
    with torch.no_grad():
        for s, story in enumerate(stories):
            previous = torch.cat([story[-1:], story[:-1]]).unsqueeze(0)
            for p, prompt in enumerate(prompts):
                logits, _ = model(prompt.unsqueeze(0), torch.tensor([len(prompt)]), previous)
                lprobs = logits[0].double().log_softmax(1)
                scores[s, p] = lprobs.gather(1, story.unsqueeze(1)).sum()
    return scores


def test_figures_are_those_of_the_models_own_probabilities(rank, trained, tmp_path):
    status, result, out, err = rank("--draws", 4, "--seed", 6)
    assert status == 0
    scores = naive_scores(trained)
    true = np.arange(13)
    distractors = condition_ranking.draw_distractors(true, 13, draws=4, seed=6)
    expected = condition_ranking.rank_prompts(scores, true, distractors, seed=6)
    assert result["accuracy"]["value"] == expected.accuracy.value
    assert result["per_draw"] == expected.per_draw
    assert result["accuracy"]["interval"] == list(expected.accuracy.interval)
    assert result["accuracy"]["chance"] == 0.1
    assert result["scores_of"]["words"] == 61
    assert f"accuracy      {100 * expected.accuracy.value:6.1f} %  95% interval [" in out
    assert "13 of 13 stories, 13 different prompts, 10 candidates, 4 draws, seed 6" in out
    assert "stories:13|prompts:13|candidates:10|draws:4|seed:6|words:61|models:1" in out
    assert "(168 pairs)" in err

    lines = (tmp_path / "out/stories.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["id"] for entry in entries] == list(range(13))
    own = np.diag(scores)
    assert [e["rank"] for e in entries] == (1 + (scores > own[:, None]).sum(1)).tolist()
    np.testing.assert_allclose([e["score"] for e in entries], own, atol=1e-4)
    assert np.mean([entry["accuracy"] for entry in entries]) == pytest.approx(
        expected.accuracy.value
    )


def test_a_pair_is_scored_once_however_often_it_is_drawn(rank, monkeypatch):
    scored = []
    batches = TextLikelihood.batches
    monkeypatch.setattr(
        TextLikelihood,
        "batches",
        lambda self, pairs: scored.extend(pairs) or batches(self, pairs),
    )
    _, first, _, _ = rank("--draws", 2)
    number = len(scored)
    assert number == len({(tuple(prompt), tuple(story)) for prompt, story in scored})
    assert 13 * 10 <= number < 13 * 13
    # more draws add the pairs that are missing, the same draws none
    _, more, _, _ = rank("--draws", 30)
    assert len(scored) == 169
    assert more["per_draw"][:2] == first["per_draw"]
    assert rank("--draws", 2)[1]["accuracy"] == first["accuracy"]
    assert len(scored) == 169


def test_an_interrupted_run_continues(rank, monkeypatch, tmp_path):
    _, whole, _, _ = rank("--draws", 3, output=tmp_path / "whole")
    calls = []
    score = TextLikelihood._score

    def interrupted(self, sample, pairs, log_probs_of):
        calls.append(len(pairs))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(self, sample, pairs, log_probs_of)

    options = ("--draws", 3)
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 150)
    with monkeypatch.context() as patch:
        patch.setattr(TextLikelihood, "_score", interrupted)
        status, result, _, err = rank(*options)
    assert (status, result) == (130, {})
    assert "rank: interrupted" in err
    calls.clear()
    monkeypatch.setattr(
        TextLikelihood,
        "_score",
        lambda self, *args: calls.append(len(args[1])) or score(self, *args),
    )
    status, result, _, _ = rank(*options)
    assert result["accuracy"] == whole["accuracy"]
    kept = (tmp_path / "out/likelihoods.jsonl").read_text().splitlines()
    assert 0 < sum(calls) < len(kept) - 1
    assert len(kept) == len((tmp_path / "whole/likelihoods.jsonl").read_text().splitlines())


def test_prompts_that_differ_in_unknown_words_alone_are_equally_likely(rank, trained, tmp_path):
    data, _ = trained
    other = tmp_path / "data/text"
    other.mkdir(parents=True)
    (other / "valid.wp_source").write_text("".join(f"[ WP ] unknown{i}\n" for i in range(11)))
    stories = (data / "text/valid.wp_target").read_text().splitlines(keepends=True)
    (other / "valid.wp_target").write_text("".join(stories[:11]))
    status, result, _, err = rank(data=tmp_path / "data")
    assert status == 0
    assert (result["accuracy"]["value"], result["ties"]) == (pytest.approx(0.1), 1)
    assert "(11 pairs)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--stories", 9],
            "have 9 different prompts, but --candidates 10 needs as many",
        ),
        (["--device", "nowhere"], "^fairseq-mm rank: device nowhere: Expected one of"),
    ],
)
def test_mistakes_are_reported_in_one_line(rank, options, message):
    status, _, _, err = rank(*options)
    assert status == 2
    (line,) = [x for x in err.splitlines() if x.startswith("fairseq-mm rank:")]
    assert re.search(message, line)
