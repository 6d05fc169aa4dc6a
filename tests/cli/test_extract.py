"""``fairseq-mm extract`` from the command line: whole runs, kills, shards and mistakes."""

import signal
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from toy_processes import ForkedCommand, needs_fork

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore

MODEL = ["--model", "squeezenet1_1", "--weights", "none", "--size", "32", "--workers", "0"]
N = 7


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "photos").mkdir()
    for i in range(N):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{i}.jpg")
    return tmp_path / "photos"


def extract(*arguments: object) -> int:
    return main(["extract", *map(str, arguments)])


def test_a_folder_becomes_a_store(folder, tmp_path, capsys):
    output = tmp_path / "f.h5"
    assert extract(folder, *MODEL, "--output", output) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        f"{output}: 7 images of feature dimension 512, 0 unreadable; 7 in this run, "
    )
    assert "7/7" in err
    assert FeatureStore(output).ids == [f"{i}.jpg" for i in range(N)]
    capsys.readouterr()
    assert extract(folder, *MODEL, "--output", output) == 2
    assert f"{output}: exists already. Delete it, or replace it" in capsys.readouterr().err
    assert extract(folder, *MODEL, "--output", output, "--overwrite") == 0


def test_models_are_listed_without_images_and_output(capsys):
    assert extract("--list-models") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"resnet50", "resnext101_3d"} < set(lines)
    assert any(line.startswith("timm:") for line in lines)
    assert len(lines) < 200  # timm has a thousand models
    assert extract("--list-models", "mnasnet?_5") == 0
    assert capsys.readouterr().out == "mnasnet0_5\n"


def test_shards_together_are_the_whole(folder, tmp_path, capsys):
    for i in (1, 2, 3):
        assert extract(folder, *MODEL, "--output", tmp_path / "f.h5", "--shard", f"{i}/3") == 0
    stores = [FeatureStore(tmp_path / f"f.{i}of3.h5") for i in (1, 2, 3)]
    assert [len(store) for store in stores] == [2, 2, 3]
    assert [key for store in stores for key in store.ids] == [f"{i}.jpg" for i in range(N)]
    parts = [str(tmp_path / f"f.{i}of3.h5") for i in (1, 2, 3)]
    whole = str(tmp_path / "f.h5")
    assert main(["store", "merge", *parts[:2], "--output", whole]) == 2
    assert (
        f"{parts[0]}: of 3 parts of a list, 1 are not given, such as 3" in capsys.readouterr().err
    )
    assert main(["store", "merge", *parts, "--output", whole]) == 0
    assert all(FeatureStore(whole).get_source(f"{i}.jpg") for i in range(N))
    assert main(["store", "merge", *parts[:2], "--output", whole + "2", "--incomplete"]) == 0


def test_grid_dtype_and_preprocessing_are_recorded(folder, tmp_path):
    output = tmp_path / "f.h5"
    options = ["--grid", "--dtype", "float32", "--normalize", "caffe", "--resize", "squash"]
    assert extract(folder, *MODEL, *options, "--output", output) == 0
    store = FeatureStore(output)
    assert store.dtype == np.float32
    assert store.attributes["grid"] == 1
    assert '"channels": "bgr"' in store.attributes["preprocessing"]
    assert '"resize": "squash", "resize_size": 32' in store.attributes["preprocessing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no images found in no inputs"),
        (["absent"], "absent: cannot be read (No such file"),
        (["photos", "--model", "resnet"], "--model resnet: torchvision"),
        (["photos", "--weights", "absent.pt"], "absent.pt: is no state dict"),
        (["photos", "--device", "gpu"], "--device must be auto, cpu, or a cuda or cuda:N that"),
        (["photos", "--output", "no/f.h5"], "--output no/f.h5: there is no folder no"),
    ],
)
def test_mistakes_are_one_line_and_status_2(folder, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    assert extract(*MODEL, "--output", "f.h5", *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"fairseq-mm extract: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("shard", ["4/3", "4", "0/2", "a/b"])
def test_shards_that_cannot_be_are_refused(shard, folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        extract(folder, *MODEL, "--output", tmp_path / "f.h5", "--shard", shard)
    assert f"must be 1/N to N/N, such as 1/4, but is {shard}" in capsys.readouterr().err


@pytest.fixture
def many(tmp_path):
    """Enough images to be killed among."""
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(40):
        Image.new("RGB", (60, 40), (i, 2 * i, 3 * i)).save(folder / f"{i:03}.jpg")
    return folder


@needs_fork
def test_a_killed_run_continues_to_the_same_store(many, tmp_path):
    # as in the forked process: with another number of threads, other bits come out
    torch.set_num_threads(1)
    model = ["--model", "squeezenet1_1", "--weights", "none", "--size", "64", "--batch-size", "4"]
    whole = tmp_path / "whole.h5"
    assert extract(many, *model, "--workers", 0, "--output", whole) == 0
    for kind in (signal.SIGKILL, signal.SIGINT):
        output = tmp_path / f"{kind.name}.h5"
        arguments = [many, *model, "--workers", 2, "--output", output]
        command = ForkedCommand.extract_slowly(arguments, tmp_path / "log")
        status, err = command.kill_when_written(tmp_path / f"{kind.name}.h5.partial", 6, kind)
        assert not output.exists()
        if kind == signal.SIGINT:
            assert status == 130
            assert f"interrupted: what is done stands in {output}.partial" in err
            assert "Traceback" not in err
        assert extract(many, *model, "--workers", 0, "--output", output) == 0
        one, other = FeatureStore(output), FeatureStore(whole)
        assert one.ids == other.ids
        for key in one.ids:
            np.testing.assert_array_equal(one.read(key), other.read(key))


def test_real_images_give_the_published_rows(shared_data, tmp_path):
    data = shared_data("flickr8k")
    with tarfile.open(data / "dev_images_224.tar") as archive:
        members = [member for member in archive if member.isfile()][:20]
        with tarfile.open(tmp_path / "few.tar", "w") as few:
            for member in members:
                few.addfile(member, archive.extractfile(member))
    output = tmp_path / "f.h5"
    weights = data / "mobilenet_v2_imagenet_f16.pt"
    squash = ["--resize", "squash", "--size", 224]
    arguments = [tmp_path / "few.tar", "--model", "mobilenet_v2", "--weights", weights, *squash]
    assert extract(*arguments, "--output", output) == 0
    published = np.load(data / "mobilenet_v2_pool_f16.npy", mmap_mode="r")
    lines = (data / "image_ids.txt").read_text().split()
    store = FeatureStore(output)
    assert len(store) == 20
    for key in store.ids:
        expected = published[lines.index(key)].astype(np.float32)
        # one unit in the last place of float16 is 1/1024 of the value
        np.testing.assert_allclose(store.read(key)[0], expected, rtol=2e-3, atol=2e-4)
