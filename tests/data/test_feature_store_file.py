"""A store's members lie in its own file, as the format says them, whatever HDF5 allows."""

import os
import re
import struct

import h5py
import numpy as np
import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.feature_store_copy import merge_stores
from fairseq_mm.data.feature_store_file import MEMBERS
from fairseq_mm.errors import UserError

DIM, ROWS = 5, 3
CONTENT = {
    "features": np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM),
    "offsets": np.array([0, 1, ROWS]),
    "ids": np.array(["x", "y"], dtype=h5py.string_dtype()),
}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store.h5")


@pytest.fixture
def write(path, tmp_path):
    """Writes a store without the member `name`, which `make(file)` then makes."""

    def write_store(name, make):
        # what the links point to has the same shape, so that only the link gives it away
        with h5py.File(tmp_path / "other.h5", "w") as other:
            for member, value in CONTENT.items():
                other[member] = value
        with h5py.File(path, "w") as file:
            file.attrs["format_version"] = 1
            for member, value in CONTENT.items():
                if member != name:
                    file[member] = value
            make(file)
        return path

    return write_store


def link_externally(name):
    def make(file):
        file[name] = h5py.ExternalLink("other.h5", f"/{name}")

    return make, "must lie in the file itself, but is a link"


def link_softly(name):
    def make(file):
        file[f"real_{name}"] = CONTENT[name]
        file[name] = h5py.SoftLink(f"/real_{name}")

    return make, "must lie in the file itself, but is a link"


def link_to_nothing(name):
    def make(file):
        file[name] = h5py.SoftLink("/nothing")

    return make, "must lie in the file itself, but is a link"


def link_to_a_folder_of_links(name):
    def make(file):
        file["outside"] = h5py.ExternalLink("other.h5", "/")
        file[name] = h5py.SoftLink(f"/outside/{name}")

    return make, "must lie in the file itself, but is a link"


def make_virtual(name):
    def make(file):
        value = CONTENT[name]
        layout = h5py.VirtualLayout(value.shape, value.dtype)
        layout[:] = h5py.VirtualSource("other.h5", name, shape=value.shape, dtype=value.dtype)
        file.create_virtual_dataset(name, layout)

    return make, "must lie in the file itself, but is a virtual dataset"


def make_group(name):
    def make(file):
        file.create_group(name)

    return make, "must be a dataset, but is a group"


def make_datatype(name):
    def make(file):
        file[name] = np.dtype("f4")

    return make, "must be a dataset, but is a datatype"


def make_empty(name):
    def make(file):
        file[name] = h5py.Empty("f4")

    return make, "must be a dataset with values, but has none"


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize(
    "kind",
    [
        *(link_externally, link_softly, link_to_nothing, link_to_a_folder_of_links, make_virtual),
        *(make_group, make_datatype, make_empty),
    ],
)
def test_what_does_not_lie_in_the_file_is_named_with_its_member(write, path, name, kind):
    make, message = kind(name)
    write(name, make)
    with pytest.raises(UserError, match=rf"^{re.escape(path)}: `{name}` {message}"):
        FeatureStore(path)


@pytest.mark.parametrize("command", [["verify"], ["verify", "--repair"], ["info"]])
def test_the_command_refuses_links_in_one_line(write, path, command, capsys):
    write("features", link_externally("features")[0])
    before = os.path.getsize(path)
    assert main(["store", *command, path]) == 2
    assert "`features` must lie in the file itself, but is a link" in capsys.readouterr().err
    assert os.path.getsize(path) == before


def test_links_are_neither_merged_nor_converted(write, path, tmp_path):
    write("features", link_softly("features")[0])
    with pytest.raises(UserError, match="is a link"):
        merge_stores([path], tmp_path / "merged.h5")
    assert not (tmp_path / "merged.h5").exists()


def float_type(precision, exponent_at, exponent_bits, bias, size):
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(precision - 1, exponent_at, exponent_bits, 0, exponent_at)
    kind.set_precision(precision)
    kind.set_ebias(bias)
    kind.set_size(size)
    return kind


@pytest.mark.parametrize(
    "kind",
    [
        float_type(16, 7, 8, 127, 2),  # bfloat16, which h5py shows as float32
        float_type(32, 23, 8, 100, 4),  # another bias
        h5py.h5t.IEEE_F64LE,
        h5py.h5t.STD_I32LE,
    ],
)
def test_numbers_of_another_layout_are_refused(write, path, kind):
    def make(file):
        space = h5py.h5s.create_simple((ROWS, DIM))
        h5py.h5d.create(file.id, b"features", kind, space)
        file["features"][...] = 1

    write("features", make)
    with pytest.raises(UserError, match=r"must be \[rows, dim\] of float16 or float32, but is"):
        FeatureStore(path)


@pytest.mark.parametrize("value", [np.zeros((ROWS, 0), np.float32), np.float32(3)])
def test_rows_without_channels_are_refused(write, path, value):
    write("features", lambda file: file.create_dataset("features", data=value))
    message = rf"but is {re.escape(str(list(value.shape)))} of float32"
    with pytest.raises(UserError, match=message):
        FeatureStore(path)


def write_reference(file):
    file.attrs["layer"] = file["ids"].ref


def write_compound(file):
    file.attrs["layer"] = np.zeros(2, dtype=[("name", "S3"), ("number", "f4")])


@pytest.mark.parametrize("make", [write_reference, write_compound])
def test_attributes_of_any_type_are_shown(write, path, make, capsys):
    write(None, make)
    assert main(["store", "info", path]) == 0
    assert re.search(r"^  layer +\S", capsys.readouterr().out, re.MULTILINE)


def assert_is_content(path, *, is_contiguous):
    store = FeatureStore(path)
    assert store.is_contiguous == is_contiguous
    np.testing.assert_array_equal(store.read("x"), CONTENT["features"][:1])
    np.testing.assert_array_equal(store.read("y"), CONTENT["features"][1:])


def hard_link(file):
    file["rows"] = CONTENT["features"]
    file["features"] = file["rows"]


def with_a_named_type(file):
    file["number"] = np.dtype("f4")
    file.create_dataset("features", data=CONTENT["features"], dtype=file["number"])


@pytest.mark.parametrize("make", [hard_link, with_a_named_type])
def test_other_names_in_the_file_are_read(write, path, make):
    write("features", make)
    assert_is_content(path, is_contiguous=True)


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (2, DIM)},
        {"chunks": (2, DIM), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"dtype": ">f4"},
    ],
)
def test_other_layouts_are_read_by_libhdf5(write, path, options):
    value = CONTENT["features"]
    write("features", lambda file: file.create_dataset("features", data=value, **options))
    assert_is_content(path, is_contiguous=False)


def test_rows_behind_a_user_block_are_found(path):
    with h5py.File(path, "w", userblock_size=512) as file:
        file.attrs["format_version"] = 1
        for name, value in CONTENT.items():
            file[name] = value
    assert_is_content(path, is_contiguous=True)


def test_rows_beyond_the_end_of_the_file_are_refused(write, path):
    write("ids", lambda file: file.create_dataset("ids", data=CONTENT["ids"]))
    with h5py.File(path) as file:
        place, size = file["features"].id.get_offset(), file["features"].nbytes
    with open(path, "rb") as file:
        content = file.read()
    before, after = (struct.pack("<QQ", at, size) for at in (place, len(content) - 8))
    assert content.count(before) == 1
    with open(path, "wb") as file:
        file.write(content.replace(before, after))
    with pytest.raises(UserError, match="HDF5 file is damaged or cut short"):
        FeatureStore(path)
