"""``fairseq-mm prepare join``: two prepared folders as one, with one dictionary and two stores."""

import json
import shutil

import numpy as np
import pytest
from toy_data import write_store
from written_folder import keys, records

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore, open_folder_features


def prepare(folder, name, entries, *options):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    output = folder / name
    arguments = ["prepare", "captions", path, "--threshold", 1, *options, "--output", output]
    assert main([*map(str, arguments)]) == 0
    write_store(output / "features.h5", [entry["image"] for entry in entries])
    return output


def entry(image, split, *captions):
    return {"image": image, "split": split, "captions": list(captions)}


FLICKR = [
    entry("1.jpg", "train", "A dog runs.", "A brown dog!"),
    entry("2.jpg", "train", "Two cats"),
    entry("3.jpg", "valid", "A dog and a cat"),
]
COCO = [
    entry("COCO_1.jpg", "train", "A dog's ball", "A zebra"),
    entry("COCO_2.jpg", "valid", "A train"),
    entry("COCO_3.jpg", "test", "A plane"),
]


@pytest.fixture
def folders(tmp_path):
    return prepare(tmp_path, "flickr", FLICKR), prepare(tmp_path, "coco", COCO)


@pytest.fixture
def join(run_command, tmp_path):
    def call(*arguments):
        return run_command("prepare", "join", *arguments, "--output", tmp_path / "out")

    return call


def test_training_is_joined_and_the_rest_is_the_firsts(join, folders, tmp_path):
    status, printed, _ = join(*folders, "--threshold", 2)
    assert status == 0
    assert printed.startswith("train: 3 images, 5 captions, ")
    assert "features.json: 2 feature stores, which stay where they are" in printed
    out = tmp_path / "out"
    assert records(out, "train") == [*records(folders[0], "train"), *records(folders[1], "train")]
    assert keys(out, "valid") == ["3.jpg"]
    assert not (out / "test.jsonl").exists()
    # of all training captions: a 4, dog 3 times
    assert (out / "dict.txt").read_text().split() == ["a", "4", "dog", "3"]
    report = json.loads((out / "prepare.json").read_text())
    assert report["options"]["tokenizer"] == "words"
    assert report["options"]["keep_case"] is False
    assert not (out / "features.h5").exists()
    features = open_folder_features(str(out))
    assert features.ids == ["1.jpg", "2.jpg", "3.jpg", "COCO_1.jpg", "COCO_2.jpg", "COCO_3.jpg"]


def test_a_joined_folder_trains(join, folders, tmp_path, monkeypatch):
    from toy_data import run_fairseq

    assert join(*folders, "--threshold", 1)[0] == 0
    command = (
        f"{tmp_path / 'out'} --task multimodal_captioning --arch m_rnn_tiny --optimizer adam "
        f"--save-dir {tmp_path / 'save'} --max-update 2 --batch-size 2 --cpu --num-workers 0"
    )
    run_fairseq(monkeypatch, "train", *command.split())
    assert (tmp_path / "save" / "checkpoint_best.pt").exists()


def test_ids_of_two_folders_get_their_names(join, tmp_path, folders):
    other = prepare(tmp_path, "other", [entry("1.jpg", "train", "A zebra")])
    status, _, errors = join(folders[0], other, "--threshold", 1)
    assert status == 0
    assert "1 ids stand in two folders, such as 1.jpg: ids begin with the name of" in errors
    out = tmp_path / "out"
    assert keys(out, "train") == ["flickr/1.jpg", "flickr/1.jpg", "flickr/2.jpg", "other/1.jpg"]
    assert keys(out, "valid") == ["flickr/3.jpg"]
    features = open_folder_features(str(out), preload=True)
    for key, folder in (("flickr/1.jpg", folders[0]), ("other/1.jpg", other)):
        expected = FeatureStore(folder / "features.h5").read("1.jpg")
        np.testing.assert_array_equal(features.read(key), expected)


def test_features_of_the_output_do_not_hide_those_of_the_joined_folders(join, folders, tmp_path):
    (tmp_path / "out").mkdir()
    write_store(tmp_path / "out" / "features.h5", ["1.jpg"])
    status, printed, errors = join(*folders)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert f"--output {tmp_path / 'out'}: has a features.h5, which would be read" in errors
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["features.h5"]


def test_folders_that_do_not_fit_are_one_line(join, folders, tmp_path):
    first, second = folders
    cased = prepare(tmp_path, "cased", COCO, "--keep-case")
    bare = prepare(tmp_path, "bare", COCO)
    (bare / "features.h5").unlink()
    other = prepare(tmp_path, "other", COCO)
    for name, options in (("a", {"dim": 7}), ("b", {"attributes": {"extractor": "vgg16"}})):
        folder = tmp_path / name
        shutil.copytree(other, folder)
        (folder / "features.h5").unlink()
        write_store(folder / "features.h5", [one["image"] for one in COCO], **options)
    stores = prepare(tmp_path, "stores", FLICKR)
    (stores / "features.h5").unlink()
    keys = [one["image"] for one in FLICKR]
    write_store(stores / "features.h5", keys, attributes={"extractor": "resnet152"})
    text = tmp_path / "text"
    arguments = (tmp_path / "coco.jsonl", "--without-images", "--threshold", 1, "--output", text)
    assert main(["prepare", "captions", *map(str, arguments)]) == 0
    for arguments, message in (
        ([first], "must be two or more different data folders"),
        ([first, first], "must be two or more different data folders"),
        ([bare, text], f"{text}: must be a folder of images with captions"),
        ([first, second, "--splits-of", bare], f"one of which is --splits-of {bare}"),
        ([first, cased], "was made with tokenizer = words, keep_case = True"),
        ([first, tmp_path / "a"], "made with dim = 7"),
        ([stores, tmp_path / "b"], "extractor = 'vgg16'"),
    ):
        status, printed, errors = join(*arguments)
        assert (status, printed) == (2, ""), arguments
        assert message in errors
        assert errors.count("\n") == 1
        assert not (tmp_path / "out").exists()
