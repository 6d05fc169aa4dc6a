"""A model of structure and content on text alone: prepared, embedded, trained, and captioning
images; neither features nor images until the last step (Kiros et al. 2014, section 2.5)."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from numerics import assert_close
from toy_captioner import save_images
from toy_data import WORDS
from toy_pos_sequences import make_trained, train

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.records import open_split
from fairseq_mm.inference.embedder import load_embedder

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from tag_pos import tag_folder


def write_sentences(path, count=60):
    """Sentences of words that the embedding knows, and of one that it does not."""
    draw = random.Random(3)
    lines = [" ".join(draw.choices([*WORDS, "zebra"], k=draw.randint(4, 7))) for _ in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


@pytest.fixture(scope="module")
def embedding(tmp_path_factory):
    return make_trained(tmp_path_factory.mktemp("structures")).embedding


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A data folder of sentences, prepared from plain text, and tagged."""
    folder = tmp_path_factory.mktemp("text")
    write_sentences(folder / "news.txt")
    arguments = [folder / "news.txt", "--without-images", "--threshold", 1, "--valid-size", 8]
    assert main(["prepare", "captions", *map(str, arguments), "--output", str(folder / "d")]) == 0
    list(tag_folder(folder / "d", tagger="rules"))
    return folder / "d"


def test_plain_text_and_lines_without_images_are_prepared_alike(tmp_path, capsys):
    lines = write_sentences(tmp_path / "a.txt")
    entries = [{"captions": [line]} for line in lines]
    entries[3]["image"] = "ignored.jpg"
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    made = []
    for name in ("a.txt", "b.jsonl"):
        output = tmp_path / f"{name}.out"
        arguments = [tmp_path / name, "--without-images", "--output", output, "--test-size", 5]
        assert main(["prepare", "captions", *map(str, arguments)]) == 0
        assert "train: 55 texts, 55 captions, " in capsys.readouterr().out
        paths = [path for path in output.rglob("*") if path.is_file()]
        made.append({p.relative_to(output): p.read_bytes() for p in paths})
        made[-1].pop(Path("prepare.json"))
    assert made[0] == made[1]
    splits = [open_split(tmp_path / "a.txt.out", name) for name in ("train", "test")]
    assert [split.keys for split in splits] == [None, None]
    assert sorted(line for split in splits for line in split.texts) == sorted(lines)


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        (["--without-images", "--features", "f.h5"], "a dog\n", "--features: is of images, and"),
        (["--without-images"], "a dog\n...\n", "news.txt:2: caption 1 has no word: '...'"),
        ([], "a dog\n", "news.txt:1: not JSON"),
        (["--without-images"], "\n\n", "news.txt: no texts."),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, options, content, message):
    (tmp_path / "news.txt").write_text(content)
    arguments = ["prepare", "captions", str(tmp_path / "news.txt"), *options]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_sentences_are_embedded_without_features(text, embedding, tmp_path, capsys):
    output = tmp_path / "v.h5"
    arguments = [text, "--checkpoint", embedding, "--split", "valid", "--of", "sentences"]
    assert main(["embed", *map(str, arguments), "--output", str(output)]) in (0, None)
    assert "1 words are not in the vocabulary" in capsys.readouterr().err
    embedder = load_embedder(embedding, device="cpu")
    dictionary = embedder.task.target_dictionary
    store = FeatureStore(output)
    lines = open_split(text, "valid").texts
    assert store.ids == [f"valid:{i}" for i in range(len(lines))]
    for i, line in enumerate(lines):
        tokens = [*map(dictionary.index, line.split()), dictionary.eos()]
        with torch.no_grad():
            (vector,) = embedder.models[0].embed_sentences(torch.tensor([tokens]))
        assert_close(store.read(f"valid:{i}")[0], vector.numpy())


def test_images_are_captioned_by_what_was_trained_on_text_alone(text, embedding, tmp_path, capsys):
    vectors = tmp_path / "vectors"
    vectors.mkdir()
    for split in ("train", "valid"):
        arguments = [text, "--checkpoint", embedding, "--split", split, "--of", "sentences"]
        store = str(vectors / f"{split}.h5")
        assert main(["embed", *map(str, arguments), "--output", store]) in (0, None)
        shutil.move(vectors / f"{split}.{split}.jsonl", vectors / f"{split}.jsonl")
    shutil.copy(text / "dict.txt", vectors)
    features = f"{vectors / 'train.h5'}:{vectors / 'valid.h5'}"
    decoder = train(vectors, tmp_path / "decoder", "--arch", "sc_nlm_tiny", "--features", features)
    images = save_images(tmp_path / "photos", count=2)
    command = ["caption", *images, "--checkpoint", decoder, "--embedding", embedding]
    command += ["--data", text, "--candidates", 30, "--device", "cpu", "--jsonl"]
    capsys.readouterr()
    assert main([*map(str, command)]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["id"] for record in records] == images
    sentences = open_split(text, "train").texts
    for record in records:
        assert record["nearest"]["id"] is None
        assert record["nearest"]["caption"] == sentences[record["nearest"]["line"]]
        assert set(record["hypothesis"].split()) <= {*WORDS, "zebra"}
