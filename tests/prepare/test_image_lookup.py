"""Which images feature stores have, by their names."""

import numpy as np
import pytest

from fairseq_mm.cli.prepare import keys_in_stores
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError


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
