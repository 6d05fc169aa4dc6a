"""``fairseq-mm doctor``: what is wrong is found, named with its remedy; the exit status."""

import hashlib
import importlib
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from toy_captioner import DIM, change_checkpoint, train_captioner
from toy_data import WORDS, make_captions_folder, write_split, write_store

from fairseq_mm.cli import doctor_environment as environment
from fairseq_mm.cli.doctor_checkpoint import _check_extractor
from fairseq_mm.cli.main import main
from fairseq_mm.models._provenance import fingerprint


@pytest.fixture
def data(tmp_path):
    """A folder with no fault but that its features name no whole extractor."""
    return make_captions_folder(tmp_path / "data")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_captioner(folder, folder / "data")
    return folder


def test_a_whole_installation_has_no_problem(capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1].rstrip(":") for line in lines]
    assert subjects[:5] == ["Python", "numpy", "h5py", "torch", "torchvision"]
    assert {"fairseq", "g++", "pycocoevalcap", "open_clip", "device"} <= set(subjects)
    assert lines[-1] == "no problem found"


def test_it_runs_where_fairseq_is_missing(started_python, tmp_path):
    make_captions_folder(tmp_path / "data")
    code = (
        "import sys; sys.argv[0] = 'fairseq-mm'; sys.modules['fairseq'] = None;"
        "from fairseq_mm.cli.main import main;"
        f"sys.exit(main(['doctor', '--data', {str(tmp_path / 'data')!r}, '--checkpoint', 'a.pt']))"
    )
    done = subprocess.run([started_python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    (problem,) = [line for line in lines if line.startswith("PROBLEM")]
    assert problem.startswith("PROBLEM  fairseq: ")
    assert "fairseq_mm is a plugin of fairseq, which is missing: pip install" in problem
    assert any(line.startswith("note     a.pt: not checked") for line in lines)
    assert any("its text is not checked" in line for line in lines)
    assert "Traceback" not in done.stderr


def test_a_fairseq_that_fails_is_reported(started_python, tmp_path):
    (tmp_path / "fairseq").mkdir()
    (tmp_path / "fairseq/__init__.py").write_text("1 / 0\n")
    code = (
        f"import sys; sys.argv[0] = 'fairseq-mm'; sys.path.insert(0, {str(tmp_path)!r});"
        "from fairseq_mm.cli.main import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run([started_python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    (problem,) = [line for line in done.stdout.splitlines() if line.startswith("PROBLEM")]
    assert "does not import (ZeroDivisionError" in problem
    assert "pip uninstall -y fairseq fairseq-fixed" in problem
    assert "Traceback" not in done.stderr


def test_two_builds_of_fairseq_are_reported(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.12")
    (finding,) = environment.check_fairseq()
    assert finding.text == "fairseq 0.12 and fairseq-fixed 0.12 are both installed, in the same " \
        "folder"  # fmt: skip


def test_missing_parts_of_fairseq_are_reported(monkeypatch):
    monkeypatch.setattr(environment, "FAIRSEQ_EXTENSIONS", ("fairseq.data.no_such_part",))
    first, second = environment.check_fairseq()
    assert first.level == "ok"
    assert "its compiled part fairseq.data.no_such_part is missing" in second.text
    assert "install g++" in second.remedy


def test_packages_that_are_missing_or_broken_are_reported(monkeypatch):
    missing = environment.check_package("no_such_package")
    assert missing[:2] == ("PROBLEM", "no_such_package")
    assert missing.remedy == "pip install no_such_package"

    def fail(name):
        raise OSError("undefined symbol: cudaGetDevice\nmore")

    monkeypatch.setattr(importlib, "import_module", fail)
    broken = environment.check_package("torchvision")
    assert broken.text == "does not import (OSError: undefined symbol: cudaGetDevice)"
    assert broken.remedy == "pip install --force-reinstall torchvision"


@pytest.mark.parametrize(
    ("torch_version", "torchvision_version"),
    [("1.12.1+cu102", "0.13"), ("1.13.0", "0.14"), ("2.0.1", "0.15"), ("2.14.1+cpu", "0.29")],
)
def test_torch_and_torchvision_were_released_together(torch_version, torchvision_version):
    assert environment.torchvision_for(torch_version) == torchvision_version
    assert environment.torchvision_for("nightly") is None


def test_a_torchvision_of_another_torch_is_reported(monkeypatch):
    import torch
    import torchvision

    monkeypatch.setattr(torch, "__version__", "2.14.1+cu130")
    monkeypatch.setattr(torchvision, "__version__", "0.28.0+cpu")
    first, second = environment.check_torchvision_fits()
    assert "torch 2.14.1+cu130 and torchvision 0.28.0+cpu do not match" in first.text
    assert first.remedy == "pip install 'torchvision==0.29.*'"
    assert "are builds for different devices" in second.text
    # a version without a build may be for any device
    for version in ("0.29.1+cu130", "0.29.1"):
        monkeypatch.setattr(torchvision, "__version__", version)
        assert list(environment.check_torchvision_fits()) == []


def test_old_python_and_optional_programs(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    finding = environment.check_python()
    assert finding[0] == "PROBLEM"
    assert finding.remedy == "use Python 3.10 to 3.13"
    found = environment.check_program("no-such-program", "building", "apt install it")
    assert found == (
        "note",
        "no-such-program",
        "not found; it is for building only",
        "apt install it",
    )
    monkeypatch.setitem(environment.EXTRAS, "clip", ("no_such_module", "open_clip's models"))
    assert environment.check_extra("clip").remedy == "pip install 'fairseq-mm[clip]'"


def test_a_whole_folder_has_no_problem(examine, data):
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert any(line.endswith("dict.txt: 16 words") for line in lines)
    assert "ok       valid: 21 lines of 7 items" in lines
    assert "ok       extractor: drawn, none" in lines


def test_a_folder_of_text_alone_has_no_problem(examine, tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("a dog runs\na cat\n")
    options = f"--without-images --threshold 1 --output {tmp_path / 'made'}"
    main(["prepare", "captions", str(text), *options.split()])
    _, lines, problems = examine("--data", tmp_path / "made")
    assert problems == []
    assert "ok       train: 2 lines of text alone" in lines
    with open(tmp_path / "made" / "train.bin", "ab") as file:
        file.write(b"x")
    changed, damaged = examine("--data", tmp_path / "made")[2]
    assert "train.bin: has 15 bytes, but" in changed
    assert "train.bin and .idx cannot be read" in damaged


def test_lines_that_do_not_agree_are_found(examine, data):
    path = data / "valid.visual_ids"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    (data / "text").mkdir()
    (data / "text" / "train.txt").write_text("a dog\n" * 35)
    _, _, problems = examine("--data", data)
    assert len(problems) == 2
    assert "data/train has 36 lines, but" in problems[0]
    assert "train.txt has 35" in problems[0]
    assert "valid.idx has 21 lines, but" in problems[1]
    assert "valid.visual_ids has 18" in problems[1]


def test_ids_without_features_or_references_are_found(examine, data):
    (data / "features.h5").unlink()
    write_store(data / "features.h5", [f"train{i}.jpg" for i in range(9)])
    path = data / "valid.references.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    _, _, problems = examine("--data", data)
    assert "no features for 'train10.jpg'" in problems[0]
    assert "3 of 12 images of train have none there" in problems[0]
    assert "7 of 7 images of valid have none there" in problems[1]
    write_store(data / "all.h5", [f"{x}{i}.jpg" for x in ("train", "valid") for i in range(12)])
    _, _, (problem,) = examine("--data", data, "--features", data / "all.h5")
    assert "valid.references.jsonl: has no references for 'valid5.jpg'" in problem


def test_a_folder_of_fairseq_preprocess_has_no_references_of_its_own(examine, data):
    path = data / "valid.references.jsonl"
    path.unlink()
    status, lines, _ = examine("--data", data)
    assert status == 0
    named = [line for line in lines if str(path) in line]
    assert len(named) == 1
    assert "score and --eval-gen take the binarised text instead" in named[0]
    # prepare wrote some, which are gone
    (data / "prepare.json").write_text('{"kind": "captions", "options": {}}')
    _, _, problems = examine("--data", data)
    assert any(f"{path}: no such file" in problem for problem in problems)


def test_stores_that_the_folder_lists_are_its_features(examine, data, tmp_path):
    (data / "features.h5").unlink()
    first, second = tmp_path / "a.h5", tmp_path / "b.h5"
    write_store(first, [f"train{i}.jpg" for i in range(12)])
    write_store(second, [f"valid{i}.jpg" for i in range(7)])
    listed = data / "features.json"
    listed.write_text('[{"store": "../a.h5"}, {"store": "../b.h5"}]')
    _, lines, problems = examine("--data", data)
    assert problems == []
    assert any(line.startswith(f"ok       {first}:{second}: 19 items") for line in lines)
    listed.write_text('[{"store": "../a.h5", "prefix": "other/"}, {"store": "../b.h5"}]')
    _, _, (problem,) = examine("--data", data)
    assert "no features for 'train0.jpg'" in problem
    listed.write_text("{}")
    _, _, (problem,) = examine("--data", data)
    assert f"features: {listed}: must be a list of" in problem


def test_images_that_are_listed_as_missing_need_no_features(examine, data):
    (data / "features.h5").unlink()
    write_store(data / "features.h5", [f"train{i}.jpg" for i in range(12)])
    (data / "missing_images.txt").write_text("".join(f"valid{i}.jpg\n" for i in range(7)))
    (data / "prepare.json").write_text('{"kind": "visual stories"}')
    _, _, (problem,) = examine("--data", data)
    assert "'<sent>'" in problem  # its task is that of stories


def test_values_that_are_not_finite_are_found(examine, data, tmp_path):
    with h5py.File(data / "features.h5", "r+") as file:
        file["features"][3, 2] = np.nan
    _, _, problems = examine("--data", data)
    assert problems == [problems[0]]
    assert "the features of 'train3.jpg' have NaN or infinite values" in problems[0]
    _, _, problems = examine("--features", tmp_path / "absent.h5")
    assert "absent.h5" in problems[0]


def test_a_store_that_names_no_extractor_is_noted(examine, tmp_path):
    write_store(tmp_path / "f.h5", ["a"], attributes={})
    _, lines, problems = examine("--features", tmp_path / "f.h5")
    assert problems == []
    assert any(line.startswith("note     extractor: ") and "store import" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog 3\ncat\n", "dict.txt: cannot be read as a dictionary: Incorrect dictionary format"),
        ("dog 3\ncat 2\ndog 1\n", "Duplicate word found when loading Dictionary: 'dog'"),
        (b"\xff\xfe 3\n", "dict.txt, please rebuild the dataset"),
        (None, "dict.txt: no such file; is"),
    ],
)
def test_a_broken_dictionary_is_found(examine, data, content, message):
    path = data / "dict.txt"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    _, _, problems = examine("--data", data)
    assert message in problems[0]


def test_text_binarised_with_another_dictionary_is_found(examine, data):
    (data / "dict.txt").write_text("a 9\nthe 8\n")
    _, _, problems = examine("--data", data)
    assert len(problems) == 2
    assert (
        "train.bin has the word number 19, but the dictionary has 2 words and 4 symbols"
        in problems[0]
    )


def test_broken_splits_are_found(examine, data, tmp_path):
    from toy_data import make_dictionary

    write_split(data, "test", [("valid0.jpg", "a dog"), ("valid1.jpg", "")], make_dictionary())
    (data / "train.bin").write_bytes(b"")
    (data / "valid.idx").unlink()
    _, _, problems = examine("--data", data)
    assert "train.bin and .idx cannot be read" in problems[0]
    assert "valid.idx: no such file" in problems[1]
    assert "test.idx: line 2 is empty" in problems[2]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "dict.txt").write_text("a 1\n")
    (_, lines, _) = examine("--data", tmp_path / "bare")
    assert any("no task can be set up without features" in line for line in lines)
    write_store(tmp_path / "bare" / "features.h5", ["a"])
    _, _, problems = examine("--data", tmp_path / "bare")
    assert any("has none of the splits train, valid, test" in line for line in problems)
    _, _, problems = examine("--data", tmp_path / "nowhere")
    assert any("nowhere: no such folder" in line for line in problems)


def test_a_checkpoint_and_its_data_have_no_problem(examine, trained):
    data = trained / "data.moved"
    _, lines, problems = examine("--data", data, "--checkpoint", trained / "checkpoint_last.pt")
    assert problems == []
    expected = "--arch m_rnn_tiny, --task multimodal_captioning, 15 updates, epoch 4"
    assert any(line.endswith(f"checkpoint_last.pt: {expected}") for line in lines)
    assert f"ok       checkpoint: dictionary of 16 words, {fingerprint(WORDS)}" in lines


def test_a_checkpoint_of_other_data_is_found(examine, trained, tmp_path):
    data = shutil.copytree(trained / "data.moved", tmp_path / "data")
    words = [*WORDS[:-2], WORDS[-1], WORDS[-2]]
    (data / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    _, _, problems = examine("--data", data, "--checkpoint", trained)
    assert fingerprint(WORDS) in problems[0]
    assert fingerprint(words) in problems[0]
    write_store(tmp_path / "narrow.h5", ["a"], attributes={})
    _, _, problems = examine("--features", tmp_path / "narrow.h5", "--checkpoint", trained)
    assert "needs feature dimension 512, but" in problems[0]
    assert "narrow.h5 has 5" in problems[0]
    drawn = {"extractor": "drawn", "weights": "w", "layer": "l", "grid": 0, "preprocessing": "{}"}
    write_store(tmp_path / "other.h5", ["a"], dim=DIM, attributes=drawn)
    _, _, problems = examine("--features", tmp_path / "other.h5", "--checkpoint", trained)
    assert "another extractor" in problems[0]


def test_a_broken_checkpoint_is_found(examine, trained, tmp_path):
    (tmp_path / "text.pt").write_text("no checkpoint")
    _, _, problems = examine("--checkpoint", tmp_path / "text.pt")
    assert "text.pt: is no fairseq checkpoint" in problems[0]

    def spoil(bias):
        bias[7] = float("nan")

    source = trained / "checkpoint_last.pt"
    path = change_checkpoint(
        source, tmp_path / "nan.pt", weights={"decoder.output_proj.bias": spoil}
    )
    _, _, problems = examine("--checkpoint", path)
    assert "decoder.output_proj.bias has NaN or infinite values" in problems[0]
    path = change_checkpoint(source, tmp_path / "words.pt", provenance={"words": [*WORDS, "more"]})
    _, _, problems = examine("--checkpoint", path)
    assert "weights do not fit --arch m_rnn_tiny" in problems[0]
    path = change_checkpoint(source, tmp_path / "unknown.pt", provenance={"extractor": {}})
    _, lines, problems = examine("--checkpoint", path)
    assert problems == []
    assert any("carries no extractor" in line for line in lines)


def test_missing_weights_of_the_extractor_are_found(examine, trained, tmp_path):
    file = Path(shutil.copy(trained / "checkpoint_last.pt", tmp_path))
    weights = trained / "squeezenet.pth"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    status, lines, problems = examine("--checkpoint", file)
    assert status == 2
    (found,) = problems
    assert f"weights of squeezenet1_1: no file with the SHA-256 {digest} in {tmp_path}" in found
    assert found.endswith("or give it as --weights FILE here and where it is used")
    status, lines, problems = examine("--checkpoint", file, "--weights", weights)
    assert problems == []
    assert f"ok       weights of squeezenet1_1: {weights}" in lines
    (tmp_path / "other.pth").write_bytes(b"other weights")
    for given, message in (
        (tmp_path / "other.pth", f"must have the SHA-256 {digest[:12]}... of the weights"),
        (tmp_path / "none.pth", "none.pth: No such file or directory"),
    ):
        _, _, problems = examine("--checkpoint", file, "--weights", given)
        assert message in problems[0]
    shutil.copy(weights, tmp_path / "renamed.pth")
    _, lines, problems = examine("--checkpoint", file)
    assert problems == []
    assert f"ok       weights of squeezenet1_1: {tmp_path / 'renamed.pth'}" in lines


def test_weights_that_torchvision_fetches_are_a_note(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for model in ("squeezenet1_1", "r3d_18"):
        identity = {"extractor": model, "weights": "torchvision:DEFAULT"}
        (found,) = _check_extractor(identity, "a.pt", None)
        assert found.level == "note"
        assert (
            f"torchvision:DEFAULT is not there yet: {tmp_path}/checkpoints/{model}-" in found.text
        )
        assert found.remedy.startswith("it is downloaded from https://")
        path = Path(found.text.partition(": ")[2])
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert next(_check_extractor(identity, "a.pt", None)).level == "ok"
    unknown = {"extractor": "squeezenet1_1", "weights": "torchvision:LARGE"}
    assert next(_check_extractor(unknown, "a.pt", None)).level == "PROBLEM"
    for weights in ("none:3", "open_clip:openai"):
        assert list(_check_extractor({**unknown, "weights": weights}, "a.pt", None)) == []


def test_the_library_of_the_extractor_must_be_installed(monkeypatch):
    identity = {"extractor": "timm:x", "weights": "timm:a", "library": "timm 1.0.0"}

    def find(installed):
        def version(name):
            assert name == "timm"
            if installed is None:
                raise importlib.metadata.PackageNotFoundError
            return installed

        monkeypatch.setattr(importlib.metadata, "version", version)
        return list(_check_extractor(identity, "a.pt", None))

    (missing,) = find(None)
    assert (missing.level, missing.remedy) == ("PROBLEM", "pip install 'fairseq-mm[timm]'")
    (other,) = find("1.0.1")
    assert (other.level, other.text) == (
        *("note", "the features were made with timm 1.0.0, and 1.0.1 is installed"),
    )
    assert other.remedy.endswith("pip install timm==1.0.0")
    (same,) = find("1.0.0")
    assert (same.level, same.text) == ("ok", "timm 1.0.0")


def test_weights_need_a_checkpoint(capsys):
    assert main(["doctor", "--weights", "w.pt"]) == 2
    assert "--weights: needs --checkpoint" in capsys.readouterr().err
