"""Released models of VSE and VSE++, converted: vectors equal to those of their equations written as
loops, and the commands that are printed."""

import json
import os
import pickle
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from numerics import assert_close
from PIL import Image
from toy_convert import convert, message
from toy_data import run_fairseq, write_store
from toy_released_vse import (
    SIGNS,
    TheirModel,
    kiros_arrays,
    kiros_image,
    kiros_sentence,
    unit,
    write_kiros,
    write_vocabulary,
)

from fairseq_mm.cli.main import main
from fairseq_mm.conversion.foreign_checkpoint import read_plain_pickle
from fairseq_mm.conversion.released_vsepp import read_released_vsepp
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.inference.checkpoint import load_models
from fairseq_mm.inference.embedder import load_embedder

# the last two have numbers that are n_words or more
WORDS = [*"A a dog Dog runs on grass café . ,".split(), "rare", "rarest"]  # noqa: SIM905
SENTENCES = [
    *("a dog runs on grass .", "A Dog runs", "dog", "a café , a zebra", "rarest rare ."),
    "a a a a a a dog on on on",
]


def load(folder):
    loaded = load_models(folder, device="cpu")
    return loaded.models[0], loaded.task


@torch.no_grad()
def embed_sentences(folder, sentences):
    """As a batch of a data folder, whose unknown words are ``<unk>``."""
    model, task = load(folder)
    dictionary = task.target_dictionary
    lines = [dictionary.encode_line(x, add_if_not_exist=False).long() for x in sentences]
    tokens = torch.nn.utils.rnn.pad_sequence(lines, True, dictionary.pad())
    return model.embed_sentences(tokens).numpy()


@torch.no_grad()
def embed_images(folder, features):
    model, _ = load(folder)
    rows = torch.from_numpy(features).float()[:, None]
    return model.embed_images(rows, torch.zeros(rows.shape[:2], dtype=torch.bool)).numpy()


def random_features(count=4, dim=5):
    return np.random.default_rng(8).normal(size=(count, dim)).astype(np.float32)


@pytest.mark.parametrize("kind", ["gru", "bow"])
def test_vectors_of_kiros_are_those_of_the_equations(kind, tmp_path):
    arrays = kiros_arrays(WORDS, kind=kind)
    source = write_kiros(tmp_path / "f8k.npz", WORDS, kind=kind)
    assert convert(source, tmp_path / "out") == 0
    expected = [kiros_sentence(arrays, WORDS, sentence) for sentence in SENTENCES]
    found = embed_sentences(tmp_path / "out", SENTENCES)
    assert_close(found, np.array(expected))
    features = unit(random_features())
    found = embed_images(tmp_path / "out", features)
    assert_close(found, kiros_image(arrays, features))
    # of unit length is what their features are
    assert_close(embed_images(tmp_path / "out", 7 * features), found)


@pytest.mark.parametrize("no_imgnorm", [False, True])
def test_vectors_of_vsepp_are_those_of_its_layers(no_imgnorm, tmp_path):
    theirs = TheirModel(WORDS, no_imgnorm=no_imgnorm)
    source = theirs.write(tmp_path / "model_best.pth.tar")
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    assert convert(source, tmp_path / "out", "--vocabulary", vocabulary) == 0
    expected = [theirs.sentence(sentence) for sentence in SENTENCES]
    found = embed_sentences(tmp_path / "out", SENTENCES)
    assert_close(found, np.array(expected))
    features = random_features()
    expected = np.array([theirs.image(row) for row in features])
    assert_close(embed_images(tmp_path / "out", features), expected)
    assert np.allclose((expected**2).sum(-1), 1) != no_imgnorm


