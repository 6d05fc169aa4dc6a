"""The name of an architecture means one model, whichever way its configuration was built: by
``--arch NAME``, by hydra's ``model=NAME``, or by ``model: {_name: NAME}`` in YAML."""

import contextlib
import dataclasses
import pickle
from argparse import Namespace

import pytest
import torch
from fairseq import models
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import OmegaConf, open_dict
from toy_data import make_dictionary, story_task, toy_task, video_task, visual_story_task
from toy_hydra import FAIRSEQ_CONFIG, composed_config, parsed_config, plain, write_yaml

from fairseq_mm.models._presets import PRESETS, register_presets

ARCHITECTURES = sorted(
    name for name, cls in ARCH_MODEL_REGISTRY.items() if cls.__module__.startswith("fairseq_mm.")
)
# these are run always, all others by `make soak`
QUICK = ("conv_story_gated", "glac_non_local", "vg_bart_large", "vse_gru")
# of each model one preset, or its own name where it has none
REPRESENTATIVES = {model: model for model in ARCHITECTURES if model not in PRESETS}
REPRESENTATIVES.update((model, preset) for preset, (model, _) in sorted(PRESETS.items()))
HAS_META = hasattr(torch.device, "__enter__")  # PyTorch 2.0 and newer
LARGE = ("t5_large", "vg_t5_large", "vg_bart_large")


def mostly_slow(names, quick=QUICK):
    return [pytest.param(x, marks=() if x in quick else pytest.mark.slow) for x in names]


def task_of(arch):
    """Name of the task of an architecture, and what ``build_model`` asks of such a task."""
    system = ARCH_MODEL_REGISTRY[arch].__module__.split(".")[-1]
    if system == "conv_story":
        return "hierarchical_story", story_task()
    if system == "gcnn_lm":
        return "language_modeling", toy_task()
    if system == "glac" or system.startswith("transtory"):
        return "visual_storytelling", visual_story_task(rows_per_image=4)
    if system in ("m_rnn", "vse", "lbl", "mlbl_b", "mlbl_f", "sc_nlm", "transformer_captioner"):
        return "multimodal_captioning", toy_task(structure_dictionary=make_dictionary())
    return "video_summarization", video_task(feature_dim=16)


def with_needed(arch, given):
    """Options, with those that an architecture is not built without."""
    return {"pretrained_checkpoint": "a.pt", **given} if arch == "conv_story_fusion" else given


def by_command_line(arch, **given):
    arguments = ["data", "--task", task_of(arch)[0], "--arch", arch]
    for name, value in with_needed(arch, given).items():
        flag = "--" + name.replace("_", "-")
        arguments += [flag] if value is True else [flag, str(value)]
    return parsed_config(arguments)


def by_yaml(folder, monkeypatch, arch, **given):
    sections = {
        "task": {"_name": task_of(arch)[0], "data": "data"},
        "model": {"_name": arch, **with_needed(arch, given)},
    }
    write_yaml(folder / "recipe.yaml", sections)
    return composed_config(monkeypatch, folder, "recipe")


def by_group(monkeypatch, arch, **given):
    overrides = [f"task={task_of(arch)[0]}", "task.data=data", f"model={arch}"]
    for name, value in with_needed(arch, given).items():
        overrides.append(f"model.{name}={value!r}")
    return composed_config(monkeypatch, FAIRSEQ_CONFIG, "config", overrides)


def shapes(monkeypatch, arch, cfg, **kwargs):
    """Of the state dict, without computing or holding the weights where PyTorch can."""
    # its in-place copy from the CPU is what the meta device does not know
    monkeypatch.setattr("fairseq.models.bart.model.init_bert_params", lambda module: None)
    with torch.device("meta") if HAS_META else contextlib.nullcontext():
        model = models.build_model(cfg.model, task_of(arch)[1], **kwargs)
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


