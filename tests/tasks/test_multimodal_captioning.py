"""The task under fairseq's own commands, on toy data: train, resume, validate, generate."""

import gc
import inspect
import json
import multiprocessing
import re

import numpy as np
import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from toy_data import (
    make_captions_folder,
    run_fairseq,
    write_store,
)
from toy_processes import all_children_end

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.modules import packed_weights
from fairseq_mm.tasks.multimodal_captioning import (
    MultimodalCaptioningTask,
)

TASK = ("--task", "multimodal_captioning")
TRAINING = (
    *TASK,
    *("--arch", "m_rnn_tiny", "--criterion", "cross_entropy", "--optimizer", "adam"),
    *("--lr", "0.01", "--batch-size", "5", "--max-epoch", "2", "--num-workers", "0", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "none"),
)


@pytest.fixture
def data(tmp_path):
    return make_captions_folder(tmp_path / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as monkeypatch:
        return train(monkeypatch, make_captions_folder(folder / "data"), folder / "ck")


def train(monkeypatch, data, save_dir, *options):
    run_fairseq(monkeypatch, "train", data, *TRAINING, "--save-dir", save_dir, *options)
    return save_dir / "checkpoint_last.pt"


def generate(monkeypatch, capsys, data, checkpoint, *options):
    """Line -> hypothesis."""
    capsys.readouterr()
    arguments = (data, *TASK, "--path", checkpoint, "--gen-subset", "valid", "--cpu", *options)
    run_fairseq(monkeypatch, "generate", *arguments)
    found = re.findall(r"^H-(\d+)\t\S+\t?(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(found) == len({line for line, _ in found})
    return {int(line): text for line, text in found}


def valid_references(data):
    """Of each image, in order."""
    lines = (data / "valid.references.jsonl").read_text().splitlines()
    return [json.loads(line)["references"] for line in lines]


@pytest.mark.skipif(
    "persistent_workers" not in inspect.signature(EpochBatchIterator).parameters,
    reason="stock fairseq 0.12.2 leaves workers to the garbage collector",
)
def test_workers_end_with_their_epoch(monkeypatch, tmp_path, data):
    workers = []

    def count(self, epoch, model):
        workers.append(len(multiprocessing.active_children()))

    monkeypatch.setattr(MultimodalCaptioningTask, "begin_epoch", count)
    gc.disable()  # it would end them one day
    try:
        train(monkeypatch, data, tmp_path, "--num-workers", "1", "--max-epoch", "4")
        assert all_children_end()
    finally:
        gc.enable()
    assert len(workers) == 4
    assert max(workers) <= 1


@pytest.mark.parametrize(
    "options",
    [
        ("--beam", "1", "--batch-size", "4"),
        ("--beam", "3", "--batch-size", "100"),
        ("--beam", "1", "--sampling", "--sampling-topk", "5", "--max-tokens", "20"),
    ],
)
def test_every_image_is_generated_exactly_once(monkeypatch, capsys, trained, data, options):
    hypotheses = generate(monkeypatch, capsys, data, trained, "--max-len-b", "9", *options)
    assert sorted(hypotheses) == [0, 3, 6, 9, 12, 15, 18]


def test_all_lines_are_generated_when_asked_for(monkeypatch, capsys, trained, data):
    options = ("--all-lines", "--beam", "1", "--max-len-b", "9")
    hypotheses = generate(monkeypatch, capsys, data, trained, *options)
    assert sorted(hypotheses) == list(range(21))
    assert hypotheses[3] == hypotheses[4] == hypotheses[5]


def test_sentences_begin_with_the_prefix_words(monkeypatch, capsys, trained, data):
    options = ("--prefix-words", "the big dog", "--beam", "2", "--max-len-b", "9")
    hypotheses = generate(monkeypatch, capsys, data, trained, *options)
    assert all(text.startswith("the big dog") for text in hypotheses.values())
    with pytest.raises(UserError, match="the word 'zebra' is not in the dictionary"):
        generate(monkeypatch, capsys, data, trained, "--prefix-words", "zebra")


def validation_of(checkpoint):
    state = torch.load(checkpoint, map_location="cpu")
    return state["extra_state"]["val_loss"], state["extra_state"]["best"]


def test_validation_uses_the_weights_of_the_moment(monkeypatch, data, tmp_path):
    # fairseq's optimizers change parameters through `.data`, which a packed copy does not notice
    found = []
    for name, least in (("plain", 1 << 30), ("packed", 1)):
        monkeypatch.setattr(packed_weights, "_MIN_ELEMENTS", least)
        checkpoint = train(monkeypatch, data, tmp_path / name, "--eval-gen", "--lr", "0.1")
        found.append(validation_of(checkpoint))
        state = torch.load(checkpoint, map_location="cpu")
        found.append(state["extra_state"]["val_loss"])
    assert found[:2] == found[2:]


def test_validation_scores_equal_those_of_generated_text(monkeypatch, capsys, tmp_path, data):
    options = ("--eval-gen", "--eval-gen-args", '{"beam": 2, "max_len_b": 9}')
    metric = ("--best-checkpoint-metric", "cider", "--maximize-best-checkpoint-metric")
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *options, *metric)
    cider, best = validation_of(checkpoint)
    hypotheses = generate(monkeypatch, capsys, data, checkpoint, "--beam", "2", "--max-len-b", "9")
    references = [[ptb_tokenize(text) for text in texts] for texts in valid_references(data)]
    texts = [ptb_tokenize(hypotheses[line]) for line in sorted(hypotheses)]
    scorer = CiderD(references)
    expected = sum(map(scorer.score_item, texts, range(7))) / 7
    # logged with 4 decimals
    assert cider == pytest.approx(expected, abs=5e-4)
    assert best >= cider > 0

    checkpoint = train(
        monkeypatch,
        data,
        tmp_path / "bleu",
        *options,
        *("--best-checkpoint-metric", "bleu1", "--maximize-best-checkpoint-metric"),
    )
    bleu = bleu_from_sums(sum(map(bleu_sums, texts, references)))
    assert validation_of(checkpoint)[0] == pytest.approx(bleu[0], abs=5e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--eval-gen --best-checkpoint-metric cider", "with --maximize-best-checkpoint-metric"),
        ("--eval-gen --eval-gen-args beam=3", "--eval-gen-args: not JSON"),
    ],
)
def test_wrong_options_of_validation_are_refused(monkeypatch, tmp_path, data, options, message):
    with pytest.raises(UserError, match=message):
        train(monkeypatch, data, tmp_path / "ck", *options.split())


