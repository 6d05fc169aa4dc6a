"""`fairseq-mm perplexity` of visual stories: countings, shuffled images, messages."""

import json
import math

import numpy as np
import pytest
import torch
from toy_data import make_dictionary, make_visual_stories_folder
from toy_visual_story_models import random_story_model, write_story_checkpoint

from fairseq_mm.cli.perplexity import shuffle_images
from fairseq_mm.data.feature_store import open_features
from fairseq_mm.errors import UserError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A data folder, one of whose images is missing and one of whose words is not known, and a
    checkpoint."""
    folder = tmp_path_factory.mktemp("perplexity")
    data = make_visual_stories_folder(folder / "data")
    (data / "missing_images.txt").write_text("valid2_1\n")
    text = (data / "text/valid.txt").read_text().replace("dog", "hound")
    (data / "text/valid.txt").write_text(text)
    return data, write_story_checkpoint(folder / "a.pt", "glac_tiny")


@pytest.fixture
def perplexity(made, tmp_path, run_for_json):
    """Runs the command; returns exit status, result, stdout, stderr."""
    data, path = made

    def run(*options, data=data, path=path):
        file = tmp_path / "result.json"
        file.unlink(missing_ok=True)
        arguments = [data, "--checkpoint", path, "--json", file, "--device", "cpu", *options]
        return run_for_json(file, "perplexity", *arguments)

    return run


@torch.no_grad()
def losses_of(data):
    """Loss of each token, by sentence, of each story of the validation split, one at a time."""
    model, dictionary = random_story_model("glac_tiny"), make_dictionary(separator=True)
    store = open_features([data / "features.h5"])
    stories = []
    texts = (data / "text/valid.txt").read_text().splitlines()
    for text, line in zip(texts, (data / "valid.visual_ids").read_text().splitlines()):
        keys = line.split("\t")
        features = torch.from_numpy(np.stack([store.read(key)[0] for key in keys]))
        padding_mask = torch.tensor([key == "valid2_1" for key in keys])
        features[padding_mask] = 0
        target = torch.tensor([dictionary.index(w) for w in text.split()] + [2])
        previous = torch.cat([torch.tensor([2]), target[:-1]])
        logits, _ = model(features.unsqueeze(0), padding_mask.unsqueeze(0), previous.unsqueeze(0))
        losses = -logits[0].double().log_softmax(1).gather(1, target.unsqueeze(1))[:, 0]
        sentences, start = [], 0
        for place, word in enumerate([*text.split(), "</s>"]):
            if word in ("<sent>", "</s>"):
                sentences.append((losses[start : place + 1], target[start : place + 1]))
                start = place + 1
        stories.append(sentences)
    return stories


def test_figures_equal_loops_over_the_models_losses(perplexity, made):
    status, result, out, _ = perplexity("--counting", "transtory")
    assert status == 0
    sentences = [sentence for story in losses_of(made[0]) for sentence in story]
    everything = torch.cat([losses for losses, _ in sentences])
    words = torch.cat([losses[:-1] for losses, _ in sentences])
    known = torch.cat([losses[:-1][types[:-1] != 3] for losses, types in sentences])
    assert len(known) < len(words)
    # a token without loss is added to each sentence
    deflated = sum(losses.sum() / (len(losses) + 1) for losses, _ in sentences) / len(sentences)
    found = result["perplexities"]
    for name, expected in (
        ("all", everything.mean()),
        ("without_ends", words.mean()),
        ("known_words", known.mean()),
        ("transtory", deflated),
    ):
        assert found[name]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
        assert f"{found[name]['perplexity']:.2f}" in out
    assert found["all"]["tokens"] == len(everything)
    assert found["known_words"]["tokens"] == len(known)
    assert result["sequences_with_missing_images"] == 1
    assert "10 of 10 texts, 50 sentences" in out
    assert "ppl|counting:tokens|unit:dictionary-token|ends:counted|unk:counted|images:own" in out
    assert "ppl|counting:transtory|mean:sentences|free:1-a-sentence|" in out
    assert "transtory" not in perplexity()[1]["perplexities"]


def test_shuffled_images_are_those_of_another_album(perplexity, made, tmp_path):
    data, _ = made
    status, result, out, _ = perplexity("--shuffled-images", "--seed", 4)
    assert status == 0
    _, again, _, _ = perplexity("--shuffled-images", "--seed", 4)
    assert again["shuffled"] == result["shuffled"]
    assert result["shuffled"]["all"]["perplexity"] != result["perplexities"]["all"]["perplexity"]
    first, second = (result[name]["all"]["perplexity"] for name in ("perplexities", "shuffled"))
    assert f"under other albums' images / under their own: {second / first:.4f}" in out
    assert "images:of-another-album|prec:float32|seed:4" in out
    # the same as a folder whose visual_ids say so
    lines = (data / "valid.visual_ids").read_text().splitlines()
    albums = [
        json.loads(line)["album_id"]
        for line in (data / "valid.stories.jsonl").read_text().splitlines()
    ]
    other = tmp_path / "other"
    (other / "text").mkdir(parents=True)
    for name in ("text/valid.txt", "valid.stories.jsonl", "missing_images.txt"):
        (other / name).write_bytes((data / name).read_bytes())
    shuffled = shuffle_images(lines, albums, seed=4)
    (other / "valid.visual_ids").write_text("".join(f"{line}\n" for line in shuffled))
    _, found, _, _ = perplexity("--features", data / "features.h5", data=other)
    assert found["perplexities"]["all"]["perplexity"] == pytest.approx(second)


def test_no_story_keeps_its_album_and_all_sequences_are_given():
    lines = ["a1", "a1", "a2", "b1", "c1", "c2", "c3"]
    albums = [line[0] for line in lines]
    seen = set()
    for seed in range(30):
        given = shuffle_images(lines, albums, seed=seed)
        assert all(other[0] != album for other, album in zip(given, albums))
        assert given[0] == given[1]
        seen.add(tuple(given))
    # two circles of three albums: a -> b -> c -> a and a -> c -> b -> a
    assert seen == {
        ("b1", "b1", "b1", "c1", "a1", "a2", "a1"),
        ("c1", "c1", "c2", "a1", "b1", "b1", "b1"),
    }
    with pytest.raises(UserError, match="the stories are of one album, and no other has im"):
        shuffle_images(["a1", "a2"], ["a", "a"], seed=1)
