"""Pickles are read by one table, with every PyTorch: values come back, nothing else is called."""

import ast
import importlib.util
import io
import os
import pickle
import struct
import tarfile
import typing
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.meters import AverageMeter
from omegaconf import OmegaConf

import fairseq_mm
from fairseq_mm import compat
from fairseq_mm.compat.loading import LOADING
from fairseq_mm.compat.unpickling import VALUES, Emptied, RestrictedUnpickler
from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint, read_plain_pickle
from fairseq_mm.errors import UserError

# files of fairseq that load data of its own processes -> description of the data
OWN_DATA = {
    "distributed/utils.py": "what the processes of one training send each other",
    "modules/quantization/pq/em.py": "a temporary file that the same function has just written",
    "models/speech_to_text/hub_interface.py": "torch.hub, of a program that calls its interface",
}


class Caller:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Allowed:
    """What a program has told PyTorch to trust."""


def load_as_fairseq(path):
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))


READERS = [load_as_fairseq, read_foreign_checkpoint, lambda path: compat.load_weights(str(path))]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace"
    yield path
    assert not path.exists()


def with_attributes(tensor):
    """As fairscale leaves those of a sharded model."""
    tensor._has_been_cloned = True
    return tensor


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", READERS[:2])
def test_what_checkpoints_are_made_of_comes_back(read, zipped, tmp_path):
    weights = torch.nn.Linear(2, 3).state_dict()
    content = {
        "args": None,
        "cfg": OmegaConf.create({"task": {"_name": "x", "lr": [0.1]}, "model": {"_name": "y"}}),
        "model": weights,
        "older": Namespace(
            lr=[0.25], arch="z", shape=torch.Size([2, 3]), device=torch.device("cpu")
        ),
        "types": [torch.float16, torch.int64, typing.Any, {1, 2}, (None, 1.5, b"a")],
        "half": torch.arange(6).half().view(2, 3).t()[1:],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "bfloat16": torch.ones(2).bfloat16(),
        "with_attributes": with_attributes(torch.ones(3)),
        "extra_state": {
            "numbers": [np.float32(1.5), np.float64(2.5), np.int64(-3), np.bool_(True)],
            "array": np.arange(6.0).reshape(2, 3),
            "meters": OrderedDict(loss=AverageMeter()),
        },
        "optimizer_history": [{"criterion_name": "A", "best_loss": None}],
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    state = read(tmp_path / "a.pt")
    assert state["cfg"]["task"]["lr"] == [0.1]
    assert state["older"] == content["older"]
    assert state["types"] == content["types"]
    assert list(state["model"]) == ["weight", "bias"]
    assert state["model"]._metadata == weights._metadata
    for name in ("half", "parameter", "bfloat16", "with_attributes"):
        assert torch.equal(state[name], content[name])
        assert state[name].dtype == content[name].dtype
    extra = state["extra_state"]
    assert extra["numbers"] == content["extra_state"]["numbers"]
    assert [type(x) for x in extra["numbers"]] == [np.float32, np.float64, np.int64, np.bool_]
    assert np.array_equal(extra["array"], content["extra_state"]["array"])
    assert type(extra["meters"]["loss"]) is Emptied


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "variable", ["", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"]
)
def test_nothing_that_a_pickle_names_is_called(
    read, zipped, variable, tmp_path, trace, monkeypatch
):
    if variable:
        monkeypatch.setenv(variable, "1")
    path = tmp_path / "code.pt"
    for function, argument in (
        (os.mkdir, str(trace)),
        (os.system, f"mkdir {trace}"),
        (eval, f"__import__('os').mkdir({str(trace)!r})"),
        (torch.load, str(path)),
        (getattr, "a"),
        (__import__, "antigravity"),
        (torch.hub.load, "a"),
    ):
        content = {"cfg": {"a": Caller(function, argument)}, "model": {}}
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises((UserError, pickle.UnpicklingError)):
            read(path)


@pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"), reason="needs PyTorch 2.5 or newer"
)
def test_our_unpickler_reads_whatever_pytorchs_variable_says(tmp_path, monkeypatch):
    """PyTorch's own refuses Python's complex numbers, and would take what a program has allowed."""
    torch.save({"model": {"a": torch.ones(2)}, "cfg": {"number": 1 + 2j}}, tmp_path / "a.pt")
    torch.save({"model": {"a": Allowed()}}, tmp_path / "b.pt")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    assert read_foreign_checkpoint(tmp_path / "a.pt")["cfg"]["number"] == 1 + 2j
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    with (
        torch.serialization.safe_globals([Allowed]),
        pytest.raises(UserError, match=r"asks for .*Allowed"),
    ):
        read_foreign_checkpoint(tmp_path / "b.pt")


