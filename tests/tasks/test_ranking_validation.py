"""Embeddings under fairseq's own commands, on toy data: train, resume, validate by ranking."""

import json

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models.ema import EMA
from numerics import assert_close
from toy_data import make_captions_folder, run_fairseq
from toy_processes import needs_fork, run_two_processes

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.criterions.pairwise_ranking import PairwiseRankingCriterion
from fairseq_mm.data.feature_store import open_features
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics.ranks import median_rank
from fairseq_mm.tasks import _ranking_validation
from fairseq_mm.tasks._ranking_validation import ranking_scores

TASK = ("--task", "multimodal_captioning")
TRAINING = (
    *TASK,
    *("--criterion", "pairwise_ranking", "--optimizer", "adam", "--lr", "0.01"),
    *("--batch-size", "9", "--max-epoch", "2", "--num-workers", "0", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "none"),
)
BEST = ("--best-checkpoint-metric", "rsum", "--maximize-best-checkpoint-metric")


@pytest.fixture
def data(tmp_path):
    return make_captions_folder(tmp_path / "data")


def train(monkeypatch, data, save_dir, *options, arch="vse_tiny"):
    arguments = (data, *TRAINING, "--arch", arch, "--save-dir", save_dir, *options)
    run_fairseq(monkeypatch, "train", *arguments)
    return save_dir / "checkpoint_last.pt"


def load(checkpoint):
    loaded = Checkpoint.open(checkpoint).build("cpu")
    return loaded.models[0], loaded.task, Checkpoint.open(str(checkpoint)).state


def scores_by_loops(checkpoint, data):
    """rsum and the median ranks of the validation split, one pair at a time."""
    model, task, _ = load(checkpoint)
    ids = (data / "valid.visual_ids").read_text().split()
    lines = []
    for references in (data / "valid.references.jsonl").read_text().splitlines():
        lines += json.loads(references)["references"]
    features = open_features([str(data / "features.h5")])
    keys = list(dict.fromkeys(ids))
    with torch.no_grad():
        images = [
            model.embed_images(
                torch.from_numpy(features.read(key))[None], torch.zeros(1, 1, dtype=torch.bool)
            )[0]
            for key in keys
        ]
        sentences = [
            model.embed_sentences(
                task.target_dictionary.encode_line(line, add_if_not_exist=False)[None].long()
            )[0]
            for line in lines
        ]
    scores = [[float(image @ sentence) for sentence in sentences] for image in images]
    i2t, t2i = [], []
    for i, key in enumerate(keys):
        best = max(scores[i][j] for j in range(len(ids)) if ids[j] == key)
        others = [scores[i][j] for j in range(len(ids)) if ids[j] != key]
        i2t.append(1 + sum(score >= best for score in others))
    for j, key in enumerate(ids):
        own = scores[keys.index(key)][j]
        t2i.append(1 + sum(scores[i][j] >= own for i in range(len(keys)) if keys[i] != key))
    rsum = sum(100 * np.mean([r <= k for r in ranks]) for ranks in (i2t, t2i) for k in (1, 5, 10))
    return rsum, median_rank(np.array(i2t)), median_rank(np.array(t2i))


def validate(monkeypatch, data, checkpoint):
    """Figures that fairseq-validate logs."""
    logged = []
    monkeypatch.setattr(
        "fairseq.logging.progress_bar.JsonProgressBar.print",
        lambda self, stats, **kwargs: logged.append(stats),
    )
    arguments = (data, *TASK, "--path", checkpoint, "--valid-subset", "valid", "--cpu")
    run_fairseq(monkeypatch, "validate", *arguments, "--batch-size", "4", "--log-format", "json")
    return logged[-1]


@pytest.mark.parametrize("arch", ["vse_tiny", "vse_bow"])
def test_validation_ranks_the_whole_split(monkeypatch, tmp_path, data, arch):
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *BEST, arch=arch)
    state = torch.load(checkpoint)
    rsum, i2t, t2i = scores_by_loops(checkpoint, data)
    assert state["extra_state"]["val_loss"] == pytest.approx(rsum, abs=0.1)
    assert state["extra_state"]["best"] >= state["extra_state"]["val_loss"]
    stats = {key: float(value) for key, value in validate(monkeypatch, data, checkpoint).items()}
    assert stats["rsum"] == pytest.approx(rsum, abs=0.1)
    assert (stats["i2t_medr"], stats["t2i_medr"]) == (i2t, t2i)


