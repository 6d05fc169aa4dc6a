"""A checkpoint whose options would run code is refused by whatever reads it, and nothing runs."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from omegaconf import OmegaConf
from toy_data import make_captions_folder, run_fairseq
from toy_story_models import make_story_folder
from toy_text_models import save_text_model

import fairseq_mm
from fairseq_mm import errors
from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError

SELF_ATTENTION = {
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
def source(folder) -> dict[str, Any]:
    """A trained story model's checkpoint."""
    return torch.load(save_text_model(folder / "story.pt"))


@pytest.fixture(scope="module")
def stories(folder) -> Path:
    return make_story_folder(folder / "stories")


@pytest.fixture(scope="module")
def captions(folder) -> Path:
    return make_captions_folder(folder / "captions")


@pytest.fixture
def trace(tmp_path) -> Iterator[Path]:
    """A file that code in a checkpoint would make."""
    path = tmp_path / "trace"
    yield path
    assert not path.exists()


@pytest.fixture
def code(trace) -> str:
    return f"__import__('os').system('touch {trace}')"


@pytest.fixture
def save(tmp_path, source) -> Callable[..., Path]:
    """Saves the checkpoint with other sections of its configuration."""

    def save_changed(**sections: Any) -> Path:
        path = tmp_path / "checkpoint.pt"
        torch.save({**source, "cfg": {**source["cfg"], **sections}}, path)
        return path

    return save_changed


def with_option(model: str, **options: Any) -> Callable[[str], dict[str, Any]]:
    """Sections of a model with one option that is code."""
    (name,) = (name for name, value in options.items() if value == "CODE")

    def change(code: str) -> dict[str, Any]:
        return {"model": {**SELF_ATTENTION, "_name": model, **options, name: code}}

    return change


SECTIONS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "fconv_self_att": ("model.pretrained", with_option("fconv_self_att", pretrained="CODE")),
    "fconv": ("model.encoder_layers", with_option("fconv", encoder_layers="CODE")),
    "fconv_lm": ("model.decoder_attention", with_option("fconv_lm", decoder_attention="CODE")),
    "lstm": ("model.decoder_attention", with_option("lstm", decoder_attention="CODE")),
    "lstm_lm": (
        "model.adaptive_softmax_cutoff",
        with_option("lstm_lm", adaptive_softmax_cutoff="CODE", criterion="adaptive_loss"),
    ),
    "transformer_lm": (
        "model.adaptive_softmax_cutoff",
        with_option("transformer_lm", adaptive_softmax_cutoff="CODE"),
    ),
    "transformer_lm_input": (
        "model.adaptive_input_cutoff",
        with_option("transformer_lm", adaptive_input=True, adaptive_input_cutoff="CODE"),
    ),
    "lightconv_lm": (
        "model.character_filters",
        with_option("lightconv_lm", character_filters="CODE"),
    ),
    "xformers": (
        "model.encoder.xformers_att_config",
        lambda code: {"model": {"_name": "transformer", "encoder": {"xformers_att_config": code}}},
    ),
    "wav2vec2": ("model.conv_feature_layers", with_option("wav2vec2", conv_feature_layers="CODE")),
    "nested": (
        "model.w2v_args.model.conv_feature_layers",
        lambda code: {
            "model": {
                **SELF_ATTENTION,
                "w2v_args": {"model": Namespace(conv_feature_layers=code)},
            }
        },
    ),
    "older options": (
        "model.pretrained",
        lambda code: {"model": Namespace(**{**SELF_ATTENTION, "pretrained": code})},
    ),
    "omegaconf": (
        "model.pretrained",
        lambda code: {"model": OmegaConf.create({**SELF_ATTENTION, "pretrained": code})},
    ),
    "adam": (
        "optimizer.adam_betas",
        lambda code: {"optimizer": {"_name": "adam", "adam_betas": code}},
    ),
    "ctc": ("criterion.wer_args", lambda code: {"criterion": {"_name": "ctc", "wer_args": code}}),
    "task": (
        "task.left_pad_source",
        lambda code: {"task": {"_name": "multilingual_translation", "left_pad_source": code}},
    ),
}


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    return line


@pytest.mark.parametrize("name", SECTIONS)
def test_each_option_that_fairseq_evaluates_is_refused(name, save, code, capsys, trace):
    option, change = SECTIONS[name]
    path = save(**change(code))
    assert main(["tell", "--checkpoint", str(path), "--prompt", "You find a door ."]) == 2
    line = one_line(capsys.readouterr().err)
    assert f"{path}: cfg.{option} must be " in line
    assert "but is \"__import__('os')" in line
    assert len(line) < 500


def test_lists_that_are_too_long_are_refused(save, capsys):
    # far longer ones in tests/test_evaluated_options.py, where nothing would be built of them
    path = save(model={**SELF_ATTENTION, "encoder_layers": "[(8, 3)] * 1001"})
    assert main(["tell", "--checkpoint", str(path), "--prompt", "You find a door ."]) == 2
    assert "cfg.model.encoder_layers must be a list of layers" in one_line(capsys.readouterr().err)