@pytest.mark.parametrize(
    "arch", mostly_slow(ARCHITECTURES, {*QUICK, *REPRESENTATIVES.values()} - {*LARGE})
)
def test_command_line_and_yaml_give_the_same_model(tmp_path, monkeypatch, arch):
    parsed, composed = by_command_line(arch), by_yaml(tmp_path, monkeypatch, arch)
    assert plain(composed.model) == plain(parsed.model)
    if not HAS_META and arch in LARGE:
        pytest.skip("this PyTorch has no meta device: the weights would take gigabytes")
    assert shapes(monkeypatch, arch, composed)
    # building leaves alone what the checkpoint will carry
    assert plain(composed.model) == plain(parsed.model)


def changed_option(arch):
    """An option that the preset sets, with the model's own default, or with another value."""
    model, values = PRESETS[arch]
    fields = MODEL_DATACLASS_REGISTRY[model].__dataclass_fields__
    for name, value in values.items():
        if not isinstance(value, bool) and fields[name].default != value:
            return name, fields[name].default
    name = next(name for name in fields if name.endswith("dropout"))
    return name, 0.25


@pytest.mark.parametrize("arch", mostly_slow(sorted(PRESETS)))
def test_given_option_wins_over_the_preset(tmp_path, monkeypatch, arch):
    name, value = changed_option(arch)
    given = {name: value}
    expected = {**plain(by_command_line(arch).model), **given}
    assert plain(by_command_line(arch, **given).model) == expected
    assert plain(by_yaml(tmp_path, monkeypatch, arch, **given).model) == expected
    assert plain(by_group(monkeypatch, arch, **given).model) == expected


def test_configuration_of_a_checkpoint_wins_over_the_preset(monkeypatch):
    """hydra used to train vse_gru with 300 channels: such a checkpoint still loads."""
    cfg = OmegaConf.create({"model": plain(by_command_line("vse_gru").model)})
    cfg.model.embed_dim, cfg.model.sentence_signs = 300, "none"
    old = shapes(monkeypatch, "vse_gru", cfg, from_checkpoint=True)
    assert old["image_proj.weight"] == (300, 5)


def test_checkpoint_with_missing_and_unknown_options_is_built_by_its_preset(monkeypatch):
    cfg = OmegaConf.create({"model": plain(by_command_line("vse_gru").model)})
    OmegaConf.set_struct(cfg, True)  # as fairseq loads it
    complete = shapes(monkeypatch, "vse_gru", cfg, from_checkpoint=True)
    with open_dict(cfg):
        del cfg.model["embed_dim"], cfg.model["sentence_signs"]
        cfg.model.option_of_the_future = 3
    assert shapes(monkeypatch, "vse_gru", cfg, from_checkpoint=True) == complete
    assert complete["image_proj.weight"] == (1024, 5)


def test_options_of_a_script_are_completed_by_the_preset():
    """``args.arch`` and some options, as programs hand them to fairseq."""
    model = models.build_model(Namespace(arch="vse_gru", word_dim=7), toy_task())
    assert model.embed_dim == 1024
    assert model.sentence_encoder.embedding.weight.shape[1] == 7


@pytest.mark.parametrize("arch", sorted(PRESETS))
def test_preset_differs_from_its_model_by_its_table_alone(arch):
    model, values = PRESETS[arch]
    base, config = MODEL_DATACLASS_REGISTRY[model], MODEL_DATACLASS_REGISTRY[arch]
    assert dataclasses.asdict(config()) == {**dataclasses.asdict(base()), **values}
    for name, field in base.__dataclass_fields__.items():
        assert config.__dataclass_fields__[name].type == field.type
        assert config.__dataclass_fields__[name].metadata == field.metadata
    assert pickle.loads(pickle.dumps(config())) == config()


def test_preset_of_an_unknown_field_or_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="preset vse_wide: VseConfig has no field width"):
        register_presets("vse", {"vse_wide": {"width": 3}})
    with pytest.raises(ValueError, match="duplicate"):
        register_presets("vse", {"vse_gru": {"embed_dim": 3}})
    assert MODEL_DATACLASS_REGISTRY["vse_gru"]().embed_dim == 1024