def test_ties_count_against_the_system():
    same = np.ones((4, 3), dtype=np.float32)
    scores = ranking_scores(same[:2], same, np.array([0, 0, 1, 1]))
    # each true sentence comes behind the two of the other image, each true image behind the other
    assert [scores[name] for name in ("i2t_r1", "i2t_r5", "i2t_medr")] == [0, 100, 3]
    assert [scores[name] for name in ("t2i_r1", "t2i_medr", "rsum")] == [0, 2, 400]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BEST[:2], "rsum: must be given with --maximize-best"),
        (("--eval-gen",), "embeds images and sentences, and generates no captions"),
        (("--criterion", "cross_entropy"), "are trained with --criterion pairwise_ranking"),
        (("--use-ema",), "--use-ema validates the average of the weights, which only --store-ema"),
        (
            ("--store-ema", "--ema-decay", "1"),
            "--ema-decay must be 0 or more and below 1, but is 1",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(monkeypatch, tmp_path, data, options, message):
    with pytest.raises(UserError, match=message):
        train(monkeypatch, data, tmp_path / "ck", *options)


def test_models_that_write_captions_do_not_rank(monkeypatch, tmp_path, data):
    with pytest.raises(UserError, match="--use-ema is for models that embed images and sentences"):
        train(monkeypatch, data, tmp_path / "c", "--store-ema", "--use-ema", arch="m_rnn_tiny")
    message = "--criterion pairwise_ranking is for models that embed .* but the model is MRnnModel"
    with pytest.raises(UserError, match=message):
        train(monkeypatch, data, tmp_path / "b", arch="m_rnn_tiny")


def test_models_that_embed_write_no_captions(monkeypatch, tmp_path, data):
    checkpoint = train(monkeypatch, data, tmp_path / "ck")
    arguments = (data, *TASK, "--path", checkpoint, "--gen-subset", "valid", "--cpu")
    with pytest.raises(UserError, match="embeds images and sentences, and generates no captions"):
        run_fairseq(monkeypatch, "generate", *arguments)
    model = fairseq_mm.from_pretrained(checkpoint, device="cpu")
    assert not hasattr(model, "generate")
    assert model.embed_texts(["a dog"]).shape == (1, model.models[0].embed_dim)


def test_trained_temperature_is_in_the_checkpoint_and_resumes(monkeypatch, tmp_path, data):
    options = ("--loss", "info_nce", "--learn-temperature", "--max-epoch", "4")
    straight = train(monkeypatch, data, tmp_path / "straight", *options)
    train(monkeypatch, data, tmp_path / "resumed", *options, "--max-epoch", "2")
    resumed = train(monkeypatch, data, tmp_path / "resumed", *options)
    temperatures = [
        torch.load(path)["criterion"]["log_temperature"] for path in (straight, resumed)
    ]
    assert_close(*temperatures)
    assert float(temperatures[0].exp()) != pytest.approx(0.1, abs=1e-4)
    # commands need none of it
    assert "rsum" in validate(monkeypatch, data, straight)


AVERAGED = ("--store-ema", "--use-ema", "--ema-decay", "0.8", "--word-dropout", "0.4")


def average_by_loops(monkeypatch, data, save_dir, *options):
    """Train with --use-ema; return the checkpoint and the average of the weights, by hand."""
    average = {}

    class Recorder(EMA):
        def __init__(self, model, *others, **options):
            # the average begins with the weights before the first update
            average.update({name: x.detach().clone() for name, x in model.named_parameters()})
            super().__init__(model, *others, **options)

        def step(self, new_model, updates=None):
            for name, x in new_model.named_parameters():
                average[name] = 0.8 * average[name] + 0.2 * x.detach()
            super().step(new_model, updates)

    monkeypatch.setattr("fairseq.trainer.build_ema", Recorder)
    return train(monkeypatch, data, save_dir, *AVERAGED, *BEST, *options), average


def test_average_is_validated_and_is_the_model_of_every_command(monkeypatch, tmp_path, data):
    checkpoint, average = average_by_loops(monkeypatch, data, tmp_path / "ck")
    state = torch.load(checkpoint)
    # without dropout: the scores are of the average in evaluation mode, as `rank` computes them
    rsum, _, _ = scores_by_loops(checkpoint, data)
    assert state["extra_state"]["val_loss"] == pytest.approx(rsum, abs=0.1)
    assert float(validate(monkeypatch, data, checkpoint)["rsum"]) == pytest.approx(rsum, abs=0.1)
    model, _, loaded = load(checkpoint)
    for name, weight in model.named_parameters():
        assert_close(weight.detach(), average[name])
        assert not torch.equal(state["model"][name], weight)
    assert "uses_ema" not in loaded["task_state"]
    # a folder has the average, too, and nothing else
    assert main(["export", str(checkpoint), str(tmp_path / "folder")]) in (0, None)
    exported = Checkpoint.open(tmp_path / "folder").build("cpu").models[0]
    assert_close(exported.image_proj.weight.detach(), average["image_proj.weight"])
    assert "uses_ema" not in (tmp_path / "folder" / "config.json").read_text()


def test_a_checkpoint_without_its_average_is_refused(monkeypatch, tmp_path, data):
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *AVERAGED)
    state = torch.load(checkpoint)
    del state["extra_state"]["ema"]
    torch.save(state, checkpoint)
    with pytest.raises(UserError, match="must contain the average of its weights"):
        load(checkpoint)