COMMANDS = {
    "embed": ("multimodal_captioning", "embed --checkpoint {path} {captions} --output {out}"),
    "rank": ("multimodal_captioning", "rank --checkpoint {path} {captions}"),
    "rank of stories": ("translation", "rank --checkpoint {path} {stories}"),
    "rank of visual stories": ("visual_storytelling", "rank --checkpoint {path} {captions}"),
    "perplexity": ("translation", "perplexity --checkpoint {path} {stories}"),
    "perplexity of images": ("visual_storytelling", "perplexity --checkpoint {path} {captions}"),
    "inspect": ("translation", "inspect --checkpoint {path} --data {stories}"),
    "inspect images": ("visual_storytelling", "inspect --checkpoint {path} --data {captions}"),
    "inspect videos": ("video_summarization", "inspect --checkpoint {path} --data {captions}"),
    "convert": ("translation", "convert {path} {out} --data {stories}"),
    "convert to huggingface": ("translation", "convert {path} {out} --to huggingface"),
    "tell": ("translation", "tell --checkpoint {path} --prompt door"),
    "tell prompts": ("language_modeling", "tell --prompt-model {path} --prompts-only"),
    "tell images": (
        "visual_storytelling",
        "tell --checkpoint {path} --data {captions} --split valid",
    ),
    "tell comparing": (
        "visual_storytelling",
        "tell --compare a={path} b={path} --data {captions} --split valid --html {out}",
    ),
    "caption": ("multimodal_captioning", "caption --checkpoint {path} a.jpg"),
    "caption by structures": (
        "multimodal_captioning",
        "caption --checkpoint {path} --embedding {path} --data {captions} a.jpg",
    ),
    "summarize": ("video_summarization", "summarize --checkpoint {path} a.mp4"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_it(name, save, code, stories, captions, capsys, tmp_path, trace):
    task, command = COMMANDS[name]
    path = save(
        model={**SELF_ATTENTION, "pretrained": code}, task={"_name": task, "data": str(stories)}
    )
    out = tmp_path / "out"
    values = {"path": path, "stories": stories, "captions": captions, "out": out}
    assert main([word.format(**values) for word in command.split()]) == 2
    line = one_line(capsys.readouterr().err)
    assert f"{path}: cfg.model.pretrained must be True or False, but is " in line
    assert not out.exists()


@pytest.mark.parametrize("task", ["translation", "multimodal_captioning", "video_summarization"])
def test_the_doctor_finds_it(task, save, code, stories, captions, capsys, trace):
    path = save(model={**SELF_ATTENTION, "pretrained": code}, task={"_name": task})
    for data in ([], ["--data", str(stories)], ["--data", str(captions)]):
        assert main(["doctor", "--checkpoint", str(path), *data]) == 2
        lines = capsys.readouterr().out.splitlines()
        (problem,) = [line for line in lines if "cfg.model.pretrained" in line]
        assert problem.startswith("PROBLEM")
        assert "no problem found" not in lines


@pytest.mark.parametrize("task", ["translation", "multimodal_captioning", "visual_storytelling"])
def test_from_pretrained_refuses_it(task, save, code, trace):
    path = save(model={**SELF_ATTENTION, "pretrained": code}, task={"_name": task})
    with pytest.raises(UserError, match=r"cfg\.model\.pretrained must be True or False"):
        fairseq_mm.from_pretrained(path)
    with pytest.raises(UserError, match=r"cfg\.model\.pretrained must be True or False"):
        fairseq_mm.from_pretrained([path, path], data=path.parent)


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
def test_fairseqs_own_commands_refuse_it(
    name, save, code, stories, monkeypatch, capsys, tmp_path, trace
):
    command, options = FAIRSEQ_COMMANDS[name]
    path = save(model={**SELF_ATTENTION, "pretrained": code})
    values = {"path": path, "stories": stories, "out": tmp_path / "out", "arch": "conv_story_tiny"}
    with pytest.raises(Exception) as caught:  # noqa: PT011  fairseq wraps it
        run_fairseq(monkeypatch, command, *[x.format(**values) for x in options.split()])
    capsys.readouterr()
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    errors.report_on_exit()
    with pytest.raises(SystemExit, match="2"):
        sys.excepthook(caught.type, caught.value, caught.tb)
    line = one_line(capsys.readouterr().err)
    assert f"{path}: cfg.model.pretrained must be True or False, but is " in line


def test_code_that_a_checkpoint_names_is_not_imported(save, tmp_path, capsys, trace):
    package = tmp_path / "unsafe_plugin"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(trace)!r}, 'w')")
    path = save(common={"user_dir": str(package)}, bpe={"_target_": "os.system"})
    length = ["--min-len", "5", "--max-len-b", "5"]
    assert main(["tell", "--checkpoint", str(path), "--prompt", "door", *length]) == 0
    assert capsys.readouterr().out


def test_variables_of_the_environment_are_not_read(save, monkeypatch, capsys):
    monkeypatch.setenv("SECRET", "password")
    for value in ("${oc.env:SECRET}", "${env:SECRET}"):
        path = save(task={"_name": "translation", "data": value})
        assert main(["tell", "--checkpoint", str(path), "--prompt", "door"]) == 2
        line = one_line(capsys.readouterr().err)
        assert f"{path}: cfg.task.data must be a plain value, but is '{value}' instead" in line
        assert "password" not in line
