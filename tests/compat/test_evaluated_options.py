"""fairseq evaluates options as Python: every place that does is known, and literals alone pass."""

import ast
import importlib
import importlib.util
import os
import tracemalloc
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import utils as fairseq_utils
from omegaconf import OmegaConf

from fairseq_mm.compat.evaluated_options import (
    EVALUATED,
    EXPECTED,
    FLAG,
    FLAGS,
    LAYERS,
    LITERALS,
    NUMBERS,
    check_options,
    evaluate_literal,
)
from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.compat.loading import get_module_name
from fairseq_mm.errors import UserError

_EVALUATING = {"eval", "exec", "eval_str_list", "eval_str_dict", "eval_bool"}
_COMMAND_LINE = "evaluates what the user types on the command line"
_DATA = "evaluates lines of a data file that the user names to its script"

# places that no option of a checkpoint reaches -> why
UNREACHED: dict[str, str] = {
    "utils.py:eval_str_list": "evaluates for its callers, each of which stands in EVALUATED",
    "utils.py:eval_str_dict": "evaluates for its callers, each of which stands in EVALUATED",
    "utils.py:eval_bool": "evaluates for its callers, each of which stands in EVALUATED",
    "data/codedataset.py:parse_manifest": _DATA,
    "data/multilingual/multilingual_data_manager.py:MultilingualDatasetManager.add_args": (
        _COMMAND_LINE
    ),
    "dataclass/utils.py:gen_parser_from_dataclass.get_kwargs_from_dc": _COMMAND_LINE,
    "models/lightconv.py:LightConvModel.add_args": _COMMAND_LINE,
    "models/lightconv_lm.py:LightConvLanguageModel.add_args": _COMMAND_LINE,
    "fairseq_cli/eval_lm.py:main": _COMMAND_LINE,
    "fairseq_cli/validate.py:main": _COMMAND_LINE,
    "examples/criss/save_encoder.py:main": _COMMAND_LINE,
    "examples/discriminative_reranking_nmt/drnmt_rerank.py:decode_rerank_scores": _COMMAND_LINE,
    "examples/roberta/wsc/wsc_utils.py:jsonl_iterator": "`eval` is an argument of its own",
    "examples/roberta/wsc/wsc_utils.py:winogrande_jsonl_iterator": (
        "`eval` is an argument of its own"
    ),
    "examples/textless_nlp/pgslm/data_utils.py:load_audio_path": _DATA,
    "examples/textless_nlp/pgslm/quantize_f0.py:load_speaker": _DATA,
    "examples/textless_nlp/pgslm/sample/sample.py:FilterNamesDataset.__init__": _DATA,
}


def folder_of(package: str) -> Path:
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


def places_in(root: Path, prefix: str = "") -> dict[str, set[str]]:
    """Every place that evaluates text -> the options, or variables, that it evaluates."""
    found: dict[str, set[str]] = {}

    def visit(node, place):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            place += ("." if not place.endswith(":") else "") + node.name
        if evaluates(node):
            found.setdefault(place, set())
        if isinstance(node, ast.Call) and evaluates(node.func):
            found.setdefault(place, set()).add(option_of(node.args[0]))
        for child in ast.iter_child_nodes(node):
            visit(child, place)

    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        visit(ast.parse(path.read_text(encoding="utf-8")), f"{prefix}{file}:")
    return found


def evaluates(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _EVALUATING
    # `model.eval` sets a mode
    return isinstance(node, ast.Attribute) and node.attr in _EVALUATING - {"eval"}


def option_of(argument: ast.AST) -> str:
    """``args.encoder_layers``, ``encoder_layers`` and ``kwargs["encoder_layers"]``: its name."""
    if isinstance(argument, ast.Subscript):
        argument = argument.slice
    for name in ("attr", "id", "value"):
        if isinstance(getattr(argument, name, None), str):
            return getattr(argument, name)
    return ast.dump(argument)


@pytest.fixture(scope="module")
def places() -> dict[str, set[str]]:
    """Of the fairseq that is installed, or whose source FAIRSEQ_MM_FAIRSEQ names."""
    other = os.environ.get("FAIRSEQ_MM_FAIRSEQ")
    folders = [folder_of(name) for name in ("fairseq", "fairseq_cli")]
    if other:
        folders = [Path(other) / "fairseq", Path(other) / "fairseq_cli"]
    return {**places_in(folders[0]), **places_in(folders[1], "fairseq_cli/")}


def test_every_place_of_fairseq_that_evaluates_text_is_known(places):
    # an empty walk would find nothing unknown
    assert {"utils.py:eval_bool", "fairseq_cli/eval_lm.py:main"} <= set(places)
    unknown = sorted(set(places) - set(EVALUATED) - set(UNREACHED))
    assert not unknown, f"{len(places)} places, not in fairseq_mm/compat: {unknown}"
    assert not set(EVALUATED) & set(UNREACHED)
    assert all(UNREACHED.values())


def test_the_table_names_the_options_that_a_place_evaluates(places):
    wrong = {
        place: sorted(options - set(EVALUATED[place]))
        for place, options in places.items()
        if place in EVALUATED and options - set(EVALUATED[place])
    }
    assert wrong == {}


def test_the_walk_finds_what_evaluates(tmp_path):
    code = """
class A:
    def build(cls, args, kwargs):
        self.eval()
        def inner():
            return [eval(args.x), utils.eval_str_list(kwargs["y"]), field(type=eval_bool)]
exec(z)
"""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "a.py").write_text(code)
    assert places_in(tmp_path) == {"m/a.py:A.build.inner": {"x", "y"}, "m/a.py:": {"z"}}


