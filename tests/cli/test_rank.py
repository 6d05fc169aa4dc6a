"""`fairseq-mm rank` on toy data: figures against the model itself, resuming, messages."""

import json
import re

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from numerics import assert_close
from toy_data import make_captions_folder, run_fairseq

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.retrieval import ranking


def train(data, folder, arch="m_rnn_tiny"):
    command = (
        f"{data} --task multimodal_captioning --arch {arch} --save-dir {folder} --max-epoch 8 "
        "--batch-size 8 --optimizer adam --lr 0.02 --cpu --num-workers 0 --no-epoch-checkpoints "
        "--log-format none --criterion cross_entropy"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a folder of checkpoints."""
    folder = tmp_path_factory.mktemp("rank")
    data = make_captions_folder(folder / "data", rows=2)
    train(data, folder / "checkpoints")
    return data, folder / "checkpoints"


@pytest.fixture
def rank(trained, tmp_path, capsys):
    """Runs the command; returns exit status, content of ranks.json, stdout, stderr."""
    data, checkpoints = trained

    def run(*options, output=tmp_path / "out", data=data, path=checkpoints):
        arguments = [data, "--checkpoint", path, "--output", output, *options]
        arguments += [] if "--marginal-images" in options else ["--marginal-images", 5]
        status = main(["rank", *map(str, arguments)])
        file = output / "ranks.json"
        result = json.loads(file.read_text()) if file.exists() else {}
        printed = capsys.readouterr()
        return status, result, printed.out, printed.err

    return run


def naive_scores(trained, sampled):
    """``[S, I]`` and ``[S]`` of the validation split, by the model's forward pass."""
    _, checkpoints = trained
    path = str(checkpoints / "checkpoint_best.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    model.eval()
    task.load_dataset("valid", combine=False)
    dataset = task.datasets["valid"]
    keys = list(dict.fromkeys(dataset.visual_ids)) + sampled
    scores = torch.zeros(len(dataset), len(keys), dtype=torch.float64)
    with torch.no_grad():
        for s in range(len(dataset)):
            target = dataset.target[s].long()
            tokens = torch.cat([target[-1:], target[:-1]]).unsqueeze(0)
            for i, key in enumerate(keys):
                features = torch.from_numpy(task.features.read(key)).unsqueeze(0)
                logits, _ = model(features, torch.zeros(1, 2, dtype=torch.bool), tokens)
                lprobs = torch.log_softmax(logits[0].double(), 1)
                scores[s, i] = lprobs.gather(1, target.unsqueeze(1)).sum()
    return scores[:, :7].numpy(), scores[:, 7:].exp().mean(1).log().numpy(), dataset.visual_ids


def test_figures_are_those_of_the_models_own_probabilities(rank, trained, tmp_path):
    status, result, out, err = rank("--shortlist", 3)
    assert status == 0
    chosen = np.random.default_rng(1).permutation(12)[:5]
    scores, marginals, images = naive_scores(trained, [f"train{i}.jpg" for i in chosen])
    np.testing.assert_allclose(np.load(tmp_path / "out/log_probs.npy"), scores, atol=1e-4)
    np.testing.assert_allclose(np.load(tmp_path / "out/log_marginals.npy"), marginals, atol=1e-4)

    groups = [int(image[5:-4]) for image in images]  # validN.jpg
    by_image = [1 + (row >= row[g]).sum() - 1 for row, g in zip(scores, groups)]
    figures = result["results"]
    assert figures["image_retrieval"]["mean_rank"] == np.mean(by_image)
    assert figures["image_retrieval"]["recall_at"]["1"] == 100 * np.mean(np.array(by_image) <= 1)
    normalised = (scores - marginals[:, None]).T
    is_true = np.equal.outer(np.arange(7), groups)
    by_sentence = [
        1 + (row[~true] >= row[true].max()).sum() for row, true in zip(normalised, is_true)
    ]
    assert figures["sentence_retrieval"]["mean_rank"] == np.mean(by_sentence)
    assert figures["sentence_retrieval"]["queries"] == 7
    assert figures["sentence_retrieval"]["candidates"] == 21
    assert figures["sentence_retrieval_shortlist"]["candidates"] == 9
    # three of 21 sentences are an image's, one of 7 images a sentence's
    assert result["chance"]["sentence_retrieval"]["recall_at"]["1"] == pytest.approx(100 / 7)
    assert result["chance"]["image_retrieval"]["mean_rank"] == pytest.approx(4)
    recalls = [
        value
        for name in ("image_retrieval", "sentence_retrieval")
        for value in figures[name]["recall_at"].values()
    ]
    assert result["rsum"] == pytest.approx(sum(recalls))

    lines = [json.loads(line) for line in (tmp_path / "out/ranks.jsonl").read_text().splitlines()]
    assert [e["rank"] for e in lines if e["task"] == "image_retrieval"] == by_image
    sentences = [e for e in lines if e["task"] == "sentence_retrieval"]
    assert [e["rank"] for e in sentences] == by_sentence
    assert [e["id"] for e in sentences] == [f"valid{i}.jpg" for i in range(7)]

    assert "sentences for an image, shortlist" in out
    assert f"rsum {result['rsum']:.1f}" in out
    assert "log_probs.npy [21, 7]" in err


def test_perplexity_is_divided_by_that_under_the_mean_training_image(rank, trained, tmp_path):
    """Kiros et al. 2014b, as section 5 of the paper has it."""
    status, result, _, _ = rank("--marginal", "mean_image", "--top", 2)
    assert status == 0
    data, checkpoints = trained
    store = FeatureStore(data / "features.h5")
    mean = np.mean([store.read(f"train{i}.jpg").mean(0, dtype=np.float64) for i in range(12)], 0)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoints / "checkpoint_best.pt")]
    )
    model.eval()
    task.load_dataset("valid", combine=False)
    dataset = task.datasets["valid"]

    def perplexity(features, target):
        tokens = torch.cat([target[-1:], target[:-1]]).unsqueeze(0)
        features = torch.from_numpy(features).float().unsqueeze(0)
        mask = torch.zeros(features.shape[:2], dtype=torch.bool)
        logits, _ = model(features, mask, tokens)
        lprobs = torch.log_softmax(logits[0].double(), 1)
        return float((-lprobs.gather(1, target.unsqueeze(1)).mean()).exp())

    with torch.no_grad():
        targets = [dataset.target[line].long() for line in range(21)]
        reference = [perplexity(mean[None], target) for target in targets]
        ratios = np.array(
            [
                [r / perplexity(store.read(f"valid{i}.jpg"), t) for t, r in zip(targets, reference)]
                for i in range(7)
            ]
        )
    groups = np.repeat(np.arange(7), 3)
    ranks = [1 + (row[groups != i] >= row[groups == i].max()).sum() for i, row in enumerate(ratios)]
    assert result["results"]["sentence_retrieval"]["mean_rank"] == np.mean(ranks)
    lines = [json.loads(line) for line in (tmp_path / "out/ranks.jsonl").read_text().splitlines()]
    best = [entry["top"] for entry in lines if entry["task"] == "sentence_retrieval"]
    for row, found in zip(ratios, best):
        assert [x["id"] for x in found] == np.argsort(-row)[:2].tolist()
        # the logarithm of the ratio
        np.testing.assert_allclose(
            [x["score"] for x in found], np.log(np.sort(row)[:-3:-1]), atol=1e-4
        )
    # not the order of equation 7 with the same image, where long sentences gain and lose more
    unscaled = np.log(ratios) * [len(target) for target in targets]
    assert (np.argsort(-unscaled, 1) != np.argsort(-ratios, 1)).any()


