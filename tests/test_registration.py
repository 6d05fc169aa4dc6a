"""Every name resolves to our class: fairseq silently keeps its own when a name is taken."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from toy_hydra import composed_config, parsed_config, plain, write_yaml

import fairseq_mm
from fairseq_mm.models._presets import PRESETS

PACKAGE = Path(fairseq_mm.__file__).parent
REGISTRIES = {
    "register_model": MODEL_REGISTRY,
    "register_model_architecture": ARCH_MODEL_REGISTRY,
    "register_task": TASK_REGISTRY,
    "register_criterion": CRITERION_REGISTRY,
    "register_optimizer": OPTIMIZER_REGISTRY,
    "register_lr_scheduler": LR_SCHEDULER_REGISTRY,
}


DECORATOR = re.compile(rf"^@({'|'.join(REGISTRIES)})\(\s*\"(\w+)\"", re.M)


def registrations():
    """(decorator, name, module) of every registration in the sources, and of every preset."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for decorator, name in DECORATOR.findall(path.read_text()):
            yield decorator, name, module
    for name, (model, _) in PRESETS.items():
        yield "register_model_architecture", name, f"fairseq_mm.models.{model}"


def test_names_resolve_to_our_classes():
    assert [x for x in registrations() if REGISTRIES[x[0]][x[1]].__module__ != x[2]] == []


def test_every_system_of_the_paper_has_its_architecture():
    names = {name for _, name, _ in registrations()}
    assert {"m_rnn", "m_rnn_base", "m_rnn_vis_in_rnn_both_shared"} <= names
    ladder = {"self_att", "multihead", "multiscale", "gated", "wp", "fusion"}
    assert {"conv_story", *(f"conv_story_{rung}" for rung in ladder)} <= names
    assert {"gcnn_lm", "gcnn_lm_self_att"} <= names
    assert {"vg_bart_base", "vg_bart_large", "vg_t5_small", "vg_t5_base", "t5_base"} <= names
    assert {"vg_bart_dot_product_fg", "vg_bart_dot_product_fg_vtf"} <= names
    baselines = {"hierarchical_attention", "mffg"}
    assert {f"{name}_{kind}" for name in baselines for kind in ("rnn", "transformer")} <= names
    assert {"pointer_generator", "lbl", "mlbl_b", "mlbl_f", "sc_nlm"} <= names


@pytest.mark.parametrize("module", sorted({module for _, _, module in registrations()}))
def test_every_option_has_help(module):
    for value in vars(importlib.import_module(module)).values():
        if dataclasses.is_dataclass(value) and value.__module__ == module:
            for field in dataclasses.fields(value):
                if not field.name.startswith("_") and not str(field.default).startswith("${"):
                    text = field.metadata.get("help")
                    assert text, f"{value.__name__}.{field.name}"
                    assert not re.search(r"--[\w-]+- ", text), text  # an option cut in two
                if field.type is bool and not str(field.default).startswith("${"):
                    assert field.default is False, f"{value.__name__}.{field.name}"


SECTIONS = [
    (decorator.split("register_")[1], name)
    for decorator, name, _ in registrations()
    if "model" not in decorator
]


@pytest.mark.parametrize(("section", "name"), SECTIONS)
def test_command_line_and_yaml_configure_alike(tmp_path, monkeypatch, section, name):
    """Of models see tests/models/test_presets.py."""
    chosen = {
        **{"task": "multimodal_captioning", "criterion": "cross_entropy"},
        **{"optimizer": "adam", "lr_scheduler": "fixed"},
        section: name,
    }
    arguments = [x for key, value in chosen.items() for x in (f"--{key.replace('_', '-')}", value)]
    parsed = parsed_config(["data", "--arch", "m_rnn", *arguments])
    sections = {key: {"_name": value} for key, value in chosen.items()}
    sections["model"], sections["task"]["data"] = {"_name": "m_rnn"}, "data"
    write_yaml(tmp_path / "recipe.yaml", sections)
    composed = composed_config(monkeypatch, tmp_path, "recipe")
    assert plain(composed[section]) == plain(parsed[section])
    assert composed[section]._name == name