GOOD = {
    FLAG: ("True", "False", "None", " 1 "),
    FLAGS: ("False", "[True] + [False] * 5", "(True,)"),
    NUMBERS: ("(0.9, 0.98)", "10000,50000,200000", "[1e-30, 1e-3]", "0.5", "-1"),
    LAYERS: ("[(512, 4)] * 4 + [(768, 4)] * 2", "((256, 1024, 4, True, 0.15),) * 2", "None", "6"),
    LITERALS: ("('lm.bin', 'lexicon.txt', 2, -1)",),
}
CODE = "__import__('os').system('touch FILE')"
BAD = {
    FLAG: (CODE, "[True]", "'no'", "2"),
    FLAGS: (CODE, f"[{CODE}]", "['x']"),
    NUMBERS: (CODE, f"(0.9, {CODE})", "['1']", "[0.9] * 10**9", "1 + 1"),
    LAYERS: (
        CODE,
        "[(512, 3)] * 10**9",
        "[(512, 3)] * 1001",
        "[['a']]",
        "[(512, 3) for _ in 'ab']",
    ),
    LITERALS: (CODE, "'lm.bin'", f"('lm.bin', {CODE})"),
}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_literals_of_the_options_type_pass_and_nothing_else(name):
    dictionaries = {"DICTIONARY": ('{"name": "linformer"}', "None")}
    kind = EXPECTED[name]
    for text in GOOD.get(kind, dictionaries["DICTIONARY"]):
        check_options({"cfg": {"model": {name: text}}}, "a.pt")
    for text in BAD.get(kind, (CODE, "[1]", f'{{"name": {CODE}}}')):
        with pytest.raises(UserError) as caught:
            check_options({"cfg": {"model": {name: text}}}, "a.pt")
        message = str(caught.value)
        assert message.startswith(f"a.pt: cfg.model.{name} must be {kind}, but is ")
        assert repr(text) in message
        assert "\n" not in message


def attributes_of(**options):
    """Attributes of a mapping: read by ``getattr``, as its items are."""
    mapping = OrderedDict()
    vars(mapping).update(options)
    return mapping


def shadowed(**options):
    """Attributes of a configuration, which win over its items."""
    cfg = OmegaConf.create(dict.fromkeys(options, "True"))
    vars(cfg).update(options)
    return cfg


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"cfg": {"model": {"pretrained": CODE}}}, "cfg.model.pretrained"),
        ({"cfg": {"model": Namespace(pretrained=CODE)}}, "cfg.model.pretrained"),
        ({"args": Namespace(pretrained=CODE)}, "args.pretrained"),
        ({"args": {"pretrained": CODE}}, "args.pretrained"),
        ({"args": attributes_of(pretrained=CODE)}, "args.pretrained"),
        ({"cfg": OmegaConf.create({"model": {"pretrained": CODE}})}, "cfg.model.pretrained"),
        ({"cfg": {"model": shadowed(pretrained=CODE)}}, "cfg.model.pretrained"),
        ({"cfg": {"optimizer": {"adam_betas": CODE}}}, "cfg.optimizer.adam_betas"),
        (
            {"cfg": {"model": {"w2v_args": {"model": Namespace(conv_feature_layers=CODE)}}}},
            "cfg.model.w2v_args.model.conv_feature_layers",
        ),
        ({"cfg": {"parts": [1, {"pretrained": CODE}]}}, "cfg.parts[1].pretrained"),
        ({"cfg": {"model": {"pretrained": ["True", CODE]}}}, "cfg.model.pretrained[1]"),
        ({"cfg": OmegaConf.create({"a": [{"pretrained": CODE}]})}, "cfg.a[0].pretrained"),
    ],
)
def test_options_are_found_wherever_a_checkpoint_keeps_them(state, path):
    with pytest.raises(UserError, match="must be") as caught:
        check_options(state, "a.pt")
    assert str(caught.value).startswith(f"a.pt: {path} must be ")


