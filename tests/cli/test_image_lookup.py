"""Which images can be had, in folders and in stores."""

import tarfile

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.cli.image_lookup import keys_in_stores, missing_in_folders
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError


@pytest.fixture
def images(tmp_path):
    """Five images; 5 lies in an archive."""
    folder = tmp_path / "photos"
    (folder / "train").mkdir(parents=True)
    image = Image.fromarray(np.zeros((3, 5, 3), dtype=np.uint8))
    image.save(folder / "train" / "1.JPG", format="jpeg")
    image.save(folder / "2.png")
    (folder / "3.jpg").write_bytes((folder / "train" / "1.JPG").read_bytes()[:150])
    (folder / "4.gif").write_bytes(b"")
    (folder / "6.txt").write_text("no image")
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        archive.add(folder / "2.png", "val/5.png")
    return folder


def test_images_are_found_by_their_stem_in_folders_and_archives(images, tmp_path):
    folders = [str(images), str(tmp_path / "more.tar")]
    missing = missing_in_folders("1234567", folders)
    assert missing == {"6": "no such file", "7": "no such file"}


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"nowhere: no such file or folder"):
        missing_in_folders("1", ["nowhere"])


@pytest.fixture
def store(tmp_path):
    def write(*keys):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        with FeatureStoreWriter(path, dim=3, dtype="float32", attributes={}) as writer:
            for key in keys:
                writer.append(key, np.ones((1, 3), dtype="float32"))
            writer.finish()
        return str(path)

    return write


def test_stores_give_the_keys_of_images(store):
    paths = [store("1", "train/2.jpg"), store("3.png", "9.jpg")]
    missing = {"4": "not in the feature store"}
    keys = {"1": "1", "2": "train/2.jpg", "3": "3.png"}
    assert keys_in_stores("1234", paths, by_stem=True) == (keys, missing)
    keys, missing = keys_in_stores(["1", "2", "3.png"], paths, by_stem=False)
    assert (keys, list(missing)) == ({"1": "1", "3.png": "3.png"}, ["2"])


def test_an_exact_key_goes_before_and_two_others_are_refused(store):
    path = store("1", "1.jpg", "2.jpg", "2.png")
    assert keys_in_stores("1", [path], by_stem=True) == ({"1": "1"}, {})
    with pytest.raises(UserError, match=r"h5: 2.jpg and 2.png could both be image 2\."):
        keys_in_stores("2", [path], by_stem=True)
