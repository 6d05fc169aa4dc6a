"""``fairseq-mm prepare NAME`` reads a release and writes a data folder."""

import json

import pytest
from written_folder import tokens


@pytest.fixture
def prepare(run_command, tmp_path):
    """Runs a script with ``--output`` and ``--threshold 1``; returns status, stdout, stderr."""

    def call(name, *arguments):
        options = ("--output", tmp_path / "out", "--threshold", 1)
        return run_command("prepare", name.removeprefix(""), *arguments, *options)

    return call


@pytest.fixture
def report(tmp_path):
    return lambda: json.loads((tmp_path / "out" / "prepare.json").read_text())


@pytest.fixture
def flickr8k(tmp_path):
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "Flickr8k.token.txt").write_text(
        "1_a.jpg#0\tA dog runs .\n1_a.jpg#1\t.\n2_b.jpg#0\tA cat .\n9_x.jpg#0\tNobody 's .\n"
    )
    (folder / "Flickr_8k.trainImages.txt").write_text("1_a.jpg\n")
    (folder / "Flickr_8k.devImages.txt").write_text("2_b.jpg\n")
    return folder


@pytest.fixture
def karpathy(tmp_path):
    def write(data_set):
        images = [
            {"filename": f"{n}.jpg", "split": split, "sentences": [{"raw": f"Dog {n} ."}]}
            for n, split in enumerate(["train", "val", "test"])
        ]
        path = tmp_path / f"dataset_{data_set}.json"
        path.write_text(json.dumps({"images": images, "dataset": data_set}))
        return path

    return write


@pytest.fixture
def annotations(tmp_path):
    files = []
    for year, numbers in (("train2014", [5]), ("val2014", [6, 7, 8])):
        content = {
            "images": [{"id": n, "file_name": f"COCO_{year}_{n:012d}.jpg"} for n in numbers],
            "annotations": [{"image_id": n, "id": n, "caption": f"Dog {n}."} for n in numbers],
        }
        files.append(tmp_path / f"captions_{year}.json")
        files[-1].write_text(json.dumps(content))
    return files


def images_of(report):
    return {split: counts["images"] for split, counts in report["counts"].items()}


def test_flickr8k(prepare, flickr8k, report):
    status, out, err = prepare("flickr8k", flickr8k)
    assert status == 0
    assert "1 empty captions skipped" in out
    assert "exception, captions without a split: 1 (9_x.jpg; all in prepare.json)" in out
    assert "train: 1 images found, 6,000 expected (flickr8k, split official)" in err
    assert f"test: skipped, {flickr8k / 'Flickr_8k.testImages.txt'} is not there" in err
    assert images_of(report()) == {"train": 1, "valid": 1}
    assert report()["split"] == "official"
    assert report()["exceptions"] == {"captions without a split": ["9_x.jpg"]}
    assert len(report()["deviations"]) == 2


def test_strict_turns_a_deviation_into_an_error(prepare, flickr8k, tmp_path):
    status, _, err = prepare("flickr8k", flickr8k, "--strict")
    assert status == 2
    assert err.splitlines()[-1] == (
        "fairseq-mm prepare: --strict: train: 1 images found, 6,000 expected (flickr8k, split "
        "official); valid: 1 images found, 1,000 expected (flickr8k, split official)."
    )
    assert not (tmp_path / "out").exists()


def test_flickr30k(prepare, karpathy, tmp_path, report):
    assert prepare("flickr30k", karpathy("flickr30k"))[0] == 0
    assert images_of(report()) == {"train": 1, "valid": 1, "test": 1}
    assert tokens(tmp_path / "out", "valid") == ["dog 1"]


def test_coco_in_each_division(prepare, karpathy, annotations, tmp_path, report):
    (tmp_path / "v.txt").write_text("7\n")
    (tmp_path / "t.txt").write_text("6\n")
    ids = ["--split-ids", f"valid={tmp_path / 'v.txt'}", f"test={tmp_path / 't.txt'}"]
    for division, arguments, images in (
        ("karpathy", [karpathy("coco")], {"train": 1, "valid": 1, "test": 1}),
        ("official", annotations, {"train": 1, "valid": 3}),
        ("m_rnn", [*annotations, *ids], {"train": 2, "valid": 1, "test": 1}),
    ):
        arguments = [*arguments, "--split", division, "--overwrite"]
        assert prepare("coco", *arguments)[0] == 0
        assert report()["split"] == division
        assert images_of(report()) == images


def test_iapr_tc12(prepare, tmp_path, report):
    for number in range(4):
        path = tmp_path / "eng" / "00" / f"{number}.eng"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"<DOC><DESCRIPTION>a house; a dog no{number};</DESCRIPTION>"
            f"<IMAGE>images/00/{number}.jpg</IMAGE></DOC>"
        )
    (tmp_path / "train.txt").write_text("00/0\n00/1\n00/2\n")
    (tmp_path / "test.txt").write_text("00/3\n")
    ids = ["--split-ids", f"train={tmp_path / 'train.txt'}", f"test={tmp_path / 'test.txt'}"]
    arguments = [tmp_path / "eng", *ids, "--valid-size", 1]
    assert prepare("iapr_tc12", *arguments)[0] == 0
    assert images_of(report()) == {"train": 2, "valid": 1, "test": 1}
    assert report()["counts"]["test"]["captions"] == 2
    assert report()["split"] == "guillaumin, 1 valid images drawn with seed 1"


@pytest.mark.parametrize("pairs", [["dev=a.txt"], ["a.txt"], ["test=a.txt", "test=b.txt"]])
def test_a_bad_list_of_splits_is_one_line(prepare, tmp_path, pairs):
    status, _, err = prepare("iapr_tc12", tmp_path, "--split-ids", *pairs)
    assert status == 2
    assert err.startswith("fairseq-mm prepare: --split-ids must be train=FILE, valid=FILE or test")
    assert f"each once, but is {' '.join(pairs)} instead" in err
