"""No code runs from a checkpoint, a pickle or their options, whoever reads them."""

import ast
import contextlib
import importlib.util
import io
import os
import pickle
import re
import sys
import tarfile
import typing
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq import utils as fairseq_utils
from fairseq.data import Dictionary
from fairseq.meters import AverageMeter
from omegaconf import OmegaConf
from toy_data import make_captions_folder, run_fairseq
from toy_story_models import make_story_folder
from toy_text_models import save_text_model

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.compat import load_torch_file
from fairseq_mm.compat.literals import evaluate_literal, parse_literal
from fairseq_mm.compat.loading import LOADING
from fairseq_mm.conversion.foreign_checkpoint import read_foreign_checkpoint, read_plain_pickle
from fairseq_mm.errors import UserError


class Caller:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def load_as_fairseq(path):
    return checkpoint_utils.load_checkpoint_to_cpu(str(path))


def load_as_fairseqs_main_branch(path):
    with open(path, "rb") as file:
        return vars(checkpoint_utils)["torch"].load(file, weights_only=False)


READERS = [load_as_fairseq, load_as_fairseqs_main_branch, read_foreign_checkpoint, load_torch_file]


@pytest.fixture
def trace(tmp_path):
    """Path that the code in a file would make."""
    path = tmp_path / "trace"
    yield path
    assert not path.exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", [load_as_fairseq, read_foreign_checkpoint])
