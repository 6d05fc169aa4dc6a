"""``fairseq-mm search``, and the same searches from Python."""

import json
import os
import re
import urllib.parse

import numpy as np
import pytest
from PIL import Image
from toy_data import WORDS

from fairseq_mm import from_pretrained
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.inference.image_index import ImageIndex, IndexSummary, index_folder, index_path

SENTENCE = " ".join(WORDS[:3])


def one_line(text):
    (line,) = text.splitlines()
    return line


def names_of(output):
    return [os.path.basename(line.split("\t")[2]) for line in output.splitlines()]


def test_a_search_ranks_by_the_cosine(trained_embedder, indexed, search):
    embedder = from_pretrained(trained_embedder, device="cpu", kind="embedder")
    paths = sorted(str(path) for path in indexed.rglob("*.png"))
    cosines = embedder.embed_images(paths) @ embedder.embed_texts([SENTENCE])[0]
    order = np.argsort(-cosines)
    status, out, err = search(indexed, SENTENCE)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{rank}\t{cosines[i]:.4f}\t{paths[i]}" for rank, i in enumerate(order, 1)
    ]
    status, out, _ = search(indexed, SENTENCE, "--top", 2)
    assert names_of(out) == [os.path.basename(paths[i]) for i in order[:2]]


def test_several_queries_are_answered_one_after_the_other(indexed, search, tmp_path):
    first, second = search(indexed, WORDS[0])[1], search(indexed, WORDS[1])[1]
    image = str(indexed / "sub" / "image4.png")
    status, out, _ = search(indexed, WORDS[0], WORDS[1], "--image", image)
    lines = out.splitlines()
    assert lines[:12] == [WORDS[0], *first.splitlines(), WORDS[1], *second.splitlines()]
    assert lines[12] == image
    assert lines[13] == f"1\t1.0000\t{image}"
    # sentences before and after options
    mixed = search(indexed, WORDS[0], "--image", image, WORDS[1])
    assert mixed == (status, out, "")
    target = tmp_path / "found.jsonl"
    status, out, err = search(indexed, WORDS[0], WORDS[1], "--top", 3, "--output", target)
    assert (status, out, err) == (0, "", f"wrote {target}: 6 images\n")
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [record["query"] for record in records] == [WORDS[0]] * 3 + [WORDS[1]] * 3
    assert [record["rank"] for record in records] == [1, 2, 3, 1, 2, 3]
    for record, line in zip(records[:3], first.splitlines()):
        assert line == f"{record['rank']}\t{record['score']:.4f}\t{record['path']}"
        assert record["path"] == os.path.join(indexed, record["id"])
    status, out, _ = search(indexed, WORDS[0], WORDS[1], "--top", 3, "--jsonl")
    assert out == target.read_text()


def test_queries_of_a_file_follow_those_of_the_command_line(indexed, search, tmp_path):
    file = tmp_path / "queries.txt"
    file.write_text(f"\ufeff{WORDS[1]}\n\n{WORDS[2]}\r\n", encoding="utf-8")
    expected = search(indexed, *WORDS[:3])
    assert search(indexed, WORDS[0], "--queries", file) == expected
    status, out, err = search(indexed, "--queries", file, "--html", tmp_path / "found.html")
    assert (status, out) == (0, search(indexed, *WORDS[1:3])[1])
    page = (tmp_path / "found.html").read_text()
    assert f"<h2>{WORDS[1]}</h2>" in page
    assert f"<h2>{WORDS[2]}</h2>" in page
    # a single query is the title alone
    search(indexed, WORDS[1], "--html", tmp_path / "one.html")
    page = (tmp_path / "one.html").read_text()
    assert f"<h1>{WORDS[1]}</h1>" in page
    assert "<h2>Nearest</h2>" in page
    assert f"<h2>{WORDS[1]}</h2>" not in page
    status, out, err = search(indexed, "--queries", tmp_path / "none.txt")
    assert (status, out) == (2, "")
    assert "none.txt: cannot be read (No such file or directory)" in one_line(err)


