"""COCO in its three splits, from tiny files in the official layouts."""

import json

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.prepare.releases.coco import read_coco


def name_of(number, year):
    return f"COCO_{year}_{number:012d}.jpg"


@pytest.fixture
def official(tmp_path):
    """train2014 has images 9, 25 and 167126; val2014 has 42, 73, 74 and 133."""
    files = []
    for year, numbers in (("train2014", [25, 9, 167126]), ("val2014", [42, 73, 74, 133])):
        content = {
            "info": {"year": 2014}, "licenses": [], "type": "captions",
            "images": [{"license": 5, "file_name": name_of(n, year), "id": n, "height": 480,
                        "width": 640} for n in numbers],
            # later annotation numbers first
            "annotations": [{"image_id": n, "id": 10 * n + k, "caption": f"A dog {n} {k}. "}
                            for k in (1, 0) for n in numbers],
        }  # fmt: skip
        files.append(tmp_path / f"captions_{year}.json")
        files[-1].write_text(json.dumps(content))
    return files


def numbers_of(corpus):
    return {
        split: [int(item.id[-16:-4]) for item in items] for split, items in corpus.splits.items()
    }


def test_the_official_division(official):
    corpus = read_coco("official", official, {})
    assert numbers_of(corpus) == {"train": [25, 9, 167126], "valid": [42, 73, 74, 133]}
    assert corpus.splits["train"][1].id == "COCO_train2014_000000000009.jpg"
    assert corpus.splits["train"][1].texts["captions"] == ["A dog 9 0.", "A dog 9 1."]
    assert corpus.deviations() == [
        "train: 3 images found, 82,783 expected (coco, split official)",
        "valid: 4 images found, 40,504 expected (coco, split official)",
    ]


@pytest.mark.parametrize("form", ["numbers", "names", "json"])
def test_the_division_of_m_rnn(official, tmp_path, form):
    lists = {"valid": tmp_path / "valid.txt", "test": tmp_path / "test.txt"}
    if form == "numbers":
        lists["valid"].write_text("74\n42\n")
        lists["test"].write_text("133\n")
    elif form == "names":
        lists["valid"].write_text("COCO_val2014_000000000074.jpg\nval2014/000000000042.jpg\n")
        lists["test"].write_text("COCO_val2014_000000000133\n")
    else:
        lists = {split: path.with_suffix(".json") for split, path in lists.items()}
        lists["valid"].write_text("[74, 42]")
        lists["test"].write_text('["COCO_val2014_000000000133.jpg"]')
    corpus = read_coco("m_rnn", official, lists)
    assert numbers_of(corpus) == {"train": [25, 9, 73], "valid": [74, 42], "test": [133]}
    assert corpus.exceptions == {"left out, as in the released lists": ["167126"]}
    assert corpus.division == "m_rnn"
    assert corpus.deviations()[0].startswith("train: 3 images found, 118,286 expected")


def test_the_division_of_karpathy_trains_on_restval(tmp_path):
    images = [
        {"filepath": "val2014", "filename": name_of(n, "val2014"), "imgid": n, "cocoid": n,
         "split": split, "sentids": [n],
         "sentences": [{"tokens": ["a"], "raw": f"A {n}.", "imgid": n, "sentid": n}]}
        for n, split in enumerate(["test", "restval", "val", "train", "restval"], 50)
    ]  # fmt: skip
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    corpus = read_coco("karpathy", [path], {})
    assert numbers_of(corpus) == {"train": [51, 53, 54], "valid": [52], "test": [50]}
    assert corpus.deviations() == [
        "train: 3 images found, 113,287 expected (coco, split karpathy)",
        "valid: 1 images found, 5,000 expected (coco, split karpathy)",
        "test: 1 images found, 5,000 expected (coco, split karpathy)",
    ]


def test_files_and_lists_must_be_those_of_the_division(official, tmp_path):
    for division, files, lists, message in (
        ("karpathy", official, {}, "reads dataset_coco.json and .* no split, but 2 files"),
        ("official", official[:1], {}, "reads captions_train2014.json capt.*, but 1 files"),
        ("m_rnn", official, {}, "reads .* for valid test, but 2 files .* for no split"),
        ("official", official, {"test": tmp_path}, "reads .* for no split, but .* for test"),
    ):
        with pytest.raises(UserError, match=f"--split {division} {message}"):
            read_coco(division, files, lists)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", "9\n", r"v.txt: image 9 is not in .*captions_val2014.json"),
        ("v.txt", "42\n133\n", r"t.txt: image 133 was given before, at .*v.txt"),
        ("v.txt", "dog.jpg\n", r'v.txt:1: must be an image number or .* but is "dog.jpg" instead'),
        ("v.txt", "9" * 6000, r"v.txt:1: must be an image number"),
        ("v.npy", "\x93NUMPY", r"v.npy:1: must be an image number"),
    ],
)
def test_a_bad_list_of_images_is_refused(official, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    (tmp_path / "t.txt").write_text("133\n")
    with pytest.raises(UserError, match=message):
        read_coco("m_rnn", official, {"valid": tmp_path / name, "test": tmp_path / "t.txt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("images"), "KeyError: 'images'"),
        (lambda c: c["images"][1].pop("file_name"), "KeyError: 'file_name'"),
        (lambda c: c["annotations"][0].update(image_id=5), "KeyError: 5"),
        (lambda c: c["annotations"][1].update(caption=None), "AttributeError: 'NoneType'"),
    ],
)
def test_a_malformed_annotation_file_is_refused(official, change, message):
    content = json.loads(official[0].read_text())
    change(content)
    official[0].write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read_coco("official", official, {})