def test_a_killed_run_continues_and_gives_the_same(rank, tmp_path, monkeypatch):
    _, straight, _, _ = rank(output=tmp_path / "straight")
    monkeypatch.setattr(ranking, "_BLOCK_PAIRS", 300)
    real = ranking.check_finite
    blocks = []

    def kill_at_the_third(scores):
        blocks.append(len(scores))
        if len(blocks) == 3:
            raise KeyboardInterrupt
        real(scores)

    monkeypatch.setattr(ranking, "check_finite", kill_at_the_third)
    status, result, _, err = rank()
    assert (status, result) == (130, {})
    assert "interrupted" in err
    monkeypatch.setattr(ranking, "check_finite", lambda scores: blocks.append(len(scores)))
    status, result, _, _ = rank()
    assert status == 0
    assert sum(blocks) == 21 + blocks[2]  # only the block that was under way is computed twice
    assert result["results"] == straight["results"]
    assert_close(
        np.load(tmp_path / "out/log_probs.npy"), np.load(tmp_path / "straight/log_probs.npy")
    )


def test_the_best_of_each_query_are_written(rank, trained, tmp_path):
    assert rank("--top", 2, "--marginal", "none")[0] == 0
    entries = [json.loads(line) for line in (tmp_path / "out/ranks.jsonl").open()]
    log_probs = np.load(tmp_path / "out/log_probs.npy")
    references = {}
    for line in (trained[0] / "valid.references.jsonl").open():
        entry = json.loads(line)
        references[entry["id"]] = entry["references"]
    for entry in entries:
        best = entry["top"]
        if entry["task"] == "image_retrieval":
            scores = log_probs[entry["id"]]
            assert [int(x["id"][5:-4]) for x in best] == np.argsort(-scores)[:2].tolist()
            assert (entry["rank"] == 1) == (int(best[0]["id"][5:-4]) == entry["id"] // 3)
        else:
            scores = log_probs[:, int(entry["id"][5:-4])]
            assert [x["id"] for x in best] == np.argsort(-scores)[:2].tolist()
            assert [x["text"] for x in best] == [
                references[f"valid{x['id'] // 3}.jpg"][x["id"] % 3] for x in best
            ]
        np.testing.assert_allclose([x["score"] for x in best], np.sort(scores)[:-3:-1], atol=1e-4)


def test_a_model_without_images_ranks_last(rank, trained, tmp_path):
    data, _ = trained
    train(data, tmp_path / "base", "m_rnn_base")
    for marginal in ("sampled", "mean_image"):
        output = tmp_path / marginal
        _, result, _, _ = rank("--marginal", marginal, path=tmp_path / "base", output=output)
        assert result["results"]["image_retrieval"]["mean_rank"] == 7
        assert result["results"]["sentence_retrieval"]["mean_rank"] == 19  # of 21, 3 are true


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--marginal-images", 13), r"--marginal-images 13: the 12 images of .* are too few"),
        (("--features", "other.h5"), r"other\.h5"),
        (("--device", "nonsense"), r"device nonsense: "),
    ],
)
def test_a_mistake_is_one_line(rank, options, message):
    status, _, out, err = rank(*options)
    assert (status, out) == (2, "")
    assert re.search(message, err)
    assert err.count("\n") == 1


def test_another_checkpoint_in_the_same_output_is_refused(rank, trained, tmp_path):
    _, checkpoints = trained
    assert rank()[0] == 0
    state = Checkpoint.open(checkpoints / "checkpoint_best.pt").state
    state["model"]["decoder.output_proj.bias"] += 1
    torch.save(state, tmp_path / "other.pt")
    status, _, _, err = rank(path=tmp_path / "other.pt")
    assert status == 2
    assert "holds scores with checkpoint = " in err
    status, _, _, err = rank("--seed", 9)
    assert status == 2
    assert "holds scores with sampled_images = " in err