@pytest.mark.parametrize(
    "options",
    [
        ("--fp16", "--fp16-init-scale", "4"),
        ("--bf16", "--store-ema", "--ema-decay", "0.9", "--update-freq", "3", "--max-tokens", "30"),
    ],
)
def test_trains_and_generates_with(monkeypatch, capsys, tmp_path, data, options):
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *options)
    assert np.isfinite(validation_of(checkpoint)[0])
    generation = ("--fp16",) if "fp16" in options[0] else ()
    hypotheses = generate(
        monkeypatch, capsys, data, checkpoint, "--beam", "2", "--max-len-b", "9", *generation
    )
    assert len(hypotheses) == 7


def test_perplexity_is_over_all_captions(monkeypatch, capsys, trained, data):
    loss, _ = validation_of(trained)
    capsys.readouterr()
    options = ("--score-reference", "--all-lines", "--batch-size", "4", "--cpu")
    arguments = (data, *TASK, "--path", trained, "--gen-subset", "valid", *options)
    run_fairseq(monkeypatch, "generate", *arguments)
    scores = re.findall(r"^P-\d+\t(.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    values = [float(value) for line in scores for value in line.split()]
    assert len(scores) == 21
    assert -sum(values) / len(values) == pytest.approx(loss, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("train.visual_ids", r"\Z", "train1.jpg\n", r"ids has 37 lines, but \S+train\.idx has 36"),
        ("train.visual_ids", "train3", "other3", r"features\.h5: no features for 'other3\.jpg'"),
        ("valid.references.jsonl", r".*\n\Z", "", r"no references for 'valid6\.jpg' of .*:19"),
    ],
)
def test_file_that_does_not_fit_is_named(monkeypatch, tmp_path, data, name, old, new, message):
    path = data / name
    path.write_text(re.sub(old, new, path.read_text()))
    with pytest.raises(UserError, match=message):
        train(monkeypatch, data, tmp_path / "ck", "--eval-gen")


def test_features_of_another_dimension_or_extractor_are_refused(
    monkeypatch, capsys, tmp_path, trained, data
):
    keys = sorted(set((data / "valid.visual_ids").read_text().split()))
    write_store(tmp_path / "wide.h5", keys, dim=9)
    write_store(tmp_path / "other.h5", keys, attributes={"extractor": "vgg19", "layer": "pool"})
    for name, message in (
        ("wide", "5-dimensional features, but the feature store has 9-dim"),
        ("other", "extractor = 'drawn', but .* has features with extractor = 'vgg19'"),
    ):
        options = ("--features", tmp_path / f"{name}.h5")
        with pytest.raises(UserError, match=message):
            generate(monkeypatch, capsys, data, trained, *options)


def test_weights_that_are_no_numbers_are_named(monkeypatch, capsys, data, trained, tmp_path):
    state = torch.load(trained)
    next(x for x in state["model"].values() if x.is_floating_point()).fill_(float("nan"))
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(UserError, match="weights hold NaN or infinite values: no caption has"):
        generate(monkeypatch, capsys, data, tmp_path / "nan.pt", "--batch-size", "3")
