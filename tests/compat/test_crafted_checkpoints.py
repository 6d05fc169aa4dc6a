"""Small files that ask for much, and checkpoints of the wrong types, end in one line."""

import io
import pickle
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from toy_data import run_fairseq
from toy_story_models import make_story_folder
from toy_text_models import save_text_model

import fairseq_mm
from fairseq_mm import errors
from fairseq_mm.compat.unpickling import (
    VALUES,
    RestrictedUnpickler,
    checkpoints,
    read_torch_file,
)
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance, encode_json


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


TWICE = b"q\x00h\x00\x86" * 40  # a pair of itself, 40 times
NESTED = b"]q\x00" + b"0(h\x00h\x00lq\x00" * 40  # a list with itself twice, 40 times
SIZES = {
    "bytes": (b"cbuiltins\nbytes\n" + number(2**31 - 1) + b"\x85R.", "makes a bytes of a int"),
    "bytearray": (b"cbuiltins\nbytearray\n" + number(2**31 - 1) + b"\x85R.", "a bytearray of a"),
    "new bytes": (b"cbuiltins\nbytes\n" + number(2**31 - 1) + b"\x85\x81.", "a bytes of a int"),
    "made by a class": (
        b"ccopyreg\n_reconstructor\n(cbuiltins\nbytearray\ncbuiltins\nbytearray\n"
        + number(2**31 - 1)
        + b"tR.",
        "a bytearray of a int",
    ),
    "instance": (b"(" + number(2**31 - 1) + b"ibuiltins\nbytearray\n.", "a bytearray of a int"),
    "long bytearray": (b"\x96" + struct.pack("<Q", 2**40) + b"abc.", "cut off"),
    "number of numpy": (
        b"cbuiltins\nbytes\ncnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x02\x00\x00\x00i8tR"
        b"C\x08" + struct.pack("<q", 2**40) + b"tR\x85R.",
        "makes a bytes of a int64",
    ),
    "text of lists": (b"cbuiltins\nstr\n" + NESTED + b"\x85R.", "makes a str of a list"),
    "key": (b"}(K\x01" + TWICE + b"K\x01u.", "its keys are nested"),
    "one key": (b"}K\x01" + TWICE + b"K\x01s.", "its keys are nested"),
    "set": (b"\x8f(K\x01" + TWICE + b"\x90.", "its keys are nested"),
    "frozen set": (b"(K\x01" + TWICE + b"\x91.", "its keys are nested"),
    "called set": (b"cbuiltins\nset\n]K\x01" + TWICE + b"a\x85R.", "its keys are nested"),
    "copies": (
        b"(" + b"K\x01" * 10_000 + b"lq\x01" + b"cbuiltins\nlist\nh\x01\x85R0" * 2000 + b".",
        "again and again",
    ),
    "no function": (NESTED + b")R.", "it calls a list"),
    "no holder": (NESTED + b"}b.", "sets attributes of a list"),
    "omegaconf": (
        b"comegaconf.listconfig\nListConfig\n" + NESTED + b"\x85R.",
        "it calls <class 'omegaconf",
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_small_pickle_takes_little_time_and_memory(name):
    content, message = SIZES[name]
    table = checkpoints() if name == "omegaconf" else VALUES
    with pytest.raises(pickle.UnpicklingError, match=message):
        RestrictedUnpickler(io.BytesIO(b"\x80\x05" + content), table).load()


def test_collections_come_back():
    content = [set("ab"), frozenset([(1, 2)]), bytearray(b"abc"), b"", {(1, "a"): [1]}, [(1, (2,))]]
    for protocol in range(6):
        file = io.BytesIO(pickle.dumps(content, protocol))
        assert RestrictedUnpickler(file, VALUES).load() == content


def test_an_archive_that_is_compressed_far_below_its_content_is_refused(tmp_path):
    torch.save({"model": {"a": torch.zeros(300_000)}}, tmp_path / "stored.pt")
    path = tmp_path / "deflated.pt"
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for record in stored.infolist():
            deflated.writestr(record.filename, stored.read(record))
    with pytest.raises(UserError, match=r"deflated\.pt: .* an archive of .* bytes that holds 1,20"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_weight_with_a_changed_byte_is_refused(tmp_path, has_checksums):
    path = tmp_path / "a.pt"
    set_option = getattr(torch.serialization, "set_crc32_options", None)
    if not has_checksums and set_option is None:
        pytest.skip("this PyTorch always writes the CRC-32 of a file's parts")
    weight = torch.arange(1000.0)
    try:
        if not has_checksums:
            set_option(False)
        torch.save({"model": {"a": weight}}, path)
    finally:
        if not has_checksums:
            set_option(True)
    assert torch.equal(read_torch_file(path, checkpoints())["model"]["a"], weight)
    content = path.read_bytes()
    place = content.index(weight.numpy().tobytes()) + 2001
    path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    if has_checksums:
        with pytest.raises(UserError, match=r"a\.pt: .* its part a/data/0 is damaged: its CRC-32"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))
    else:
        assert not torch.equal(read_torch_file(path, checkpoints())["model"]["a"], weight)


@pytest.mark.parametrize("content", [b"\x80\x02.", b"\x80\x02K\x05K\x05u.", b"\x80\x02}h\x09."])
def test_damaged_pickles_end_in_one_line(content, tmp_path):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.pt: is no fairseq checkpoint that can be loaded"):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "a.pt"))


PROVENANCE = {"words": ["a", "b"], "extractor": {}, "feature_dim": 0}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"words": [{}, "b"]}, "`words` must be a list of strings"),
        ({"words": "ab"}, "`words` must be a list of strings"),
        ({"source_words": 7}, "`source_words` must be a list of strings, but is 7"),
        ({"subwords": [3]}, r"`subwords` must be an object, but is \[3\]"),
        ({"extractor": "a"}, "`extractor` must be an object, but is 'a'"),
        ({"feature_dim": 5.5}, "`feature_dim` must be a number of 0 or more, but is 5.5"),
        ({"feature_dim": True}, "`feature_dim` must be a number"),
        ({"rows_per_image": "x"}, "`rows_per_image` must be a number of 0 or more, but is 'x'"),
        ({"max_frames": -1}, "`max_frames` must be a number of 0 or more, but is -1"),
    ],
)
def test_provenance_of_wrong_types_is_refused(changed, message):
    assert decode_provenance(encode_json(PROVENANCE)) == PROVENANCE
    with pytest.raises(UserError, match=message):
        decode_provenance(encode_json({**PROVENANCE, **changed}))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.ones(1, dtype=torch.int32).expand(10**12), "a row of numbers"),
        (torch.ones(2, 2), "a row of numbers"),
        ({"words": []}, "a row of numbers"),
        (torch.tensor([91, 91, 255], dtype=torch.int32), "must be JSON"),
        (encode_json([1]), "a JSON object"),
    ],
)
def test_provenance_that_is_no_text_is_refused(state, message):
    with pytest.raises(UserError, match=message):
        decode_provenance(state)


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> Path:
    return make_story_folder(tmp_path_factory.mktemp("crafted") / "stories")


