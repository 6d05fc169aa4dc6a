"""`fairseq-mm retrieve nearest` and `plot`: sentences, images, ids, arithmetic, messages."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_captioner import save_images
from toy_data import make_captions_folder, run_fairseq, write_store

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.embedder import load_embedder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder, a checkpoint with its extractor's weights beside, and its vectors."""
    import torchvision

    folder = tmp_path_factory.mktemp("nearest")
    torch.manual_seed(2)
    weights = folder / "squeezenet.pth"
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights)
    extractor = build_extractor("squeezenet1_1", weights=str(weights), resize="squash", size=33)
    data = make_captions_folder(folder / "data")
    keys = FeatureStore(data / "features.h5").ids
    (data / "features.h5").unlink()
    write_store(data / "features.h5", keys, dim=512, attributes=extractor.identity)
    command = (
        f"{data} --task multimodal_captioning --arch vse_bow --criterion pairwise_ranking "
        f"--embed-dim 8 --word-dim 8 --max-epoch 2 --save-dir {folder} --batch-size 9 --cpu "
        "--optimizer adam --lr 0.02 --num-workers 0 --no-epoch-checkpoints --log-format none"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    for kind in ("images", "sentences"):
        output = folder / f"{kind}.h5"
        arguments = [data, "--checkpoint", folder, "--of", kind, "--output", output]
        assert main(["embed", *map(str, arguments)]) in (0, None)
    save_images(folder / "images", 1)
    return folder


@pytest.fixture
def nearest(trained, capsys):
    """Runs the command; returns exit status, stdout, stderr."""

    def run(*arguments, store="images", model=trained):
        path = trained / f"{store}.h5"
        options = ["--store", path, *arguments]
        options += ["--checkpoint", model] if model else []
        status = main(["retrieve", "nearest", *map(str, options)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def vectors_of(path):
    store = FeatureStore(path)
    return {key: store.read(key)[0] for key in store.ids}


def naive(query, vectors, top):
    cosines = {key: float(query @ v / np.linalg.norm(query)) for key, v in vectors.items()}
    return [f"{cosines[key]:.4f}\t{key}" for key in sorted(cosines, key=lambda k: -cosines[k])][
        :top
    ]


def test_a_sentence_finds_images(trained, nearest):
    status, out, _ = nearest("A DOG runs!", "--top", 3)
    query = load_embedder(trained).embed_texts(["a dog runs"])[0]
    assert status == 0
    assert out.splitlines() == naive(query, vectors_of(trained / "images.h5"), 3)


def test_a_image_finds_sentences_and_their_words(trained, nearest):
    image = trained / "images" / "image0.png"
    _, out, _ = nearest("--image", image, "--data", trained / "data", "--jsonl", store="sentences")
    found = [json.loads(line) for line in out.splitlines()]
    query = load_embedder(trained).embed_images([image])[0]
    expected = naive(query, vectors_of(trained / "sentences.h5"), 5)
    assert [f"{item['score']:.4f}\t{item['id']}" for item in found] == expected
    lines = []
    for references in (trained / "data" / "valid.references.jsonl").read_text().splitlines():
        lines += json.loads(references)["references"]
    for item in found:
        assert item["text"] == lines[int(item["id"].split(":")[1])]


def test_words_are_taken_away_and_added_and_the_query_is_not_found(trained, nearest):
    _, out, _ = nearest(
        "--id", "valid2.jpg", "--minus", "blue", "--plus", "red", "--plus", "big", "--top", 6
    )
    embedder = load_embedder(trained)
    vectors = vectors_of(trained / "images.h5")
    blue, red, big = embedder.embed_texts(["blue", "red", "big"])
    query = vectors.pop("valid2.jpg") - blue + red + big
    assert out.splitlines() == naive(query, vectors, 6)
    _, again, _ = nearest(
        *("--id", "valid2.jpg", "--minus", "blue", "--plus", "red", "--plus", "big"),
        *("--top", 2, "--resort", 4),
    )
    ids = [line.split("\t")[1] for line in out.splitlines()][:4]
    mean = np.mean([vectors[key] for key in ids], axis=0)
    ids.sort(key=lambda key: np.linalg.norm(vectors[key] - mean))
    assert [line.split("\t")[2] for line in again.splitlines()] == ids[:2]


def test_mistakes_are_one_line(trained, nearest, tmp_path):
    def refused(message, *arguments, **options):
        status, out, err = nearest(*arguments, **options)
        assert (status, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1

    refused("the word 'zebra' is not in the dictionary of 16 words", "a zebra")
    refused("the word 'zebra' is not in", "--id", "valid2.jpg", "--minus", "zebra")
    refused("the text '!' has no word", "!")
    refused("--checkpoint: is missing", "a dog", model=None)
    refused("images.h5: no features for 'valid9'", "--id", "valid9", model=None)
    refused("absent: has no split 'valid'", "a dog", "--data", tmp_path / "absent")
    missing = trained / "absent.jpg"
    refused(f"{missing}: cannot be read (No such file", "--image", missing)
    state = Checkpoint.open(trained / "checkpoint_best.pt").state
    torch.save({**state, "changed": True}, tmp_path / "other.pt")
    refused(
        "images.h5: must have vectors that",
        "a dog",
        model=tmp_path / "other.pt",
    )


def test_images_and_words_are_drawn_on_their_principal_components(trained, tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    for path in save_images(tmp_path / "drawn", 3):
        number = path[-5]
        (tmp_path / "photos" / f"valid{number}.jpg").write_bytes(Path(path).read_bytes())
    options = ["--store", trained / "images.h5", "--checkpoint", trained]
    options += ["--output", tmp_path / "plane.html", "--jsonl", tmp_path / "points.jsonl"]
    shown = ["--id", "valid1.jpg", "--id", "valid2.jpg", "--word", "red", "--word", "blue"]
    photos = ["--images", tmp_path / "photos"]

    def run(*more):
        status = main(["retrieve", "plot", *map(str, [*options, *more])])
        return status, capsys.readouterr().err

    assert run(*shown, *photos)[0] == 0
    points = [json.loads(line) for line in (tmp_path / "points.jsonl").read_text().splitlines()]
    assert [(point["kind"], point["label"]) for point in points] == [
        *(("image", "valid1.jpg"), ("image", "valid2.jpg"), ("word", "red"), ("word", "blue"))
    ]
    page = (tmp_path / "plane.html").read_text()
    assert page.count("data:image/png") == 2
    status, err = run("--near", "a dog", "--top", 3)
    assert (status, err) == (0, f"{tmp_path}/plane.html: 3 images, 0 words\n")
    for arguments, message in (
        (["--word", "red", "--word", "red"], "1 images and words: at least 3 make a plane"),
        ([*shown, "--word", "zebra"], "the word 'zebra' is not in the dictionary"),
        ([*shown, "--id", "valid9.jpg"], "images.h5: no features for 'valid9.jpg'"),
    ):
        status, err = run(*arguments)
        assert status == 2
        assert message in err
        assert len(err.splitlines()) == 1


@pytest.fixture
def published(trained, tmp_path):
    """The data folder with other captions than the words that were binarised."""
    folder = tmp_path / "published"
    shutil.copytree(trained / "data", folder)
    path = folder / "valid.references.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for number, entry in enumerate(entries):
        entry["references"] = [f"Caption {number}-{i}, Zanzibar !" for i in range(3)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def check_captions(out):
    """Each line ends with the caption of the line of the split that its id names."""
    assert out
    for line in out.splitlines():
        _, key, text = line.split("\t")
        number = int(key.removeprefix("valid:"))
        assert text == f"Caption {number // 3}-{number % 3}, Zanzibar !"


def test_sentences_are_shown_as_they_were_published(trained, nearest, likeliest, published):
    image = trained / "images" / "image0.png"
    check_captions(nearest("--image", image, "--data", published, store="sentences")[1])
    check_captions(likeliest("--image", image, "--marginal-images", 5, "--data", published)[1])
    # with a caption less than lines, no caption can be told to be a line's
    path = published / "valid.references.jsonl"
    path.write_text(path.read_text().replace('"Caption 2-1, Zanzibar !", ', ""))
    binarised = nearest("--image", image, "--data", trained / "data", store="sentences")[1]
    assert nearest("--image", image, "--data", published, store="sentences")[1] == binarised


class Cards(HTMLParser):
    """Images and visible text of each card of a page, and its headings."""

    def __init__(self, page):
        super().__init__()
        self.cards, self.headings, self.tag = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tag = tag
        if tag == "article":
            self.cards.append([])
        elif tag == "img":
            attributes = dict(attributes)
            assert attributes["src"].startswith("data:image/jpeg;base64,")
            self.cards[-1].append(f"image {attributes['alt']}")

    def handle_data(self, data):
        if self.tag in ("h1", "h2"):
            self.headings.append(data)
        elif self.cards and data.strip():
            self.cards[-1].append(data.strip())


def test_a_page_shows_the_query_and_the_images(trained, nearest, tmp_path):
    """Figure 4 of Kiros et al. 2014."""
    (tmp_path / "photos").mkdir()
    for number, path in enumerate(save_images(tmp_path / "drawn", 7)):
        shutil.copy(path, tmp_path / "photos" / f"valid{number}.jpg")
    page = tmp_path / "page.html"
    words = ("--minus", "blue", "--plus", "red", "--top", 3)
    options = ("--html", page, "--images", tmp_path / "photos")
    _, out, err = nearest("--id", "valid2.jpg", *words, *options)
    found = [line.split("\t") for line in out.splitlines()]
    query = "valid2.jpg \u2212 blue + red"
    parsed = Cards(page.read_text())
    assert parsed.headings == [query, "Query", "Nearest"]
    assert parsed.cards[0] == ["image valid2.jpg", query]
    assert len(found) == 3
    for (score, key), card in zip(found, parsed.cards[1:]):
        assert [*card[:2], card[3]] == [f"image {key}", "score", key]
        assert float(card[2]) == pytest.approx(float(score), abs=1e-4)
    assert err == f"wrote {page}: 3 items\n"
    (tmp_path / "photos" / f"{found[1][1]}").unlink()
    *_, err = nearest("--id", "valid2.jpg", *words, *options)
    assert err == f"wrote {page}: 3 items; 1 images not found, the first is {found[1][1]}\n"


@pytest.fixture(scope="module")
def captioner(trained, tmp_path_factory):
    """A model of captions on the same data."""
    folder = tmp_path_factory.mktemp("captioner")
    command = (
        f"{trained / 'data'} --task multimodal_captioning --arch m_rnn_tiny --max-epoch 1 --cpu "
        f"--save-dir {folder} --batch-size 9 --optimizer adam --lr 0.02 --num-workers 0 "
        "--no-epoch-checkpoints --log-format none --criterion cross_entropy"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    shutil.copy(trained / "squeezenet.pth", folder)
    return folder


@pytest.fixture
def likeliest(trained, captioner, capsys):
    """Runs the command without a store; returns exit status, stdout, stderr."""

    def run(*arguments, model=captioner):
        options = ["--data", trained / "data", *arguments]
        options += ["--checkpoint", model] if model else []
        status = main(["retrieve", "nearest", *map(str, options)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_likelihood_finds_images_and_sentences_as_rank_does(
    trained, captioner, likeliest, tmp_path, capsys
):
    arguments = ["rank", trained / "data", "--checkpoint", captioner, "--output", tmp_path]
    assert main([*map(str, arguments), "--top", "4", "--marginal-images", "5"]) == 0
    capsys.readouterr()
    entries = [json.loads(line) for line in (tmp_path / "ranks.jsonl").open()]
    references = (trained / "data" / "valid.references.jsonl").read_text().splitlines()
    caption = json.loads(references[2])["references"][1]  # line 7
    status, out, _ = likeliest(caption, "--top", 4, "--jsonl")
    assert status == 0
    found = [json.loads(line) for line in out.splitlines()]
    (wanted,) = [e for e in entries if e["task"] == "image_retrieval" and e["id"] == 7]
    assert [item["id"] for item in found] == [best["id"] for best in wanted["top"]]
    assert [item["score"] for item in found] == pytest.approx(
        [best["score"] for best in wanted["top"]], abs=2e-4
    )
    _, out, _ = likeliest("--id", "valid2.jpg", "--top", 4, "--marginal-images", 5)
    (wanted,) = [e for e in entries if e["id"] == "valid2.jpg"]
    lines = [line.split("\t") for line in out.splitlines()]
    assert [line[1:] for line in lines] == [
        [f"valid:{best['id']}", best["text"]] for best in wanted["top"]
    ]
    image = trained / "images" / "image0.png"
    status, out, _ = likeliest("--image", image, "--top", 3, "--marginal-images", 5)
    assert (status, len(out.splitlines())) == (0, 3)


def test_mistakes_of_likelihood_are_one_line(trained, likeliest):
    few = ("--marginal-images", 5)
    for message, arguments, options in (
        ("give --store, vectors to search, or --checkpoint and --data", ["a dog"], {"model": None}),
        ("must be one model of captions that reads no tags", ["a dog"], {"model": trained}),
        ("--resort: needs --store beside it.", ["a dog", "--resort", 3], {}),
        ("the word 'zebra' is not in", ["a zebra"], {}),
        ("--id x.jpg: is no image of valid of", ["--id", "x.jpg", *few], {}),
        ("absent.jpg: cannot be read (No such file", ["--image", trained / "absent.jpg", *few], {}),
        (
            "--marginal-images 99: the 12",
            ["--id", "valid1.jpg", "--marginal-images", 99],
            {},
        ),
    ):
        status, out, err = likeliest(*arguments, **options)
        assert (status, out) == (2, "")
        assert message in err
        assert len(err.splitlines()) == 1
