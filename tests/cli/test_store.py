"""fairseq-mm store: what it prints, writes and refuses."""

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.extract.preprocessing import Preprocessing

N, D = 6, 4
ROWS = np.arange(N * D, dtype=np.float32).reshape(N, D)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", ROWS)
    np.save("grids.npy", np.stack([ROWS, ROWS + 1], axis=1))
    Path("ids.txt").write_text("".join(f"{i}.jpg\n" for i in range(N)))
    Path("some.txt").write_text("4.jpg\n1.jpg\n")
    Path("weights.pt").write_bytes(b"abc")
    return tmp_path


@pytest.fixture
def store(folder):
    command = "store import grids.npy --output grids.h5 --ids ids.txt --extractor alexnet"
    assert main(command.split()) == 0
    return "grids.h5"


def run(capsys, command):
    capsys.readouterr()
    status = main(["store", *command.split()])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_import_says_what_it_wrote(folder, capsys):
    status, out, err = run(
        capsys,
        "import rows.npy --output rows.h5 --ids ids.txt --dtype float16 --extractor alexnet "
        "--layer classifier.5 "
        '--weights weights.pt --preprocessing {"resize":"squash","resize_size":224} ',
    )
    assert (status, out) == (
        0,
        f"wrote rows.h5: 6 items, dim 4, float16, {os.path.getsize('rows.h5') / 1e6:.1f} MB\n",
    )
    assert "import: 100%" in err
    store = FeatureStore("rows.h5")
    for name in ("created", "package_version"):
        store.attributes.pop(name)
    assert store.attributes == {
        "imported_from": "rows.npy",
        "extractor": "alexnet",
        "layer": "classifier.5",
        "weights": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "grid": 0,
        "preprocessing": Preprocessing(resize="squash", resize_size=224).to_json(),
    }
    np.testing.assert_array_equal(store.read("3.jpg"), ROWS[3:4])


def test_info_shows_counts_and_attributes(store, capsys):
    status, out, _ = run(capsys, f"info {store}")
    shown = dict(
        line.split(maxsplit=1) for line in out.splitlines() if not line.startswith("rows c")
    )
    assert status == 0
    assert shown["items"] == "6"
    assert shown["rows"] == "12 (2 an item)"
    assert shown["dim"] == "4"
    assert shown["extractor"] == "alexnet"
    facts = json.loads(run(capsys, f"info {store} --json")[1])
    assert facts["rows_per_item"] == [2, 2]
    assert facts["attributes"]["imported_from"] == "grids.npy"


def test_info_lists_the_ids(store, capsys):
    assert run(capsys, f"info {store} --ids")[1].splitlines()[:2] == ["0.jpg\t2", "1.jpg\t2"]
    listed = run(capsys, f"info {store} --ids --json")[1].splitlines()
    assert [json.loads(line) for line in listed][1] == {"id": "1.jpg", "rows": 2}


def test_verify_prints_a_checksum_and_finds_bad_stores(store, capsys):
    run(capsys, f"merge {store} --output copy.h5")
    status, out, _ = run(capsys, f"verify {store} copy.h5")
    first, second = out.splitlines()
    assert status == 0
    assert first.split()[0] == second.split()[0]
    assert first.endswith("  grids.h5  6 items: no error")
    with h5py.File("copy.h5", "r+") as file:
        file["features"][7] = np.nan
    Path("text.h5").write_text("no store")
    status, out, err = run(capsys, f"verify copy.h5 {store} text.h5")
    assert status == 2
    assert out == first + "\n"
    assert "copy.h5: the features of '3.jpg' have NaN or infinite values" in err
    assert "text.h5: is no feature store of fairseq-mm, or is damaged" in err
    assert err.endswith("2 of 3 stores have errors\n")


def test_merge_says_what_it_wrote(store, folder, capsys):
    Path("new.txt").write_text("".join(f"new_{i}\n" for i in range(N)))
    run(capsys, "import rows.npy --output other.h5 --ids new.txt --extractor vgg16")
    status, _, err = run(capsys, f"merge {store} other.h5 --output all.h5")
    assert (status, err.count("\n")) == (2, 1)
    assert "other.h5: made with extractor = 'vgg16', but grids.h5 with extractor = 'alexnet'" in err
    run(capsys, "import rows.npy --output other.h5 --ids new.txt --extractor alexnet --overwrite")
    for command, output, wrote in (
        (f"merge {store} other.h5 --output all.h5", "all.h5", "float32"),
        ("merge all.h5 --output half.h5 --dtype float16", "half.h5", "float16"),
    ):
        status, out, err = run(capsys, command)
        megabytes = os.path.getsize(output) / 1e6
        said = f"wrote {output}: 12 items, dim 4, {wrote}, {megabytes:.1f} MB\n"
        assert (status, out) == (0, said)
        assert f"{command.split()[0]}: 100%" in err
        status, _, err = run(capsys, command)
        assert status == 2
        assert f"{output}: exists already. Delete it, or replace it: --overwrite" in err
        assert run(capsys, command + " --overwrite")[0] == 0


