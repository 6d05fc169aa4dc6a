"""`fairseq-mm embed`, and `fairseq-mm rank` by vectors, on toy data: against the model itself."""

import copy
import json

import numpy as np
import pytest
import torch
from numerics import assert_close
from toy_data import WORDS, make_captions_folder, run_fairseq

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.records import open_split
from fairseq_mm.inference.checkpoint import Checkpoint


def train(data, folder, arch, criterion):
    command = (
        f"{data} --task multimodal_captioning --arch {arch} --criterion {criterion} --max-epoch 2 "
        f"--save-dir {folder} --batch-size 9 --optimizer adam --lr 0.02 --cpu --num-workers 0 "
        "--no-epoch-checkpoints --log-format none"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a folder of checkpoints."""
    folder = tmp_path_factory.mktemp("embed")
    data = make_captions_folder(folder / "data")
    return data, train(data, folder / "checkpoints", "vse_tiny", "pairwise_ranking")


@pytest.fixture(scope="module")
def captioner(trained):
    data, _ = trained
    return train(data, data.parent / "captioner", "m_rnn_tiny", "cross_entropy")


@pytest.fixture(scope="module")
def model_and_task(trained):
    from fairseq import checkpoint_utils

    path = str(trained[1] / "checkpoint_best.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    task.load_dataset("valid", combine=False)
    return model.eval(), task


def vectors_one_by_one(model, task):
    """Of the images by key, and of the lines."""
    dataset = task.datasets["valid"]
    with torch.no_grad():
        images = {
            key: model.embed_images(
                torch.from_numpy(task.features.read(key))[None], torch.zeros(1, 1, dtype=torch.bool)
            )[0].numpy()
            for key in dataset.visual_ids
        }
        lines = [
            model.embed_sentences(dataset.target[i].long()[None])[0].numpy()
            for i in range(len(dataset))
        ]
    return images, lines


def embed(trained, output, *options):
    data, checkpoints = trained
    arguments = [data, "--checkpoint", checkpoints, "--output", output, *options]
    assert main(["embed", *map(str, arguments)]) in (0, None)
    return FeatureStore(output)


def test_vectors_are_the_models_own(trained, model_and_task, tmp_path, capsys):
    output = tmp_path / "v.h5"
    store = embed(trained, output)
    images, lines = vectors_one_by_one(*model_and_task)
    assert store.ids == [*images, *(f"valid:{i}" for i in range(21))]
    assert store.dtype == np.float32
    for key, vector in images.items():
        assert_close(store.read(key)[0], vector)
    for i, vector in enumerate(lines):
        assert_close(store.read(f"valid:{i}")[0], vector)
    lines = (tmp_path / "v.valid.jsonl").read_text().splitlines()
    beside = [json.loads(line) for line in lines]
    assert [record["id"] for record in beside] == [f"valid:{i}" for i in range(21)]
    split = open_split(trained[0], "valid")
    assert [record["captions"] for record in beside] == [[text] for text in split.texts]
    assert [record["tokens"] for record in beside] == [[" ".join(x)] for x in split.tokens()]
    assert f"{output}: 28 vectors of 8" in capsys.readouterr().err


def test_an_existing_store_is_replaced_on_request(trained, tmp_path, capsys):
    data, checkpoints = trained
    output = tmp_path / "v.h5"
    command = ["embed", *map(str, [data, "--checkpoint", checkpoints, "--output", output])]
    assert main(command) in (0, None)
    assert main(command) == 2
    assert "v.h5: exists already." in capsys.readouterr().err
    assert main([*command, "--of", "images", "--overwrite"]) in (0, None)
    assert len(FeatureStore(output).ids) == 7


def test_words_are_sentences_of_themselves(trained, model_and_task, tmp_path):
    store = embed(trained, tmp_path / "w.h5", "--of", "words")
    assert store.ids == [f"word:{word}" for word in WORDS]
    model, task = model_and_task
    for word in ("a", "big"):
        tokens = torch.tensor([[task.target_dictionary.index(word), task.target_dictionary.eos()]])
        with torch.no_grad():
            expected = model.embed_sentences(tokens)[0].numpy()
        assert_close(store.read(f"word:{word}")[0], expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.h5"]


@pytest.mark.parametrize(("options", "count"), [([], 7), (["--max-images", 6], 6)])
def test_ranks_are_those_of_the_models_own_cosines(
    trained, model_and_task, tmp_path, capsys, options, count
):
    data, checkpoints = trained
    arguments = [data, "--checkpoint", checkpoints, "--output", tmp_path, *options]
    assert main(["rank", *map(str, arguments)]) in (0, None)
    images, lines = vectors_one_by_one(*model_and_task)
    visual_ids = model_and_task[1].datasets["valid"].visual_ids
    keys = list(images)[:count]
    expected = []
    listed = [n for n in range(len(lines)) if visual_ids[n] in keys]
    for n in listed:
        own = images[visual_ids[n]] @ lines[n]
        rank = sum(images[key] @ lines[n] >= own for key in keys)
        expected.append(("image_retrieval", n, rank))
    for key in keys:
        scores = {n: images[key] @ lines[n] for n in listed}
        best = max(scores[n] for n in listed if visual_ids[n] == key)
        rank = 1 + sum(scores[n] >= best for n in listed if visual_ids[n] != key)
        expected.append(("sentence_retrieval", key, rank))
    written = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    assert [(entry["task"], entry["id"], entry["rank"]) for entry in written] == expected
    result = json.loads((tmp_path / "ranks.json").read_text())
    figures = result["results"]["sentence_retrieval"]
    assert figures["candidates"] == 3 * count
    if count == 7:
        ranks = [rank for task, _, rank in expected if task == "sentence_retrieval"]
        assert figures["recall_at"]["1"] == pytest.approx(100 * np.mean(np.array(ranks) <= 1))
        assert figures["median_rank"] == sorted(ranks)[3]
    out = capsys.readouterr().out
    assert "sentences for an image" in out
    assert f"rsum {result['rsum']:.1f}" in out


def test_an_ensemble_ranks_by_the_mean_of_its_cosines(
    trained, captioner, model_and_task, tmp_path, capsys
):
    data, checkpoints = trained
    first = checkpoints / "checkpoint_best.pt"
    state = Checkpoint.open(first).state
    generator = torch.Generator().manual_seed(3)
    for name, weight in state["model"].items():
        if weight.is_floating_point():
            state["model"][name] = torch.randn(weight.shape, generator=generator)
    second = tmp_path / "second.pt"
    torch.save(state, second)
    arguments = ["rank", data, "--checkpoint", f"{first}:{second}", "--output", tmp_path]
    assert main([*map(str, arguments), "--top", "7"]) == 0
    model, task = model_and_task
    other = copy.deepcopy(model)
    other.load_state_dict(state["model"])
    members = [vectors_one_by_one(each, task) for each in (model, other)]
    entries = [json.loads(line) for line in (tmp_path / "ranks.jsonl").open()]
    for entry in (entry for entry in entries if entry["task"] == "image_retrieval"):
        cosines = {
            key: np.mean([images[key] @ lines[entry["id"]] for images, lines in members])
            for key in members[0][0]
        }
        assert [best["id"] for best in entry["top"]] == sorted(cosines, key=cosines.get)[::-1]
        scores = [best["score"] for best in entry["top"]]
        # scores have four digits
        assert scores == pytest.approx(sorted(cosines.values())[::-1], abs=1e-4)
        own = cosines[task.datasets["valid"].visual_ids[entry["id"]]]
        assert entry["rank"] == sum(cosine >= own for cosine in cosines.values())
    card = json.loads((tmp_path / "ranks.json").read_text())["card"]
    assert card["files"]["checkpoint_2"]["path"] == str(second)
    capsys.readouterr()
    arguments[3] = f"{first}:{captioner / 'checkpoint_best.pt'}"
    assert main([*map(str, arguments)]) == 2
    err = capsys.readouterr().err
    assert "checkpoint_best.pt: must be one model of captions that" in err
    assert err.count("\n") == 1