def test_words_outside_the_vocabulary_are_named_and_left_out(indexed, search):
    _, expected, _ = search(indexed, SENTENCE)
    status, out, err = search(indexed, f"Zebra, {SENTENCE} quagga! zebra")
    assert (status, out) == (0, expected)
    assert one_line(err).endswith("left out words that the model does not know: zebra, quagga")
    status, out, err = search(indexed, SENTENCE, "zebra quagga")
    assert (status, out) == (2, "")
    assert "'zebra quagga' has no word that is in the dictionary" in one_line(err)


def test_a_search_without_a_readable_query_is_one_line(
    indexed, search, tmp_path, trained_captioner
):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    for arguments, message in (
        (["--image", broken], "broken.jpg: is not an image"),
        (["--image", tmp_path / "none.jpg"], "none.jpg: cannot be read (No such file"),
        ([], "give --queries or --image"),
        ([SENTENCE, "--checkpoint", trained_captioner], "is a model of fairseq-mm caption, not"),
        ([SENTENCE, "--html", tmp_path / "none" / "p.html"], "there is no folder"),
        ([SENTENCE, "--output", tmp_path], "is a folder"),
    ):
        status, out, err = search(indexed, *arguments)
        assert (status, out) == (2, "")
        assert message in one_line(err)


def test_a_page_shows_the_images_and_links_to_them(photos, search, tmp_path):
    name = "image é#1?.png"
    (photos / "image0.png").rename(photos / name)
    main(["index", str(photos), "--device", "cpu"])
    pages = tmp_path / "pages"
    pages.mkdir()
    page = pages / "page.html"
    query = str(photos / "image1.png")
    status, _, err = search(photos, f"{SENTENCE} zebra", "--image", query, "--html", page)
    assert status == 0
    assert f"wrote {page}: 10 images" in err
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 11
    assert "Left out, because the model does not know them: zebra" in text
    links = [urllib.parse.unquote(link) for link in re.findall(r'<a href="(.*?)">', text)]
    assert len(links) == 11
    assert all((pages / link).is_file() for link in links)
    assert f"../photos/{name}" in links


def test_python_searches_by_open_images_and_vectors(photos, trained_embedder):
    summary = index_folder(photos, trained_embedder, device="cpu")
    path = index_path(photos)
    assert summary == IndexSummary(path, 5, 0, 0, 0, unreadable=[])
    index = ImageIndex.open(photos)
    with Image.open(photos / "image2.png") as image:
        (by_image,) = index.search_images([image], count=1)
    assert by_image.images[0].id == "image2.png"
    assert by_image.images[0].score == pytest.approx(1, abs=1e-5)
    (by_vector,) = index.search_vectors(index.store.vectors[4:], count=1)
    assert by_vector.images[0].id == index.store.ids[4]
    assert index.search([]) == []
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="count"):
            index.search([SENTENCE], wrong)
    with pytest.raises(ValueError, match="must be a list"):
        index.search(SENTENCE)


def test_images_that_vanished_are_left_out_and_counted(photos, search):
    names = names_of(search(photos, SENTENCE)[1])
    for name in names[:2]:
        next(photos.rglob(name)).unlink()
    status, out, err = search(photos, SENTENCE, "--top", 2)
    assert status == 0
    assert names_of(out) == names[2:4]
    assert one_line(err).startswith("2 images are left out, vanished since the folder was indexed")
    for path in photos.rglob("*.png"):
        path.unlink()
    status, out, err = search(photos, SENTENCE)
    assert (status, out) == (2, "")
    assert "none of the 5 images of the index is there" in one_line(err)


def test_a_store_of_embed_is_an_index(trained_embedder, photos, search, tmp_path):
    """With the paths of the images as ids, and the checkpoint that made it."""
    index = FeatureStore(index_path(photos))
    store = tmp_path / "vectors.h5"
    with FeatureStoreWriter(
        store,
        dim=index.dim,
        dtype="float32",
        attributes={name: index.attributes[name] for name in ("extractor", "weights")},
    ) as writer:
        for key in index.ids:
            writer.append(key, index.read(key))
        writer.finish()
    expected = search(photos, SENTENCE)
    options = ["--index", store, "--checkpoint", trained_embedder]
    assert search(photos, SENTENCE, *options) == expected
    assert "give the checkpoint" in one_line(search(photos, SENTENCE, "--index", store)[2])