def test_what_checkpoints_are_made_of_comes_back(read, zipped, tmp_path):
    dictionary = Dictionary()
    dictionary.add_symbol("a", 7)
    numbers = [np.float32(1.5), np.float64(2.5), np.int64(-3), np.bool_(True)]
    content = {
        "args": None,
        "cfg": OmegaConf.create({"task": {"_name": "x", "lr": [0.1]}, "model": {"_name": "y"}}),
        "model": torch.nn.Linear(2, 3).state_dict(),
        "older": Namespace(
            lr=[0.25], arch="z", shape=torch.Size([2, 3]), device=torch.device("cpu")
        ),
        "types": [torch.float16, torch.int64, typing.Any, {1, 2}, (None, 1.5, b"a")],
        "half": torch.arange(6).half().view(2, 3).t()[1:],
        "task_state": {"dictionary": dictionary},
        "extra_state": {"numbers": numbers, "meters": OrderedDict(loss=AverageMeter())},
        "optimizer_history": [{"criterion_name": "A", "best_loss": None}],
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    state = read(tmp_path / "a.pt")
    assert state["cfg"]["task"]["lr"] == [0.1]
    assert state["older"] == content["older"]
    assert state["types"] == content["types"]
    assert torch.equal(state["half"], content["half"])
    assert vars(state["task_state"]["dictionary"]) == vars(dictionary)
    assert state["extra_state"]["numbers"] == numbers
    assert [type(x) for x in state["extra_state"]["numbers"]] == [type(x) for x in numbers]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("variable", ["", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
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
        with pytest.raises(UserError, match=rf"{path}: .*it asks for .*{function.__name__}, which"):
            read(path)
        plain = tmp_path / "code.pkl"
        plain.write_bytes(pickle.dumps(content))
        with pytest.raises(UserError, match="it asks for"):
            read_plain_pickle(str(plain))


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
    def __setstate__(self, state: tuple[str, bool]):
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
        with pytest.raises(UserError, match="TorchScript"):
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
    with pytest.raises(UserError, match=r"archive\.pt: cannot be loaded safely"):
        read(path)


class Structure:
    """numpy's type of one object that says it has none."""

    def __reduce__(self):
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 0)


def scalar(kind, content):
    return Caller(np.float64(0).__reduce__()[0], kind, content)


@pytest.mark.parametrize(
    "content",
    [
        np.arange(3.0),
        scalar(Structure(), b"A" * 8),
        scalar(np.dtype("f8"), b"A" * 4),
        scalar(np.dtype("O"), b"A" * 8),
    ],
    ids=range(4),
)
def test_numpys_bytes_do_not_become_pointers(content, tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"extra_state": content}, path)
    for read in (*READERS, torch.load):
        with pytest.raises((UserError, pickle.UnpicklingError)):
            read(path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(UserError, match=r"a\.pkl: is no pickle that can be read safely"):
        read_plain_pickle(str(tmp_path / "a.pkl"))


def test_a_pickle_changes_no_class(tmp_path):
    before = dict(vars(Namespace))
    text = b"X\x01\x00\x00\x00a"
    for instructions in (
        b"cargparse\nNamespace\nN}" + text + b"K\x01s\x86b.",
        b"cargparse\nNamespace\n}" + text + b"K\x01sb.",
        b"cargparse\nNamespace.__init__\n.",
        b"(S'x'\nios\nmkdir\n.",
    ):
        (tmp_path / "a.pkl").write_bytes(b"\x80\x02" + instructions)
        with contextlib.suppress(UserError):
            read_plain_pickle(str(tmp_path / "a.pkl"))
        assert vars(Namespace) == before


READING = ("load", "loads", "Unpickler", "_Unpickler", "read_pickle", "load_state_dict_from_url")
LIBRARIES = ("torch", "pickle", "np", "numpy", "joblib", "dill", "marshal", "cloudpickle", "pandas")


def reading_calls(root: Path) -> dict[str, set[str]]:
    """File -> what it calls, or names, of the libraries that may unpickle."""
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in READING:
                name = ast.unparse(node)
                if name.split(".")[0] in LIBRARIES:
                    found.setdefault(path.relative_to(root).as_posix(), set()).add(name)
    return found


def test_few_files_of_the_package_unpickle():
    assert reading_calls(Path(fairseq_mm.__file__).parent) == {
        "compat/loading.py": {"torch.load"},
        "conversion/foreign_checkpoint.py": {"pickle.Unpickler"},
        # numpy unpickles only where it is asked to
        "cli/serve.py": {"np.load"},
        "data/numpy_files.py": {"np.load"},
        "metrics/_meteor_tables.py": {"np.load"},
        "retrieval/score_file.py": {"np.load"},
    }


# files of fairseq that load data of its own processes
OWN_DATA = {
    "distributed/utils.py",
    "modules/quantization/pq/em.py",
    "models/speech_to_text/hub_interface.py",
}


def folder_of(package: str) -> Path:
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


def test_every_file_of_fairseq_that_unpickles_is_guarded():
    found = {
        "fairseq." + file.removesuffix(".py").replace("/", ".")
        for file, names in reading_calls(folder_of("fairseq")).items()
        # examples are programs of their own; numpy's files hold no objects there
        if not file.startswith("examples/")
        and file not in OWN_DATA
        and any(not name.startswith("np.") for name in names)
    }
    assert found == set(LOADING)
    for name in LOADING:
        assert vars(sys.modules[name])["torch"].load is not torch.load


def test_every_module_of_fairseq_that_evaluates_reads_literals():
    root = folder_of("fairseq")
    files = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    evaluating = [
        "fairseq." + file.removesuffix(".py").replace("/", ".")
        for file in files
        if not file.startswith("examples/")
        and re.search(r"(?<![.\w])(eval|exec)\(", (root / file).read_text())
    ]
    assert len(evaluating) > 10
    assert [x for x in evaluating if vars(sys.modules[x]).get("eval") is not evaluate_literal] == []


@pytest.mark.parametrize(
    "text",
    [
        "[(512, 4)] * 4 + [(768, 4)] * 2",
        "((256, 1024, 4, True, 0.15),) * 2",
        *("True", " 1 ", "None", "-1", "1e-3/4", "(0.9, 0.98)", "10000,50000", "[1 + 1]"),
        *("('lm.bin', 2, -1)", '{"name": "linformer"}'),
    ],
)
def test_literals_have_the_value_that_python_gives_them(text):
    assert parse_literal(text) == eval(text)
    assert type(parse_literal(text)) is type(eval(text))


@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').mkdir('TRACE')",
        "[__import__('os').mkdir('TRACE')] * 2",
        "(0.9, __import__('os').mkdir('TRACE'))",
        "{'a': __import__('os').mkdir('TRACE')}",
        "[__import__('os').mkdir('TRACE') for _ in 'a']",
        "(lambda: __import__('os').mkdir('TRACE'))()",
        'f\'{__import__("os").mkdir("TRACE")}\'',
        "(1, 2).__class__",
    ],
)
def test_fairseqs_eval_reads_literals_alone(code, trace):
    for evaluate in (
        fairseq_utils.eval_bool,
        fairseq_utils.eval_str_list,
        fairseq_utils.eval_str_dict,
        evaluate_literal,
    ):
        with pytest.raises(UserError, match=r"must be a literal .* but is"):
            evaluate(code.replace("TRACE", str(trace)))