@pytest.mark.parametrize(
    "value",
    ["${oc.env:HOME}", "${env:HOME}", "a${x.y}${ oc.env:HOME}b", "${a.${b}}", "${a.b}${a.b}"],
)
@pytest.mark.parametrize("wrap", [dict, OmegaConf.create, lambda cfg: OmegaConf.create(dict(cfg))])
def test_references_out_of_the_checkpoint_are_refused(value, wrap):
    with pytest.raises(UserError, match=r"^a\.pt: cfg\.data must be a plain value, but is '"):
        check_options({"cfg": wrap({"data": value})}, "a.pt")


def test_references_inside_the_configuration_and_other_files_pass():
    check_options({"cfg": OmegaConf.create({"a": "${b.c}", "b": {"c": 1}}), "args": None}, "a.pt")
    check_options({"args": Namespace(arch="transformer", encoder_layers=6, adam_betas=[0.9])}, "a")
    for other in ({"model": {}}, [1], None, {"cfg": None}):
        check_options(other, "a.pt")


def test_a_configuration_that_holds_itself_is_refused():
    cfg = {"a": {}}
    cfg["a"]["cfg"] = cfg
    with pytest.raises(UserError, match=r"^a\.pt: cfg must be a tree of options, but holds itself"):
        check_options({"cfg": cfg}, "a.pt")


@pytest.mark.parametrize("kind", [lambda x: [x, x], lambda x: {"a": x, "b": x}])
def test_values_are_counted_as_often_as_they_would_be_built(kind):
    value = [1]
    for _ in range(40):
        value = kind(value)
    for cfg in ({"model": value}, {"model": Namespace(a=value)}):
        with pytest.raises(UserError, match=r"^a\.pt: cfg must have 100,000 values at most, but"):
            check_options({"cfg": cfg}, "a.pt")
    with pytest.raises(UserError, match=r"^a\.pt: args must have 100,000 values"):
        check_options({"args": value}, "a.pt")
    check_options({"cfg": OmegaConf.create({"layers": [[1, 2]] * 1000})}, "a.pt")


def test_depth_is_bounded():
    value = []
    for _ in range(50_000):
        value = [value]
    with pytest.raises(UserError, match=r"^a\.pt: cfg is nested more than 100 deep\.$"):
        check_options({"cfg": value}, "a.pt")
    while value:  # one by one: Python frees nested lists by recursion
        value = value[0]


@pytest.mark.parametrize("value", [b"[1]", np.zeros(3), torch.zeros(2)])
def test_arrays_and_bytes_are_no_options(value):
    for wrap in (dict, lambda cfg: Namespace(**cfg)):
        with pytest.raises(UserError, match=r"^a\.pt: cfg\.model\.x must be a plain value, but is"):
            check_options({"cfg": {"model": wrap({"x": value})}}, "a.pt")


def test_sizes_are_bounded_without_being_computed():
    tracemalloc.start()
    for text in (
        "[0] * 10**9",
        "[[[0] * 1000] * 1000] * 1000",
        "9" * 5000,
        "(" * 4000,
        "'a' * 9**9",
    ):
        with pytest.raises(ValueError, match=r"literal|long|many"):
            parse_literal(text)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 10_000_000  # the smallest of the sizes takes 387 MB


def test_fairseqs_eval_reads_literals_alone(tmp_path):
    trace = tmp_path / "trace"
    code = f"__import__('pathlib').Path({str(trace)!r}).touch()"
    for evaluate in (
        fairseq_utils.eval_bool,
        fairseq_utils.eval_str_list,
        fairseq_utils.eval_str_dict,
        evaluate_literal,
    ):
        with pytest.raises(UserError, match=r"must be a literal .* but is .__import__"):
            evaluate(code)
    assert not trace.exists()
    # what users write on the command line
    assert fairseq_utils.eval_str_list("1e-3/4") == [0.00025]
    assert fairseq_utils.eval_str_list("4,2", int) == [4, 2]
    assert fairseq_utils.eval_bool("True")
    assert not fairseq_utils.eval_bool(True)  # as `eval` of what is no text
    assert fairseq_utils.eval_str_dict("{'name': 'x', 'rate': .5}") == {"name": "x", "rate": 0.5}


def test_every_module_that_evaluates_options_has_it():
    wrong = []
    for place in EVALUATED:
        if not place.startswith("examples/"):
            module = importlib.import_module(get_module_name(place))
            wrong += [] if vars(module).get("eval") is evaluate_literal else [place]
    assert wrong == []
