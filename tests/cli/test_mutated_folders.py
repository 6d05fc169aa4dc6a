"""Feature stores whose content has changed: ``doctor`` finds them, and training what it would
read twice."""

import h5py
import numpy as np
import pytest
from toy_data import make_captions_folder

from fairseq_mm.cli.doctor import TASKS, set_up
from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError


def roll(name):
    def change(file):
        file[name][:] = np.roll(file[name][:], 1, axis=0)

    return change


def change_value(file):
    file["features"][2, 1] += 1


def repeat_id(file):
    file["ids"][1] = file["ids"][0]


@pytest.mark.parametrize("change", [roll("ids"), roll("features"), change_value, repeat_id])
def test_a_changed_feature_store_is_found(tmp_path, capsys, change):
    folder = make_captions_folder(tmp_path / "data")
    with h5py.File(folder / "features.h5", "r+") as file:
        change(file)
    found = "has an id twice" if change is repeat_id else "do not match the digest that they"
    assert main(["doctor", "--data", str(folder)]) == 2
    assert found in capsys.readouterr().out
    if change is repeat_id:  # rows are compared with the digest by doctor and store verify alone
        with pytest.raises(UserError, match=found):
            set_up(TASKS["captions"][0], str(folder), None).open_features()
