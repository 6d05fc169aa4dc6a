"""Numpy's files are refused in one line, whatever their headers say, before memory is taken."""

import io
import zipfile

import numpy as np
import pytest

from fairseq_mm.data.numpy_files import StreamedArray, load_numpy, read_array, read_member
from fairseq_mm.errors import UserError


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", content)
    return path


def declaring(shape):
    """An array of two rows whose header says another shape of as many characters."""
    content = npy(np.ones((2, 3), np.float32))
    old, new = b"(2, 3), }", f"({shape[0]}, {shape[1]}), }}".encode()
    return content.replace(old + b" " * (len(new) - len(old)), new)


def test_members_are_read(tmp_path):
    path = archive(tmp_path / "x.npz", npy(np.ones((2, 3), np.float32)))
    assert read_member(load_numpy(path), path, None).tolist() == [[1.0] * 3] * 2
    assert StreamedArray(path, "features").read(1).tolist() == [1.0] * 3


def test_content_in_memory_is_read():
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (rows, np.asfortranarray(rows), rows.astype(">f8")):
        read = read_array(npy(array), "x.npy")
        assert (read.tolist(), read.dtype) == (array.tolist(), array.dtype)


def test_content_in_memory_must_have_the_bytes_that_its_header_declares():
    message = r"^x\.npy: cannot be read \(its header declares 13,194,139,533,312"
    with pytest.raises(UserError, match=message):
        read_array(declaring((1 << 40, 3)), "x.npy")
    for content in (b"", b"text", npy(np.ones(3))[:-1], npy(np.ones(3)) + b"x"):
        with pytest.raises(UserError, match=r"^x\.npy: cannot be read \("):
            read_array(content, "x.npy")
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    with pytest.raises(UserError, match=r"^x\.npy: cannot be read \(Python objects"):
        read_array(objects.getvalue(), "x.npy")


def stream(path):
    array = StreamedArray(path, "features")
    return [array.read(i) for i in range(3)]


def test_a_header_that_declares_more_than_the_archive_holds_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", declaring((1 << 40, 3)))
    for read in (lambda: read_member(load_numpy(path), path, None), lambda: stream(path)):
        with pytest.raises(UserError, match=r"x\.npz: cannot be read"):
            read()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"'descr'", b"'desXr'"),
        (b"'<f4'", b"'<@4'"),
        (b"(2, 3)", b"(2, -3"),
        (b"(2, 3)", b"[[[[[["),
        (b"{", b"\xff"),
        (b"(2, 3)", b"(2,'3)"),
        (b"NUMPY\x01", b"NUMPY\x09"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_broken_headers_are_one_line(tmp_path, old, new, suffix):
    content = npy(np.ones((2, 3), np.float32))
    assert old in content
    content, path = content.replace(old, new), tmp_path / f"x{suffix}"
    if suffix == ".npy":
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.npy: cannot be read"):
            load_numpy(path)
        return
    archive(path, content)
    with pytest.raises(UserError, match=r"x\.npz: cannot be read"):
        read_member(load_numpy(path), path, "features")
    with pytest.raises(UserError, match=r"x\.npz"):
        StreamedArray(path, "features")