@pytest.mark.parametrize(
    ("options", "draws"),
    [
        (("--negatives", "random", "--num-negatives", "5"), 5),
        (("--negatives", "random"), 36),  # the whole split has no more
        (("--num-negatives", "5"), 0),
    ],
)
def test_training_alone_draws_negatives(monkeypatch, tmp_path, data, options, draws):
    counts = {"train": set(), "valid": set()}

    class Spy(PairwiseRankingCriterion):
        def forward(self, model, sample, reduce=True):
            drawn = sample.get("negatives")
            count = 0 if drawn is None else len(drawn["id"])
            counts["train" if model.training else "valid"].add(count)
            return super().forward(model, sample, reduce)

    monkeypatch.setitem(CRITERION_REGISTRY, "pairwise_ranking", Spy)
    train(monkeypatch, data, tmp_path / "ck", *options)
    assert counts == {"train": {draws}, "valid": {0}}


def test_regions_are_pooled_in_training_ranking_and_search(monkeypatch, tmp_path):
    grids = make_captions_folder(tmp_path / "grids", rows=4)
    checkpoint = train(monkeypatch, grids, tmp_path / "ck", *BEST, "--image-pooling", "gpo")
    assert torch.load(checkpoint)["model"]["region_pooling.score_proj.weight"].shape == (1, 64)
    store = tmp_path / "images.h5"
    command = ["embed", grids, "--checkpoint", checkpoint, "--split", "valid", "--of", "images"]
    assert main([*map(str, command), "--output", str(store)]) in (0, None)
    model = fairseq_mm.from_pretrained(checkpoint, device="cpu")
    regions = open_features([str(grids / "features.h5")]).read("valid3.jpg")
    expected = model.embed_features([regions])
    np.testing.assert_allclose(open_features([str(store)]).read("valid3.jpg"), expected, atol=1e-6)


def test_checkpoint_of_word_vectors_needs_no_file(monkeypatch, tmp_path, data):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("dog 1 2 3 4 5 6\ncat 0 1 0 1 0 1\n")
    options = ("--word-vectors", vectors, "--fixed-words")
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *options)
    wide = ("--word-dim", "7", "--max-epoch", "3")
    with pytest.raises(UserError, match="1 has vectors of 6 dimensions, but --word-dim is 7"):
        train(monkeypatch, data, tmp_path / "wide", *options, *wide)
    vectors.unlink()
    model, task, _ = load(checkpoint)
    dog = task.target_dictionary.index("dog")
    assert model.sentence_encoder.embedding.weight[dog].tolist() == [1, 2, 3, 4, 5, 6]
    assert "rsum" in validate(monkeypatch, data, checkpoint)


def count_embedded(monkeypatch, path):
    """Writes down how many values are embedded at a time in validation."""
    original = _ranking_validation._embed_shared

    def embed_shared(values, embed):
        def counted(batch):
            with path.open("a") as file:
                print(len(batch), file=file)
            return embed(batch)

        return original(values, counted)

    monkeypatch.setattr(_ranking_validation, "_embed_shared", embed_shared)


@needs_fork
def test_two_processes_train_and_validate(tmp_path, data):
    """36 lines in batches of 8: at the end of an epoch one process has none."""

    def train_rank(*options):
        with pytest.MonkeyPatch.context() as monkeypatch:
            count_embedded(monkeypatch, tmp_path / options[-1])
            options = (*BEST, "--batch-size", "8", "--ddp-backend", "legacy_ddp", *options)
            train(monkeypatch, data, tmp_path / "two", *options)

    run_two_processes(train_rank)
    # two epochs: each process embeds its part of 7 images and 21 sentences, each once
    embedded = [(tmp_path / str(rank)).read_text().split() for rank in range(2)]
    assert embedded == [["4", "11"] * 2, ["3", "10"] * 2]
    checkpoint = tmp_path / "two" / "checkpoint_last.pt"
    rsum, _, _ = scores_by_loops(checkpoint, data)
    assert torch.load(checkpoint)["extra_state"]["val_loss"] == pytest.approx(rsum, abs=0.1)


@needs_fork
def test_two_processes_draw_as_one_does_for_both(monkeypatch, tmp_path, data):
    """36 lines in batches of 8: at the end of an epoch one process has none."""
    options = ("--negatives", "random", "--num-negatives", "7", "--batch-size", "8")

    def train_rank(*others):
        with pytest.MonkeyPatch.context() as monkeypatch:
            others = ("--ddp-backend", "pytorch_ddp", *others)
            train(monkeypatch, data, tmp_path / "two", *options, *others)

    run_two_processes(train_rank)
    one = train(monkeypatch, data, tmp_path / "one", *options, "--update-freq", "2")
    two = tmp_path / "two" / "checkpoint_last.pt"
    torch.testing.assert_close(torch.load(two)["model"], torch.load(one)["model"])
