"""Merging and converting: no row changes but as asked, and the order does not change the sum."""

import hashlib
import json
import os

import numpy as np
import pytest

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_checksum import content_checksum
from fairseq_mm.data.feature_store_copy import convert_store, merge_stores
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
    assert merge_stores([a, b], out) == 3
    assert_has(out, ["i3", "i0", "i4"])
    attributes = FeatureStore(out).attributes
    assert attributes.items() >= {**MADE, "source": "photos"}.items()
    assert "note" not in attributes


def test_a_merge_is_as_wide_as_its_widest_store(write_store, out):
    merge_stores([write_store("a.h5", ["i1"]), write_store("b.h5", ["i2"], dtype="float32")], out)
    assert FeatureStore(out).dtype == np.float32


def test_a_merge_continues(write_store, out):
    paths = [write_store("a.h5", ["i0", "i1"]), write_store("b.h5", ["i2", "i3"])]

    def interrupted(keys):
        yield from keys[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_stores(paths, out, progress=interrupted)
    with pytest.raises(UserError, match="begun for other items: 'i2' is none of these"):
        merge_stores(paths[:1], out)
    merge_stores(paths, out)
    assert_has(out, ["i0", "i1", "i2", "i3"])


def test_stores_that_do_not_fit_together_are_not_merged(write_store, out):
    a = write_store("a.h5", ["i0", "i1"])
    with pytest.raises(UserError, match=r"the id 'i1' stands both in .*a.h5 and in .*b.h5"):
        merge_stores([a, write_store("b.h5", ["i1"])], out)
    other = write_store("c.h5", ["i2"], {**MADE, "layer": "layer3"})
    with pytest.raises(UserError, match=r"c.h5: made with layer = 'layer3', but .*a.h5 with "):
        merge_stores([a, other], out)
    unnamed = write_store("d.h5", ["i3"], {})
    with pytest.raises(UserError, match="made with extractor = 'nothing', but"):
        merge_stores([a, unnamed], out)
    with pytest.raises(UserError, match=r"a.h5: is an input, and must be another file"):
        merge_stores([a], a, overwrite=True)


def test_digests_of_weights_must_agree_but_earlier_stores_have_none(write_store, out):
    paths = [
        write_store(f"{key}.h5", [key], {**MADE, **digest})
        for key, digest in (
            ("i0", {"weights_digest": "a", "library": "timm 1.0"}),
            ("i1", {"weights_digest": "a", "library": "timm 1.1"}),
            ("i2", {}),
            ("i3", {"weights_digest": "b"}),
        )
    ]
    with pytest.raises(UserError, match=r"i3.h5: made with weights_digest = 'b', but .*i0.h5"):
        merge_stores([paths[0], paths[3]], out)
    merge_stores(paths[:2], out)
    assert FeatureStore(out).attributes["weights_digest"] == "a"
    assert "library" not in FeatureStore(out).attributes
    merge_stores(paths[:3], out, overwrite=True)
    assert "weights_digest" not in FeatureStore(out).attributes


def test_conversion_without_changes_copies(write_store, out):
    path = write_store("a.h5", ITEMS)
    convert_store(path, out)
    assert_has(out, ITEMS)
    assert content_checksum(FeatureStore(out)) == content_checksum(FeatureStore(path))


def test_the_checksum_is_the_sum_of_the_items_and_not_of_their_order(write_store):
    items = 0
    for key in ("i1", "i2"):
        content = f"{key}\0{DIM}\0float16\0".encode() + ITEMS[key].astype(np.float16).tobytes()
        items += int(hashlib.sha256(content).hexdigest(), 16)
    items += int(hashlib.sha256(json.dumps({"extractor": "net"}).encode()).hexdigest(), 16)
    a = content_checksum(FeatureStore(write_store("a.h5", ["i1", "i2"], {"extractor": "net"})))
    more = {"extractor": "net", "note": "x"}
    b = content_checksum(FeatureStore(write_store("b.h5", ["i2", "i1"], more)))
    assert a == b == f"{items % 2**256:064x}"
    wide = write_store("c.h5", ["i1", "i2"], dtype="float32")
    assert content_checksum(FeatureStore(wide)) != a


def write_part(tmp_path, name, shard, of="list", first=0):
    path = str(tmp_path / name)
    attributes = {"extractor": "net"}
    if shard:
        attributes.update(shard=shard, shard_of=of)
    with FeatureStoreWriter(path, dim=DIM, attributes=attributes) as writer:
        writer.append(f"{name}", np.full((1, DIM), first))
        writer.finish()
    return path


@pytest.mark.parametrize("records", [True, False])
def test_parts_of_a_list_are_merged_together_alone(tmp_path, out, records):
    names = [f"f.{i}of3.h5" for i in (1, 2, 3)]
    shards = ["1/3", "2/3", "3/3"] if records else [None] * 3
    parts = [write_part(tmp_path, name, shard) for name, shard in zip(names, shards)]
    message = r"f.2of3.h5: is part 2 of 3 of a list, but other parts .* not given: 1, 3\."
    with pytest.raises(UserError, match=message):
        merge_stores(parts[1:2], out)
    assert not os.path.exists(out)
    merge_stores(parts[::-1], out)
    assert FeatureStore(out).ids == names[::-1]
    assert set(FeatureStore(out).attributes) == {"extractor", "package_version", "created"}
    merge_stores(parts[:2], out, ignore_missing_parts=True, overwrite=True)
    assert FeatureStore(out).ids == names[:2]


def test_parts_of_two_lists_do_not_complete_each_other(tmp_path, out):
    one = write_part(tmp_path, "f.1of2.h5", "1/2", of="list of 100")
    two = write_part(tmp_path, "f.2of2.h5", "2/2", of="list of 110")
    with pytest.raises(UserError, match=r"f.1of2.h5: is part 1 of 2 .* not given: 2\."):
        merge_stores([one, two], out)


def test_a_part_that_is_converted_stays_a_part(tmp_path, out):
    convert_store(write_part(tmp_path, "f.1of2.h5", "1/2"), out, dtype="float32")
    store = FeatureStore(out)
    assert (store.attributes["shard"], store.dtype) == ("1/2", np.float32)