@pytest.fixture
def images(tmp_path):
    generator = np.random.default_rng(3)
    for i in range(2):
        pixels = generator.integers(0, 256, size=(260, 300, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    return [str(tmp_path / f"{i}.png") for i in range(2)]


def test_a_network_of_vsepp_comes_along(images, tmp_path, capsys):
    """From the image's file to its vector, and as features of a store."""
    torch.manual_seed(2)
    network = torchvision.models.resnet18(weights=None).eval()
    layers = {f"module.{x}": v for x, v in network.state_dict().items() if not x.startswith("fc.")}
    theirs = TheirModel(
        WORDS, feature_dim=512, network=layers, data_name="f8k", cnn_type="resnet18"
    )
    source = theirs.write(tmp_path / "model_best.pth.tar")
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    output = tmp_path / "out"
    assert convert(source, output, "--vocabulary", vocabulary) == 0
    printed = capsys.readouterr().out
    assert f"features: fairseq-mm extract ... --model resnet18 --weights {output}/cnn.pt" in printed
    # their evaluation: short side 256, centre of 224, mean and deviation of ImageNet
    transform = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    network.fc = torch.nn.Identity()
    with torch.no_grad():
        features = [network(transform(Image.open(path))[None])[0] for path in images]
    expected = np.array([theirs.image(row) for row in features])
    embedder = load_embedder(output, device="cpu")
    np.testing.assert_allclose(embedder.embed_images(images), expected, atol=1e-4)
    path = tmp_path / "features.h5"
    command = shlex.split(printed.split("features: ")[1].splitlines()[0])
    options = [*images, *command[3:], "--output", str(path), "--device", "cpu"]
    assert main(["extract", *options]) in (0, None)
    store = FeatureStore(path)
    embedder.check_features(store.attributes, store.dim, str(path))
    rows = np.concatenate([store.read(key) for key in ("0.png", "1.png")])
    np.testing.assert_allclose(embed_images(output, rows), expected, atol=2e-3)  # float16


def test_names_of_parallel_and_of_old_networks_are_torchvisions(tmp_path):
    x = torch.zeros(1)
    old = {
        **{"features.module.0.weight": x, "features.module.28.bias": x},
        **{f"classifier.{i}.{name}": x for i in (1, 4) for name in ("weight", "bias")},
    }
    theirs = TheirModel(WORDS, network=old, data_name="f8k")
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    released = read_released_vsepp("model.pth.tar", theirs.state(), str(vocabulary))
    assert sorted(released.cnn) == [
        *("classifier.0.bias", "classifier.0.weight", "classifier.3.bias", "classifier.3.weight"),
        *("features.0.weight", "features.28.bias"),
    ]


def test_a_checkpoint_of_a_gpu_and_an_old_pytorch_is_read(tmp_path):
    """Storages of CUDA, the old file format, a vocabulary of the module vocab."""
    theirs = TheirModel(WORDS)
    torch.save(theirs.state(), tmp_path / "cpu.tar", _use_new_zipfile_serialization=False)
    content = (tmp_path / "cpu.tar").read_bytes()
    assert content.count(b"ctorch\nFloatStorage\n") == 1
    content = content.replace(b"ctorch\nFloatStorage\n", b"ctorch.cuda\nFloatStorage\n")
    (tmp_path / "old.tar").write_bytes(content)
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl", "vocab")
    assert convert(tmp_path / "old.tar", tmp_path / "out", "--vocabulary", vocabulary) == 0
    expected = theirs.sentence(SENTENCES[0])
    found = embed_sentences(tmp_path / "out", SENTENCES[:1])[0]
    assert_close(found, expected)


def test_a_query_has_the_capitals_and_marks_that_the_words_have(tmp_path):
    theirs = TheirModel([word for word in WORDS if word != ","])
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    source = theirs.write(tmp_path / "m.tar")
    assert convert(source, tmp_path / "out", "--vocabulary", vocabulary) == 0
    found = load_embedder(tmp_path / "out", device="cpu").embed_texts(["A dog, runs."])[0]
    assert_close(found, theirs.sentence("A dog runs ."))


CAPTIONS = {
    "0.jpg": ["A dog runs .", "a Dog on grass"],
    "1.jpg": ["a café on grass .", "a zebra runs"],
    "2.jpg": ["dog , Dog , dog", "on grass runs a rare"],
    "3.jpg": ["grass grass", "A A runs ."],
}


@pytest.fixture
def ranked(tmp_path, capsys):
    """A converted model, and a data folder made by the command that was printed."""
    source = write_kiros(tmp_path / "f8k.npz", WORDS)
    assert convert(source, tmp_path / "out") == 0
    printed = dict(
        line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": fairseq" in line
    )
    lines = [
        json.dumps({"image": key, "captions": captions, "split": split})
        for split in ("train", "valid")
        for key, captions in CAPTIONS.items()
    ]
    captions = tmp_path / "captions.jsonl"
    captions.write_text("".join(f"{line}\n" for line in lines[:4]))
    valid = tmp_path / "valid.jsonl"
    valid.write_text("".join(f"{line}\n".replace(".jpg", "v.jpg") for line in lines[4:]))
    data = tmp_path / "data"
    command = shlex.split(printed["data"].replace("...", f"{captions} --valid {valid}"))
    assert main([*command[1:], "--output", str(data)]) in (0, None)
    write_store(data / "features.h5", [f"{i}{x}.jpg" for i in range(4) for x in ("", "v")])
    capsys.readouterr()
    return printed, data


def test_ranks_are_those_of_the_loops(ranked, tmp_path, capsys):
    printed, data = ranked
    command = shlex.split(printed["rank"].replace("DATA", str(data)))
    assert main([*command[1:], "--output", str(tmp_path / "ranks")]) in (0, None)
    store = FeatureStore(data / "features.h5")
    arrays = kiros_arrays(WORDS)
    images = np.stack([kiros_image(arrays, unit(store.read(f"{i}v.jpg")[0])) for i in range(4)])
    texts = [text for captions in CAPTIONS.values() for text in captions]
    sentences = np.stack([kiros_sentence(arrays, WORDS, text) for text in texts])
    items = np.repeat(np.arange(4), 2)
    scores = images @ sentences.T
    image_ranks = [1 + int((scores[:, n] > scores[items[n], n]).sum()) for n in range(8)]
    best = [scores[i, items == i].max() for i in range(4)]
    sentence_ranks = [1 + int((scores[i, items != i] > best[i]).sum()) for i in range(4)]
    assert len(set(image_ranks)) > 1  # not all the same by chance
    entries = [json.loads(line) for line in (tmp_path / "ranks" / "ranks.jsonl").open()]
    assert [entry["rank"] for entry in entries] == [*image_ranks, *sentence_ranks]


@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file"])
def test_training_goes_on_with_the_command_that_is_printed(ranked, option, tmp_path, monkeypatch):
    printed, data = ranked
    command = printed["train"].replace("DATA", str(data)).replace("--finetune-from-model", option)
    run_fairseq(
        *(monkeypatch, "train", *shlex.split(command)[1:], "--save-dir", tmp_path / "new"),
        *("--optimizer", "adam", "--lr", 1e-9, "--max-update", 1, "--batch-size", 4, "--cpu"),
        *("--num-workers", 0, "--log-format", "none"),
    )
    trained, _ = load(tmp_path / "new")
    converted, _ = load(tmp_path / "out")
    for found, expected in zip(trained.parameters(), converted.parameters()):
        assert_close(found, expected)


def test_words_that_no_text_has_are_left_out(tmp_path, capsys):
    theirs = TheirModel(["dog", "two words", "</s>", "cat"])
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    source = theirs.write(tmp_path / "m.tar")
    assert convert(source, tmp_path / "out", "--vocabulary", vocabulary) == 0
    assert "are left out, since no text has them as words: 'two words', '</s>'." in (
        capsys.readouterr().out
    )
    assert (tmp_path / "out" / "dict.txt").read_text() == "dog 1\ncat 1\n"
    found = embed_sentences(tmp_path / "out", ["cat dog"])[0]
    assert_close(found, theirs.sentence("cat dog"))


@pytest.mark.parametrize(
    ("arrays", "options", "expected"),
    [
        ({"encoder_U": None}, {}, r"f8k\.npz: .*must have one array"),
        (
            {"more": np.zeros(2)},
            {},
            r"f8k\.npz: does not fit .* it has no place for more\.",
        ),
        ({"encoder_W": np.zeros((6, 13))}, {}, r"it needs other shapes of .*must be \[21, 6\]"),
        ({}, {"encoder": "lstm"}, r"f8k\.npz: is no model .*KeyError: 'lstm'"),
    ],
)
def test_files_of_kiros_that_do_not_fit_are_refused(arrays, options, expected, tmp_path, capsys):
    source = write_kiros(tmp_path / "f8k.npz", WORDS, **options)
    changed = {**kiros_arrays(WORDS), **arrays}
    np.savez(source, **{name: x for name, x in changed.items() if x is not None})
    assert re.search(expected, message(capsys, source, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_dictionary_of_another_model_is_refused(tmp_path, capsys):
    source = write_kiros(tmp_path / "f8k.npz", WORDS)
    path = Path(f"{source}.dictionary.pkl")
    path.write_bytes(pickle.dumps({"a": 2, "b": 3}))
    expected = "must have a word for each number from 2 to 11, the rows of Wemb, but has 2 words"
    assert expected in message(capsys, source, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"use_abs": True}, "was trained with use_abs = True, but our model is as with False."),
    ],
)
def test_what_our_model_has_not_is_refused(options, expected, tmp_path, capsys):
    theirs = TheirModel(WORDS, **options)
    vocabulary = theirs.write_vocabulary(tmp_path / "vocab.pkl")
    source = theirs.write(tmp_path / "m.tar")
    assert expected in message(capsys, source, tmp_path / "out", "--vocabulary", vocabulary)
    assert not (tmp_path / "out").exists()


def test_the_vocabulary_must_be_the_models(tmp_path, capsys):
    theirs = TheirModel(WORDS)
    source = theirs.write(tmp_path / "m.tar")
    path = tmp_path / "vocab.pkl"
    option = ("--vocabulary", path)
    error = message(capsys, source, tmp_path / "out")
    assert "--vocabulary FILE is needed, the words of the model (VSE++'s f8k_precomp_voc" in error
    for words in ([*SIGNS, "a"], [*SIGNS[:3], *WORDS], [*SIGNS, *WORDS[1:], "a"]):
        write_vocabulary(path, words, "vocab")
        error = message(capsys, source, tmp_path / "out", *option)
        assert "vocab.pkl: must be the vocabulary of VSE++ that the model was trained" in error
    path.write_bytes(pickle.dumps({"a": 1}))
    error = message(capsys, source, tmp_path / "out", *option)
    assert "must be the vocabulary of VSE++" in error
    assert not (tmp_path / "out").exists()


def test_a_pickle_that_would_run_something_is_refused(tmp_path, capsys):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    source = write_kiros(tmp_path / "f8k.npz", WORDS)
    Path(f"{source}.pkl").write_bytes(pickle.dumps(Malicious()))
    error = message(capsys, source, tmp_path / "out")
    assert "f8k.npz.pkl: is no pickle that can be read safely" in error
    assert f"it asks for {os.mkdir.__module__}.mkdir)" in error
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_plain_content_is_read_whatever_the_protocol(protocol, tmp_path):
    content = {
        **{"a": [1, 2.5, True, None, "é"], "b": (b"\xff", {3}, frozenset([4]))},
        "number": np.float32(1.5),
    }
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content, protocol))
    found = read_plain_pickle(str(path))
    assert found == content