def test_fairseqs_loader_names_the_file_what_it_asks_for_and_the_remedy(tmp_path):
    torch.save({"model": Caller(os.mkdir, "x")}, tmp_path / "a.pt")
    with pytest.raises(UserError) as caught:
        load_as_fairseq(tmp_path / "a.pt")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'a.pt'}: is no fairseq checkpoint that can be loaded")
    assert f"it asks for {os.mkdir.__module__}.mkdir. If you trust it, load it once" in message


def test_a_caller_that_asks_for_anything_gets_no_more(tmp_path, trace):
    """As fairseq's main branch does."""
    torch.save({"model": Caller(os.mkdir, str(trace))}, tmp_path / "a.pt")
    for options in ({"weights_only": False}, {"map_location": "cpu", "weights_only": False}):
        with open(tmp_path / "a.pt", "rb") as file, pytest.raises(UserError, match="asks for"):
            vars(checkpoint_utils)["torch"].load(file, **options)


class Writer(torch.nn.Module):
    """TorchScript that writes a file when it is loaded."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export
    def __getstate__(self):
        return (self.path, self.training)

    @torch.jit.export
    def __setstate__(self, state: typing.Tuple[str, bool]):  # noqa: UP006  for PyTorch 1.12
        self.path = state[0]
        self.training = state[1]
        torch.save(torch.zeros(1), self.path)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_refused(tmp_path, trace):
    path = str(tmp_path / "script.pt")
    torch.jit.save(torch.jit.script(Writer(str(trace))), path)
    trace.unlink(missing_ok=True)
    torch.jit.load(path)
    assert trace.exists()
    trace.unlink()
    for read in READERS:
        with pytest.raises((UserError, pickle.UnpicklingError), match="TorchScript"):
            read(path)


@pytest.mark.parametrize("read", READERS)
def test_tar_archives_are_refused(read, tmp_path, trace):
    path = tmp_path / "archive.pt"
    content = pickle.dumps(Caller(os.mkdir, str(trace)))
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises((UserError, pickle.UnpicklingError), match="tar archive"):
        read(path)


class Structure:
    """numpy's type of one object that says it has none."""

    def __reduce__(self):
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 0)


class PointerArray:
    """An array whose item is whatever its bytes point to: looking at it ends the process."""

    def __init__(self, kind, shape=(1,), content=b"A" * 8):
        self.state = (1, shape, kind, False, content)

    def __reduce__(self):
        rebuild = np.zeros(1).__reduce__()[0]
        return rebuild, (np.ndarray, (0,), b"b"), self.state


def scalar(kind, content):
    return Caller(np.float64(0).__reduce__()[0], kind, content)


@pytest.mark.parametrize(
    "content",
    [
        PointerArray(Structure()),
        PointerArray(np.dtype("O"), content=b"A" * 8),
        PointerArray(np.dtype("f8"), shape=(2,)),
        PointerArray(np.dtype("f8"), shape=(-1,)),
        PointerArray(np.dtype("f8"), shape=(2**62, 4), content=b""),
        PointerArray(np.dtype("f8"), content=["A"]),
        scalar(Structure(), b"A" * 8),
        scalar(np.dtype("f8"), b"A" * 4),
        scalar(np.dtype("O"), b"A" * 8),
        scalar(np.dtype("M8[s]"), b"A" * 8),
    ],
    ids=range(10),
)
def test_numpys_bytes_do_not_become_pointers(content, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"extra_state": content}, path)
    for read in READERS:
        with pytest.raises((UserError, pickle.UnpicklingError)):
            read(path)
    plain = tmp_path / "a.pkl"
    plain.write_bytes(pickle.dumps(content, 2))
    with pytest.raises(UserError, match=r"a\.pkl: is no pickle that can be read safely"):
        read_plain_pickle(str(plain))
    if hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        # a program's own call, for which the package names the classes of checkpoints
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path)


