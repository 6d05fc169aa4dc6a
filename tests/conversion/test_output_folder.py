"""A folder appears when it is complete, or not at all."""

import os

import pytest

from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.errors import UserError


def write(folder, **files):
    for name, text in files.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def fail_while_writing(folder, error):
    with output_folder(str(folder)) as partial:
        write(partial, a="2")
        raise error


def test_a_folder_appears_at_the_end(tmp_path):
    with output_folder(str(tmp_path / "new")) as partial:
        write(partial, a="1")
        assert not (tmp_path / "new").exists()
    assert os.listdir(tmp_path) == ["new"]
    assert (tmp_path / "new" / "a").read_text() == "1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(error, tmp_path):
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", a="mine")
    for name in ("new", "old"):
        with pytest.raises(error):
            fail_while_writing(tmp_path / name, error)
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old" / "a").read_text() == "mine"


def test_a_link_to_a_folder_stays(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    with output_folder(str(tmp_path / "link")) as partial:
        write(partial, a="3")
    assert os.path.islink(tmp_path / "link")
    assert os.listdir(tmp_path / "real") == ["a"]


def test_a_full_or_missing_place_is_said_in_one_line(tmp_path):
    message = "none/new: cannot be written .No such file or directory"
    with pytest.raises(UserError, match=message), output_folder(str(tmp_path / "none" / "new")):
        pass
    message = "new: cannot be written .No space left"
    with pytest.raises(UserError, match=message), output_folder(str(tmp_path / "new")):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []
