"""Records of the files that a store was made of: optional, carried along, checked when read."""

import h5py
import numpy as np
import pytest

from fairseq_mm.data.feature_sources import Source
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_copy import convert_store, merge_stores
from fairseq_mm.data.feature_store_inspection import verify_store
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError

DIM = 3


def source(number):
    return Source(100 + number, 10**18 + number, bytes([number]) * 32)


@pytest.fixture
def write(tmp_path):
    def write_store(name, sources):
        path = str(tmp_path / name)
        with FeatureStoreWriter(path, dim=DIM, attributes={}) as writer:
            for i, (key, one) in enumerate(sources.items()):
                writer.append(key, np.full((i + 1, DIM), i), one)
            writer.finish()
        return path

    return write_store


def test_copies_carry_the_records(write, tmp_path):
    one = write("one.h5", {"a": source(1), "b": source(2)})
    other = write("other.h5", {"c": None, "d": source(4)})
    out = str(tmp_path / "merged.h5")
    merge_stores([one, other], out)
    sources = [FeatureStore(out).get_source(key) for key in "abcd"]
    assert sources == [source(1), source(2), None, source(4)]
    convert_store(out, tmp_path / "few.h5", dtype="float32")
    few = FeatureStore(tmp_path / "few.h5")
    assert [few.get_source(key) for key in few.ids] == sources


def test_an_interrupted_merge_is_continued_with_the_same_stores_alone(write, tmp_path):
    one = write("one.h5", {"a": None, "b": None})
    out = tmp_path / "merged.h5"

    def interrupted(keys):
        yield keys[0]
        yield keys[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_stores([one], out, progress=interrupted)
    exchanged = write("exchanged.h5", {"b": None, "a": None})
    with pytest.raises(UserError, match="was begun with other features of 'b'"):
        merge_stores([exchanged], out)
    merge_stores([one], out)
    assert FeatureStore(out).ids == ["a", "b"]


def link(file):
    del file["source_times"]
    file["source_times"] = h5py.SoftLink("/source_sizes")


def leave_out(file):
    del file["source_digests"]


def shorten(file):
    sizes = file["source_sizes"][:-1]
    del file["source_sizes"]
    file["source_sizes"] = sizes


def retype(file):
    sizes = file["source_sizes"][:]
    del file["source_sizes"]
    file["source_sizes"] = sizes.astype(np.float64)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (link, "`source_times` must lie in the file itself, but is a link"),
        (leave_out, "but lacks source_digests"),
        (shorten, r"`source_sizes` must be \[2\] of int64, but is \[1\] of int64"),
        (retype, r"`source_sizes` must be \[2\] of int64, but is \[2\] of float64"),
    ],
)
def test_records_that_do_not_fit_are_refused_by_verify_and_rows_still_read(write, damage, message):
    path = write("one.h5", {"a": source(1), "b": source(2)})
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(UserError, match=message):
        verify_store(path)
    assert FeatureStore(path).read("b").shape == (2, DIM)