def test_numpys_own_pickles_come_back():
    for array in (
        *(np.arange(6.0).reshape(2, 3), np.array([True]), np.array(["ab", "c"]), np.array(3)),
        *(np.arange(4, dtype=">i4"), np.array(["a", None], object), np.zeros((0, 2), "f2")),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ):
        for protocol in (0, 2, 4):
            file = io.BytesIO(pickle.dumps(array, protocol))
            found = RestrictedUnpickler(file, VALUES, encoding="latin1").load()
            assert np.array_equal(found, array)
            assert found.dtype == pickle.loads(pickle.dumps(array, protocol)).dtype


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        # attributes of a class: of every Namespace from then on
        (b"cargparse\nNamespace\nN}" + text("a") + b"K\x01s\x86b.", "sets attributes of"),
        (b"cargparse\nNamespace\n}" + text("a") + b"K\x01sb.", "sets attributes of"),
        (b"cargparse\nNamespace\n)RN}" + text("__class__") + b"K\x01s\x86b.", "by other than"),
        (b"cbuiltins\nint\n}b.", "sets attributes of"),
        # a room of any size
        (b"ctorch\nFloatStorage\n(K\x05tR.", "asks for torch"),
        (b"cnumpy\nndarray\n(K\x05tR.", "calls"),
        (b"cnumpy\nndarray\n(K\x05t\x81.", "calls"),
        (b"cnumpy\nndarray\n)}\x92.", "calls"),
        (b"(cnumpy\nndarray\nK\x05o.", "calls"),
        (b"(S'x'\nios\nmkdir\n.", r"asks for os\.mkdir"),
        (b"(K\x05inumpy\nndarray\n.", "calls"),
        (b"K\x05)R.", "calls 5"),
        # imports a module by the name of an encoding
        (b"c_codecs\nencode\n" + text("a") + text("idna") + b"\x86R.", "encoding 'idna'"),
        (b"Pname\n.", "refers to other objects"),
        (b"(" + text("module") + b"cargparse\nNamespace\ntQ.", "no storage"),
        (text("module") + b"Q.", "no storage"),
        (b"cargparse\nNamespace.__init__\n.", "asks for"),
        (b"\x80\x04\x8c\x08argparse\x8c\x13Namespace.__class__\x93.", "asks for"),
    ],
)
def test_instructions_beyond_values_are_refused(instructions, message):
    before = dict(vars(Namespace))
    with pytest.raises(pickle.UnpicklingError, match=message):
        RestrictedUnpickler(io.BytesIO(b"\x80\x02" + instructions), VALUES).load()
    assert vars(Namespace) == before


TENSOR = b"ctorch._tensor\n_rebuild_from_type_v2\n"


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        (TENSOR + b"(cbuiltins\nlist\nctorch\nTensor\n)NtR.", "calls .*list.* for"),
        (TENSOR + b"(ctorch._utils\n_rebuild_tensor_v2\ncbuiltins\nlist\n)NtR.", "calls .* for"),
        (TENSOR + b"(N" + text("torch.Tensor") + b")NtR.", "calls"),
        (b"ctorch\nTensor\n(K\x05tR.", "calls 'torch.Tensor'"),  # a room of any size
    ],
)
def test_a_tensor_with_attributes_calls_nothing_else(instructions, message):
    from fairseq_mm.compat.unpickling import checkpoints

    with pytest.raises(pickle.UnpicklingError, match=message):
        RestrictedUnpickler(io.BytesIO(b"\x80\x02" + instructions), checkpoints()).load()


def test_storages_are_named_and_not_made():
    from fairseq_mm.compat.unpickling import checkpoints

    file = io.BytesIO(b"\x80\x02ctorch\nFloatStorage\n(K\x05tR.")
    with pytest.raises(pickle.UnpicklingError, match="calls"):
        RestrictedUnpickler(file, checkpoints()).load()


READING = ("load", "loads", "Unpickler", "_Unpickler", "read_pickle", "load_state_dict_from_url")


def reading_calls(root: Path) -> dict[str, set[str]]:
    """File -> what it calls, or names, of the libraries that may unpickle."""
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in READING:
                name = ast.unparse(node)
                if name.split(".")[0] in (
                    *("torch", "pickle", "np", "numpy", "joblib", "dill", "marshal", "cloudpickle"),
                    *("pandas", "pd", "pickle_module"),
                ):
                    found.setdefault(path.relative_to(root).as_posix(), set()).add(name)
    return found


def test_one_file_of_the_package_unpickles():
    assert reading_calls(Path(fairseq_mm.__file__).parent) == {
        "compat/unpickling.py": {"torch.load", "pickle._Unpickler"},
        "data/numpy_files.py": {"np.load"},  # with allow_pickle=False
    }


def test_every_file_of_fairseq_that_unpickles_is_known():
    """Files of numpy hold objects only where the caller allows it, and fairseq never does."""
    folder = Path(importlib.util.find_spec("fairseq").submodule_search_locations[0])
    found = {
        file: {name for name in names if not name.startswith("np.")}
        for file, names in reading_calls(folder).items()
        # programs of their own
        if not file.startswith("examples/")
    }
    unknown = {file for file, names in found.items() if names} - set(LOADING) - set(OWN_DATA)
    assert unknown == set()
    assert all(OWN_DATA.values())
    for path in folder.rglob("*.py"):
        if "examples" not in path.relative_to(folder).parts:
            assert "allow_pickle=True" not in path.read_text(encoding="utf-8"), path
