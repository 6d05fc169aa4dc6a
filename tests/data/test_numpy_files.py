"""Numpy's files are refused in one line, whatever their headers say, before memory is taken."""

import io
import zipfile

import numpy as np
import pytest

from fairseq_mm.data.numpy_files import load_numpy, read_member
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


def test_a_header_that_declares_more_than_the_archive_holds_is_refused(tmp_path):
    path = archive(tmp_path / "x.npz", declaring((1 << 40, 3)))
    with pytest.raises(UserError, match=r"x\.npz: cannot be read"):
        read_member(load_numpy(path), path, None)
    (tmp_path / "x.npy").write_bytes(declaring((1 << 40, 3)))
    with pytest.raises(UserError, match=r"x\.npy: cannot be read"):
        load_numpy(tmp_path / "x.npy")


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