@pytest.fixture(scope="module")
def source(stories) -> dict[str, Any]:
    return torch.load(save_text_model(stories.parent / "story.pt"))


def option(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(state: dict[str, Any]) -> Any:
        cfg = {**state["cfg"], "model": {**state["cfg"]["model"], name: value}}
        return {**state, "cfg": cfg}

    return change


def weight(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, "model": {**state["model"], name: value}}


def doubled() -> list[Any]:
    value: list[Any] = []
    for _ in range(40):
        value = [value, value]
    return value


CRAFTED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "reference to nothing": option("dropout", "${nope.nope}"),
    "reference to itself": option("dropout", "${model.dropout}"),
    "missing": option("dropout", "???"),
    "array": option("dropout", np.zeros(2)),
    "no number": option("encoder_embed_dim", "abc"),
    "bytes": lambda state: option("encoder_layers", b"[(8, 3)]")(option("_name", "fconv")(state)),
    "list as a name": option("_name", ["fconv"]),
    "no model section": lambda state: {**state, "cfg": {**state["cfg"], "model": None}},
    "doubled": lambda state: {**state, "cfg": {**state["cfg"], "model": doubled()}},
    "list": lambda state: [state["model"]],
    "state of the task": lambda state: {**state, "task_state": "abc"},
    "provenance": weight(STATE_KEY, encode_json({**PROVENANCE, "source_words": 7})),
    "stretched provenance": weight(STATE_KEY, torch.ones(1, dtype=torch.int32).expand(10**12)),
    "complex weights": weight("decoder.fc3.bias", torch.zeros(3, dtype=torch.complex64)),
    "list of weights": lambda state: {**state, "model": [torch.zeros(2)]},
}
# what training reads of the checkpoint that it begins with, one of a kind
READ = ("array", "list", "list of weights", "provenance")
TRANSLATION = "--task translation --source-lang wp_source --target-lang wp_target --cpu "
TRAINING = (
    "train {stories} " + TRANSLATION + "--arch conv_story_tiny --optimizer adam --lr 0.01 "
    "--num-workers 0 --max-update 1 --batch-size 4 --no-save --log-format none "
    "--finetune-from-model {path}"
)


@pytest.fixture
def crafted(request, source, tmp_path) -> Path:
    torch.save(CRAFTED[request.param](source), tmp_path / "a.pt")
    return tmp_path / "a.pt"


def assert_one_line(text: str, path: Path) -> None:
    (line,) = text.splitlines()
    assert f"{path}: " in line or "checkpoint carries of its data" in line
    assert len(line) < 1000


@pytest.mark.parametrize("crafted", CRAFTED, indirect=True)
def test_from_pretrained_refuses_it(crafted):
    with pytest.raises(UserError) as caught:
        fairseq_mm.from_pretrained(crafted)
    assert_one_line(str(caught.value), crafted)


def fails_in_one_line(monkeypatch, capsys, command: str, path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  fairseq wraps it
        run_fairseq(monkeypatch, *command.split())
    capsys.readouterr()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    errors.report_on_exit()
    with pytest.raises(SystemExit, match="2"):
        sys.excepthook(caught.type, caught.value, caught.tb)
    assert_one_line(capsys.readouterr().err, path)


@pytest.mark.parametrize("crafted", CRAFTED, indirect=True)
def test_generate_refuses_it(crafted, stories, monkeypatch, capsys):
    command = f"generate {stories} {TRANSLATION} --path {crafted} --gen-subset valid"
    fails_in_one_line(monkeypatch, capsys, command, crafted)


@pytest.mark.parametrize("crafted", READ, indirect=True)
def test_finetuning_refuses_it(crafted, stories, monkeypatch, capsys):
    command = TRAINING.format(stories=stories, path=crafted)
    fails_in_one_line(monkeypatch, capsys, command, crafted)