LAYER = "--ids ids.txt --layer pool --extractor"
PREPROCESSING = "--ids ids.txt --preprocessing"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "import rows.npy",
            "rows.npy: cannot be imported (an array needs the ids of its items",
        ),
        ("import rows.npy --ids some.txt", "it has 6 rows: must have one or 5 for each of 2"),
        ("import rows.npy --ids ids.txt --weights w.pt", "w.pt: cannot be read (No such file"),
        (f"import rows.npy {PREPROCESSING} {{", "--preprocessing: not JSON"),
        (f"import rows.npy {PREPROCESSING} 224", "--preprocessing: must be a JSON object, but is"),
        (f'import rows.npy {PREPROCESSING} {{"rezise":"squash"}}', "cannot be understood"),
        (f"import rows.npy {LAYER} resnet18", "--layer: resnet18 has no layer 'pool'. Near: "),
        (f"import rows.npy {LAYER} timm:resnet18", "must be pre_logits or forward_features for t"),
        (f"import rows.npy {LAYER} r3d_18", "--layer pool: must be pooled for r3d_18"),
        ("merge none.h5", "none.h5: is no feature store of fairseq-mm, or is damaged (No such"),
        ("merge rows.npy --output -", "--output -: give /dev/stdout"),
        ("merge rows.npy --output none/b.h5", "--output none/b.h5: there is no folder none"),
        ("merge rows.npy", "rows.npy: is no feature store"),
        ("merge rows.npy ids.txt", "rows.npy: is no feature store"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(folder, capsys, command, message):
    before = sorted(os.listdir())
    output = "" if "--output" in command else "--output x.h5"
    status, out, err = run(capsys, f"{command} {output}")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(os.listdir()) == before


IMPORT = "import rows.npy --ids ids.txt"


@pytest.mark.parametrize(
    ("action", "limit"),
    [
        *((IMPORT, 100), (IMPORT, 300), ("merge {}", 1000), ("merge {}", 3000)),
        *(pytest.param(IMPORT, limit, marks=pytest.mark.slow) for limit in (1000, 3000)),
        *(pytest.param("merge {}", limit, marks=pytest.mark.slow) for limit in (100, 300, 3000)),
        *(pytest.param("merge {}", limit, marks=pytest.mark.slow) for limit in (100, 300, 1000)),
    ],
)
def test_a_largest_size_of_files_ends_in_one_line(store, action, limit):
    """The system's limit (``ulimit -f``): libhdf5 ends the process where it cannot write."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fairseq_mm", "store"),
            *(*action.format(store).split(), "--output", "x"),
        ],
        # the limit would cut the bytecode that Python writes, too
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"fairseq-mm store: x(\.partial)?: .* .File too large.\.", line)
    assert "Traceback" not in done.stderr
    assert not os.path.exists("x")
    # the next run, with room, is not confused by what is left
    assert main(["store", *action.format(store).split(), "--output", "x"]) in (0, None)
    assert main(["store", "verify", "x"]) == 0


def test_import_says_what_a_model_on_the_store_cannot_do(folder, capsys):
    network, weights = "--extractor alexnet", "--weights weights.pt"
    for given, lacking in (
        ("", "--extractor and --weights"),
        (network, "--weights"),
        (f"{network} {weights}", ""),
    ):
        command = f"import rows.npy --output rows.h5 --overwrite --ids ids.txt {given}"
        status, _, err = run(capsys, command)
        assert status == 0
        said = f"rows.h5: without {lacking}, models that are trained on it cannot caption"
        assert (said in err) == bool(lacking)
        assert ("cannot caption" in err) == bool(lacking)


def test_the_command_does_not_import_fairseq_or_torch(folder):
    program = (
        "import sys; sys.argv[0] = 'fairseq-mm'; from fairseq_mm.cli.main import main; "
        "main(); assert not {'torch', 'fairseq'} & set(sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            *["store", "import", "rows.npy", "--output", "x.h5", "--ids", "ids.txt"],
        ],
        env={**os.environ, "PYTHONPATH": root},
        check=True,
    )