MODEL = {
    "_name": "fconv_self_att",
    "encoder_embed_dim": 8,
    "encoder_layers": "[(8, 3)]",
    "encoder_attention": "False",
    "encoder_attention_nheads": 1,
    "decoder_embed_dim": 8,
    "decoder_layers": "[(8, 4)]",
    "decoder_out_embed_dim": 8,
    "decoder_attention": "True",
    "self_attention": "False",
    "multihead_attention_nheads": 1,
    "multihead_self_attention_nheads": 1,
    "project_input": "False",
    "gated_attention": "False",
    "downsample": "False",
    "pretrained": "False",
    "pretrained_checkpoint": "",
    "dropout": 0.1,
    "max_source_positions": 43,
    "max_target_positions": 43,
    "data": "",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("unsafe")


@pytest.fixture(scope="module")
def source(folder):
    """A trained story model's checkpoint."""
    return torch.load(save_text_model(folder / "story.pt"))


@pytest.fixture(scope="module")
def stories(folder) -> Path:
    return make_story_folder(folder / "stories")


@pytest.fixture(scope="module")
def captions(folder) -> Path:
    return make_captions_folder(folder / "captions")


@pytest.fixture
def code(trace) -> str:
    return f"__import__('os').system('touch {trace}')"


@pytest.fixture
def save(tmp_path, source):
    """Function that saves the checkpoint with other sections of its configuration."""

    def save_changed(**sections) -> Path:
        path = tmp_path / "checkpoint.pt"
        torch.save({**source, "cfg": {**source["cfg"], **sections}}, path)
        return path

    return save_changed


@pytest.mark.parametrize(
    ("model", "option"),
    [
        *(("fconv_self_att", name) for name in ("pretrained", "encoder_layers", "downsample")),
        *(("fconv", name) for name in ("encoder_layers", "decoder_attention")),
        *(("lstm", "decoder_attention"), ("lstm_lm", "adaptive_softmax_cutoff")),
        *(("fconv_lm", "decoder_layers"), ("transformer_lm", "adaptive_softmax_cutoff")),
        *(("transformer_lm", "adaptive_input_cutoff"), ("transformer", "xformers_att_config")),
        *(("lightconv_lm", "character_filters"), ("wav2vec2", "conv_feature_layers")),
    ],
)
def test_an_option_that_fairseq_evaluates_runs_nothing(model, option, save, code, capsys):
    options = {**MODEL, "_name": model, option: code, "criterion": "adaptive_loss"}
    for section in (options, Namespace(**options), OmegaConf.create(options)):
        path = save(model=section)
        assert main(["tell", "--checkpoint", str(path), "--prompt", "You find a door ."]) == 2
        assert f"{path}: " in capsys.readouterr().err


COMMANDS = {
    "embed": ("multimodal_captioning", "embed --checkpoint {path} {captions} --output {out}"),
    "rank": ("multimodal_captioning", "rank --checkpoint {path} {captions}"),
    "perplexity": ("translation", "perplexity --checkpoint {path} {stories}"),
    "inspect": ("translation", "inspect --checkpoint {path} --data {stories}"),
    "convert": ("translation", "convert {path} {out} --data {stories}"),
    "export": ("translation", "export {path} {out}"),
    "tell": ("translation", "tell --checkpoint {path} --prompt door"),
    "tell prompts": ("language_modeling", "tell --prompt-model {path} --prompts-only"),
    "caption": ("multimodal_captioning", "caption --checkpoint {path} a.jpg"),
    "summarize": ("video_summarization", "summarize --checkpoint {path} a.mp4"),
    "doctor": ("translation", "doctor --checkpoint {path} --data {stories}"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_it(name, save, code, stories, captions, capsys, tmp_path):
    task, command = COMMANDS[name]
    path = save(model={**MODEL, "pretrained": code}, task={"_name": task, "data": str(stories)})
    values = {"path": path, "stories": stories, "captions": captions, "out": tmp_path / "out"}
    main([word.format(**values) for word in command.split()])
    capsys.readouterr()
    with pytest.raises(UserError):
        fairseq_mm.from_pretrained(path)


TRANSLATION = "{stories} --task translation --source-lang wp_source --target-lang wp_target "
TRAINING = (
    TRANSLATION + "--arch {arch} --optimizer adam --lr 0.01 --cpu --num-workers 0 --max-epoch 1 "
    "--batch-size 4 --save-dir {out} --log-format none "
)
FAIRSEQ_COMMANDS = {
    "generate": ("generate", TRANSLATION + "--path {path} --gen-subset valid --cpu"),
    "interactive": ("interactive", TRANSLATION + "--path {path} --cpu"),
    "validate": ("validate", TRANSLATION + "--path {path} --cpu --batch-size 4"),
    "eval_lm": ("eval_lm", "{stories}/stories --path {path} --gen-subset valid --cpu"),
    "finetuning": ("train", TRAINING + "--finetune-from-model {path}"),
    "resuming": ("train", TRAINING + "--restore-file {path}"),
    "pretrained story model": (
        "train",
        TRAINING.replace("{arch}", "conv_story_fusion") + "--pretrained-checkpoint {path}",
    ),
    "pretrained model of fairseq's": (
        "train",
        TRAINING.replace("{arch}", "fconv_self_att_wp")
        + "--pretrained True --pretrained-checkpoint {path}",
    ),
}


@pytest.mark.parametrize("name", FAIRSEQ_COMMANDS)
def test_fairseqs_own_commands_run_nothing(name, save, code, stories, monkeypatch, tmp_path, trace):
    command, options = FAIRSEQ_COMMANDS[name]
    for path in (
        save(model={**MODEL, "pretrained": code}),
        save(model=MODEL, optimizer={"_name": "adam", "adam_betas": code}),
        save(criterion=Caller(os.mkdir, str(trace))),
    ):
        values = {"path": path, "stories": stories, "out": tmp_path / "out"}
        words = [x.format(**values, arch="conv_story_tiny") for x in options.split()]
        with pytest.raises(Exception):  # noqa: B017, PT011  of any class, but nothing runs
            run_fairseq(monkeypatch, command, *words)


def test_code_that_a_checkpoint_names_is_not_imported(save, tmp_path, capsys, trace):
    package = tmp_path / "unsafe_plugin"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(trace)!r}, 'w')")
    path = save(common={"user_dir": str(package)}, bpe={"_target_": "os.system"})
    length = ["--min-len", "5", "--max-len-b", "5"]
    assert main(["tell", "--checkpoint", str(path), "--prompt", "door", *length]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("arch", ["lightconv_lm", "wav2vec2", "hf_gpt2", "masked_lm"])
def test_an_architecture_of_another_family_is_refused_in_one_line(arch, save, capsys):
    path = save(model={**MODEL, "_name": arch})
    assert main(["tell", "--checkpoint", str(path), "--prompt", "You find a door ."]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}: --arch {arch} (--task" in line
    assert line.endswith("fairseq's BART, LSTM, transformer and convolutional models are known.")
