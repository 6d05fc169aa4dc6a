"""Merging and converting: no row changes but as asked, and the order does not change the sum."""

import hashlib
import json
import os

import numpy as np
import pytest

from fairseq_mm.data.feature_importers import merge_stores
from fairseq_mm.data.feature_store import FeatureStore, Source
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError

DIM = 3
MADE = {"extractor": "resnet18", "layer": "layer4", "grid": 1}
ITEMS = {f"i{i}": np.arange((1 + i) * DIM).reshape(1 + i, DIM) / 4 for i in range(5)}


@pytest.fixture
def write_store(tmp_path):
    def write(name, keys, attributes=MADE, dtype="float16", dim=DIM):
        path = str(tmp_path / name)
        with FeatureStoreWriter(path, dim=dim, dtype=dtype, attributes=attributes) as writer:
            for key in keys:
                writer.append(key, ITEMS[key])
            writer.finish()
        return path

    return write


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out.h5")


def assert_has(path, keys):
    store = FeatureStore(path)
    assert store.ids == list(keys)
    for key in keys:
        np.testing.assert_array_equal(store.read(key), ITEMS[key])


def test_merged_stores_have_all_items_in_order(write_store, out):
    a = write_store("a.h5", ["i3", "i0"], {**MADE, "note": "one", "source": "photos"})
    b = write_store("b.h5", ["i4"], {**MADE, "note": "two", "source": "photos"})
    merge_stores([a, b], out)
    assert_has(out, ["i3", "i0", "i4"])
    attributes = FeatureStore(out).attributes
    assert attributes.items() >= {**MADE, "source": "photos"}.items()
    assert "note" not in attributes


def test_a_merge_is_as_wide_as_its_widest_store(write_store, out):
    merge_stores([write_store("a.h5", ["i1"]), write_store("b.h5", ["i2"], dtype="float32")], out)
    assert FeatureStore(out).dtype == np.float32


def test_digests_of_weights_must_agree_but_earlier_stores_have_none(write_store, out):
    paths = [
        write_store(f"{key}.h5", [key], {**MADE, **digest})
        for key, digest in (
            ("i0", {"weights_digest": "names:a", "library": "timm 1.0"}),
            ("i1", {"weights_digest": "names:a", "library": "timm 1.1"}),
            ("i2", {}),
            ("i3", {"weights_digest": "names:b"}),
            ("i4", {"weights_digest": "c"}),
        )
    ]
    with pytest.raises(UserError, match=r"i3.h5: made with weights_digest = 'names:b', but .*i0.h"):
        merge_stores([paths[0], paths[3]], out)
    merge_stores(paths[:2], out)
    assert FeatureStore(out).attributes["weights_digest"] == "names:a"
    assert "library" not in FeatureStore(out).attributes
    merge_stores([*paths[:3], paths[4]], out, overwrite=True)
    assert "weights_digest" not in FeatureStore(out).attributes


def test_the_digest_is_the_sum_of_the_items_and_not_of_their_order(write_store, out):
    items = 0
    for key in ("i1", "i2"):
        content = f"{key}\0{DIM}\0float16\0".encode() + ITEMS[key].astype(np.float16).tobytes()
        items += int(hashlib.sha256(content).hexdigest(), 16)
    items += int(hashlib.sha256(json.dumps({"extractor": "net"}).encode()).hexdigest(), 16)
    a = write_store("a.h5", ["i1", "i2"], {"extractor": "net"})
    b = write_store("b.h5", ["i2", "i1"], {"extractor": "net", "note": "x"})
    merge_stores([b], out)
    for path in (a, b, out):
        store = FeatureStore(path)
        assert store.digest == store.check_content() == f"{items % 2**256:064x}"
    merge_stores([a], out, dtype="float32", overwrite=True)
    assert FeatureStore(out).digest != FeatureStore(a).digest


def write_part(tmp_path, name, shard, of="list"):
    path = str(tmp_path / name)
    attributes = {"extractor": "net", "shard": shard, "shard_of": of}
    with FeatureStoreWriter(path, dim=DIM, attributes=attributes) as writer:
        writer.append(name, np.zeros((1, DIM)), Source(7, 10**18, bytes(32)))
        writer.finish()
    return path


def test_parts_of_a_list_are_merged_together_alone(tmp_path, out):
    parts = [write_part(tmp_path, f"{i}.h5", f"{i}/3") for i in (1, 2, 3)]
    other = write_part(tmp_path, "other.h5", "1/3", of="another list")
    for some, missing in (
        (parts[1:], "1 are not given, such as 1"),
        ([*parts[1:], other], "1 are"),
    ):
        with pytest.raises(UserError, match=f"of 3 parts of a list, {missing}"):
            merge_stores(some, out)
    assert not os.path.exists(out)
    merge_stores(parts[::-1], out)
    store = FeatureStore(out)
    assert store.ids == ["3.h5", "2.h5", "1.h5"]
    assert store.get_source("1.h5") == Source(7, 10**18, bytes(32))
    assert set(store.attributes) == {"extractor", "package_version", "created"}
    merge_stores(parts[:2], out, ignore_missing_parts=True, overwrite=True)
    assert FeatureStore(out).ids == ["1.h5", "2.h5"]
    merge_stores(parts[:1], out, dtype="float32", overwrite=True)
    assert (FeatureStore(out).attributes["shard"], FeatureStore(out).dtype) == ("1/3", np.float32)
