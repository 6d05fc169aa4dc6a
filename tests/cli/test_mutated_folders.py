"""Prepared data folders with a damaged file: training refuses them in one line, as ``doctor``."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from fairseq_mm.cli.doctor import TASKS, set_up
from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError

SPLITS = ("train", "valid")
LINES = 6
WORDS = "a the dog cat man runs sits jumps on in grass snow red blue small big".split()  # noqa: SIM905
DIM = 4
RECORDS = {
    "captions": lambda key, say: {"image": key, "captions": [say(), say()]},
    "stories": lambda key, say: {
        "images": [f"{key}_{place}" for place in range(5)],
        "sentences": [say() for _ in range(5)],
        "id": key,
        "album": f"album {key}",
    },
    "prompts": lambda key, say: {"prompt": say(), "story": say(), "id": key},
    "videos": lambda key, say: {
        "video": key,
        "transcript": f"{say()} rare{key}",
        "summary": say(),
    },
}
OPTIONS = {
    "captions": ("--threshold", "1"),
    "stories": ("--threshold", "1"),
    "prompts": ("--source-threshold", "1", "--target-threshold", "1"),
    "videos": ("--threshold", "2", "--indexed-oov", "2"),
}
NAMES = {"stories": "visual stories"}


def make_folder(kind, folder):
    generator = np.random.default_rng(7)

    def say():
        return " ".join(generator.choice(WORDS, size=generator.integers(4, 9)))

    keys = [f"{split[0]}{number}" for split in SPLITS for number in range(LINES)]
    lines = [
        json.dumps({**RECORDS[kind](key, say), "split": "train" if key[0] == "t" else "valid"})
        for key in keys
    ]
    data, output = folder / "data.jsonl", folder / "prepared"
    data.write_text("".join(f"{line}\n" for line in lines))
    assert main(["prepare", kind, str(data), "--output", str(output), *OPTIONS[kind]]) == 0
    if kind == "stories":
        keys = [f"{key}_{place}" for key in keys for place in range(5)]
    (folder / "rows").mkdir()
    for key in keys:
        np.save(folder / "rows" / f"{key}.npy", generator.normal(size=(1, DIM)))
    options = "--dtype float32 --extractor drawn --weights torchvision:V1 --layer pool"
    command = ["store", "import", str(folder / "rows"), "--output", str(output / "features.h5")]
    assert main([*command, *options.split()]) == 0
    return output


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    return {kind: make_folder(kind, tmp_path_factory.mktemp(kind)) for kind in RECORDS}


@pytest.fixture
def copy(originals, tmp_path):
    return lambda kind: Path(shutil.copytree(originals[kind], tmp_path / kind))


def load(kind, folder):
    task = set_up(TASKS[NAMES.get(kind, kind)][0], str(folder), None)
    if hasattr(task.cfg, "eval_gen"):
        task.cfg.eval_gen = True
    task.load_dataset("valid", combine=False, epoch=1)
    if kind != "prompts":
        task.open_features()


def roll(name):
    def change(file):
        file[name][:] = np.roll(file[name][:], 1, axis=0)

    return change


def change_value(file):
    file["features"][2, 1] += 1


def repeat_id(file):
    file["ids"][1] = file["ids"][0]


@pytest.mark.parametrize("change", [roll("ids"), roll("features"), change_value, repeat_id])
def test_a_changed_feature_store_is_found(copy, capsys, change):
    folder = copy("captions")
    path = folder / "features.h5"
    with h5py.File(path, "r+") as file:
        change(file)
    found = "stands in it twice" if change is repeat_id else "do not match the digest that they"
    assert main(["doctor", "--data", str(folder)]) == 2
    assert found in capsys.readouterr().out
    if change is repeat_id:  # rows are compared with the digest by doctor and store verify alone
        with pytest.raises(UserError, match=found):
            load("captions", folder)
