"""``fairseq-mm convert``: checkpoints that fairseq trains itself, with fusion and without, give the
same logits and stories after conversion, and work where a checkpoint of conv_story does."""

import os
import re
import shutil
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, indexed_dataset
from fairseq.logging.meters import AverageMeter, TimeMeter
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from numerics import assert_close
from toy_data import run_fairseq
from toy_released_vse import TheirModel, write_kiros

from fairseq_mm.cli.main import main
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import load_models

LANGUAGES = ("--source-lang", "wp_source", "--target-lang", "wp_target")
TASK = (
    *("--task", "translation", *LANGUAGES, "--cpu"),
    *("--required-batch-size-multiple", 1, "--num-workers", 0),
)
SOURCE_WORDS, TARGET_WORDS = 17, 23
ENCODER, DECODER = "[(8, 3)] * 2 + [(12,3)]", "[(12, 4)] * 2 + [(10, 3)]"
# the flags of the released recipe, at a small size
FLAGS = (
    *("--encoder-layers", ENCODER, "--decoder-layers", DECODER),
    *("--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--decoder-out-embed-dim", 14),
    *("--decoder-attention", "True", "--self-attention", "True", "--encoder-attention", "False"),
    *("--multihead-self-attention-nheads", 4, "--multihead-attention-nheads", 1),
    *("--project-input", "True", "--gated-attention", "True", "--downsample", "True"),
    *("--max-source-positions", 30, "--max-target-positions", 40),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0),
    *("--optimizer", "nag", "--lr", 0.25, "--clip-norm", 0.1, "--weight-decay", 1e-7),
    *("--lr-scheduler", "reduce_lr_on_plateau", "--max-tokens", 1500),
    *("--no-epoch-checkpoints", "--log-format", "none"),
)


def write_pair_data(folder):
    folder.mkdir()
    generator = np.random.default_rng(3)
    for language, letter, words in (
        ("wp_source", "p", SOURCE_WORDS),
        ("wp_target", "s", TARGET_WORDS),
    ):
        dictionary = Dictionary()
        for i in range(words):
            dictionary.add_symbol(f"{letter}{i}")
        dictionary.save(str(folder / f"dict.{language}.txt"))
        for split, count in (("train", 8), ("valid", 5), ("test", 5)):
            stem = str(folder / f"{split}.wp_source-wp_target.{language}")
            builder = indexed_dataset.make_builder(f"{stem}.bin", "mmap", vocab_size=words + 4)
            for _ in range(count):
                line = generator.choice(dictionary.symbols[4:], size=generator.integers(2, 10))
                builder.add_item(dictionary.encode_line(" ".join(line), add_if_not_exist=False))
            builder.finalize(f"{stem}.idx")
    return folder


def train(data, folder, arch, *options, updates=2):
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = (*TASK, "--arch", arch, "--max-update", updates, "--save-dir", folder)
        run_fairseq(monkeypatch, "train", data, *arguments, *FLAGS, *options)
    return folder / "checkpoint_last.pt"


def convert(checkpoint, output, data, *options):
    return main(["convert", str(checkpoint), str(output), "--data", str(data), *map(str, options)])


class Trained:
    """Two models that fairseq trained, and what became of them."""

    def __init__(self, folder):
        self.data = write_pair_data(folder / "data")
        self.pretrained = train(self.data, folder / "pretrained", "fconv_self_att_wp")
        self.fusion = train(
            *(self.data, folder / "fusion", "fconv_self_att_wp", "--pretrained", "True"),
            *("--pretrained-checkpoint", self.pretrained, "--decoder-layers", "[(12, 4), (18, 3)]"),
        )
        self.converted = {}
        for name in ("pretrained", "fusion"):
            self.converted[name] = folder / f"{name}.pt"
            assert convert(self.original(name), self.converted[name], self.data) == 0

    def original(self, name):
        return getattr(self, name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("stories"))


def translation_task(*dictionaries):
    return TASK_REGISTRY["translation"](Namespace(eval_bleu=False), *dictionaries)


def assert_equal_logits(original, converted, *, length=11, **overrides):
    """Of fairseq's model, loaded by fairseq, and of ours, loaded by itself."""
    loaded = load_models(converted, device="cpu")
    task = translation_task(loaded.source_dictionary, loaded.dictionary)
    (theirs,), _ = checkpoint_utils.load_model_ensemble(
        [str(original)], arg_overrides=overrides, task=task
    )
    torch.manual_seed(3)
    source = torch.randint(4, len(loaded.source_dictionary), (3, 7))
    source[0, :3] = source[2, :1] = 1  # padding, which the released model attends to
    story = torch.randint(4, len(loaded.dictionary), (3, length))
    story[:, 0] = 2
    with torch.no_grad():
        expected = theirs.eval()(source, source.ne(1).sum(1), story)[0]
        found = loaded.models[0](source, None, story)[0]
    assert_close(found, expected)
    return found


@pytest.mark.parametrize("name", ["pretrained", "fusion"])
def test_a_checkpoint_that_fairseq_trained_gives_equal_logits(trained, name):
    logits = assert_equal_logits(trained.original(name), trained.converted[name])
    assert logits.std() > 0.1  # trained, or at least not all zero


@pytest.mark.parametrize(
    ("name", "option"), [("pretrained", "--finetune-from-model"), ("fusion", "--restore-file")]
)
def test_training_goes_on_from_a_converted_checkpoint(trained, name, option, tmp_path):
    options = [option, trained.converted[name], "--compat", "released", "--lr", 1e-9]
    if name == "fusion":
        options += ["--pretrained", "True", "--decoder-layers", "[(12, 4), (18, 3)]"]
        options += ["--pretrained-checkpoint", trained.converted["pretrained"]]
    # a fine-tuning counts its updates from 0, a restored training after the 2 of its checkpoint
    updates = 1 if name == "pretrained" else 3
    last = train(trained.data, tmp_path, "conv_story_wp", *options, updates=updates)
    found, expected = (load_models(x).models[0] for x in (last, trained.converted[name]))
    for ours, theirs in zip(found.parameters(), expected.parameters()):
        assert_close(ours, theirs)


def test_an_unconverted_checkpoint_is_refused_with_the_command_that_helps(trained, tmp_path):
    options = ("--pretrained", "True", "--pretrained-checkpoint", trained.pretrained)
    with pytest.raises(UserError, match=r"is of fconv_self_att_wp; convert it first: fairseq-mm"):
        train(trained.data, tmp_path, "conv_story_wp", *options)
    with pytest.raises(Exception, match="ensure that the architectures match") as failed:
        train(trained.data, tmp_path, "conv_story_wp", "--restore-file", trained.pretrained)
    assert "is of fairseq's fconv_self_att; convert it first" in str(failed.value.__context__)


def test_the_released_computation_is_the_default(trained, tmp_path):
    model = load_models(trained.converted["fusion"]).models[0]
    assert not model.decoder.masks_padding
    assert not model.decoder.frozen_masks_padding
    assert convert(trained.fusion, tmp_path / "new.pt", trained.data, "--compat", "none") == 0
    model = load_models(tmp_path / "new.pt").models[0]
    assert model.decoder.masks_padding
    assert model.decoder.frozen_masks_padding


def test_frozen_options_come_from_the_pretrained_checkpoint(trained, tmp_path, capsys):
    other = changed(trained.pretrained, tmp_path / "other.pt", dropout=0.25)
    option = ("--pretrained-checkpoint", other)
    assert convert(trained.fusion, tmp_path / "new.pt", trained.data, *option) == 0
    frozen = capsys.readouterr().out.split("frozen part: ")[1]
    assert frozen.startswith("--dropout 0.25 ")


def changed(source, target, *, weights=None, gone=(), top=None, legacy=False, **options):
    """Saves one of fairseq's checkpoints with other content."""
    state = torch.load(source)
    for name, value in options.items():
        setattr(state["cfg"]["model"], name, value)
    state["model"].update(weights or {})
    for name in gone:
        del state["model"][name]
    state.update(top or {})
    torch.save(state, target, _use_new_zipfile_serialization=not legacy)
    return target


def test_a_checkpoint_of_2018_is_read(trained, tmp_path):
    """Options in a namespace, meters as objects, PyTorch's old file format."""
    state = torch.load(trained.pretrained)
    meters = {"train_loss": AverageMeter(), "wps": TimeMeter()}
    meters["train_loss"].update(np.float64(3.5), 2)
    args = state["cfg"]["model"]
    args.max_positions = args.max_target_positions
    for name in ("_name", "max_source_positions", "max_target_positions"):
        delattr(args, name)
    old = {
        "args": args,
        "model": state["model"],
        "optimizer_history": [{"best_loss": 5.0, "optimizer": {}, "num_updates": 7}],
        "extra_state": {"train_meters": meters, "epoch": 3},
        "last_optimizer_state": state["last_optimizer_state"],
    }
    torch.save(old, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert convert(tmp_path / "old.pt", tmp_path / "new.pt", trained.data) == 0
    assert_equal_logits(trained.pretrained, tmp_path / "new.pt")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "new.pt"))
    assert state["optimizer_history"][-1]["num_updates"] == 7


def test_a_checkpoint_that_would_run_something_is_refused(trained, tmp_path, capsys):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    path = changed(trained.pretrained, tmp_path / "bad.pt", top={"extra_state": Malicious()})
    assert convert(path, tmp_path / "new.pt", trained.data) == 2
    message = capsys.readouterr().err
    assert f"{path}: cannot be loaded safely" in message
    assert f"it asks for {os.mkdir.__module__}.mkdir" in message
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "new.pt").exists()


def test_half_precision_is_converted_to_single(trained, tmp_path):
    weights = {name: x.half() for name, x in torch.load(trained.pretrained)["model"].items()}
    path = changed(trained.pretrained, tmp_path / "half.pt", weights=weights)
    assert convert(path, tmp_path / "new.pt", trained.data) == 0
    state = torch.load(tmp_path / "new.pt")["model"]
    assert {x.dtype for name, x in state.items() if "_extra_state" not in name} == {torch.float32}
    assert_equal_logits(path, tmp_path / "new.pt")


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("conv_story", {"project_input": "False"}),
        ("conv_story", {"project_input": "True"}),
        ("conv_story_self_att", {"self_attention": "True", "project_input": "True"}),
        (
            "conv_story_multihead",
            {
                **{"self_attention": "[False] + [True] * 2", "project_input": "False"},
                "multihead_self_attention_nheads": 4,
            },
        ),
        ("conv_story_wp", {"self_attention": "True", "project_input": "True", "heads": 2}),
    ],
)
def test_layers_are_those_of_the_options_and_never_of_the_name(trained, tmp_path, arch, options):
    """``fconv_self_att`` alone names layers of 512 channels without self-attention."""
    task = translation_task(
        *(Dictionary.load(str(trained.data / f"dict.wp_{x}.txt")) for x in ("source", "target"))
    )
    args = Namespace(arch="fconv_self_att", max_source_positions=20, max_target_positions=25)
    args.encoder_layers, args.decoder_layers = ENCODER, DECODER
    args.encoder_embed_dim = args.decoder_embed_dim = 16
    args.multihead_self_attention_nheads = options.pop("heads", 1)
    vars(args).update(options)
    ARCH_CONFIG_REGISTRY["fconv_self_att"](args)
    torch.manual_seed(6)
    model = ARCH_MODEL_REGISTRY["fconv_self_att"].build_model(args, task)
    state = {"args": args, "model": model.state_dict(), "extra_state": {}}
    state["optimizer_history"] = [{"lr_scheduler_state": {}}]
    torch.save(state, tmp_path / "theirs.pt")
    assert convert(tmp_path / "theirs.pt", tmp_path / "new.pt", trained.data) == 0
    assert_equal_logits(tmp_path / "theirs.pt", tmp_path / "new.pt")
    assert load_models(tmp_path / "new.pt").architectures == [arch]


def test_shapes_and_tensors_that_do_not_fit_are_named(trained, tmp_path, capsys):
    extra = {"decoder.fc9.bias": torch.zeros(2)}
    for options, message in (
        ({"multihead_self_attention_nheads": 2}, r": \S+ has no place and \d+ more\."),
        ({}, r"cannot be converted: decoder\.fc9\.bias has no place\."),
    ):
        path = changed(trained.pretrained, tmp_path / "bad.pt", weights=extra, **options)
        assert convert(path, tmp_path / "new.pt", trained.data) == 2
        assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "new.pt").exists()


def test_a_layer_list_of_no_pairs_is_replaced_and_said(trained, tmp_path, capsys):
    path = changed(trained.pretrained, tmp_path / "odd.pt", encoder_layers="[(8, 3, 1)] * 3")
    assert convert(path, tmp_path / "new.pt", trained.data) == 0
    notes = [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: ")]
    assert notes[0].startswith("note: --encoder-layers must be a list of (channels, width)")
    assert notes[0].endswith("The weights say [(8, 3)] * 2 + [(12, 3)].")
    assert_equal_logits(trained.pretrained, tmp_path / "new.pt")


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        ("encoder.encoder.attention.0.ln.bias", {}, r"attention\.0\.ln\.bias has no place"),
        (
            "decoder.pretrained_decoder.pretrained_decoder.fc1.bias",
            {},
            r"cannot be converted .KeyError",
        ),
        (None, {"pretrained": "True"}, r"is no fusion model: it has no decoder"),
    ],
)
def test_what_conv_story_has_not_is_refused(trained, tmp_path, capsys, weight, options, message):
    weights = {weight: torch.zeros(1)} if weight else {}
    path = changed(trained.pretrained, tmp_path / "bad.pt", weights=weights, **options)
    assert convert(path, tmp_path / "new.pt", trained.data) == 2
    assert re.search(rf"bad\.pt: .*{message}", capsys.readouterr().err)


def test_other_checkpoints_are_refused(trained, tmp_path, capsys):
    def message_for(content):
        torch.save(content, tmp_path / "other.pt")
        assert convert(tmp_path / "other.pt", tmp_path / "new.pt", trained.data) == 2
        return capsys.readouterr().err

    assert "(TypeError: it holds a list instead of a dictionary)" in message_for([1])
    assert "must be a checkpoint of fairseq's fconv_self_att" in message_for({})
    other = {"args": Namespace(arch="lstm"), "model": {"decoder.fc_out.bias": torch.zeros(3)}}
    assert "fconv_self_att, but is of --arch lstm (KeyError: 'encoder." in message_for(other)
    assert convert(trained.converted["fusion"], tmp_path / "new.pt", trained.data) == 2
    assert "must be a checkpoint of fairseq's fconv_self_att" in capsys.readouterr().err
    (tmp_path / "text.pt").write_text("no checkpoint")
    assert convert(tmp_path / "text.pt", tmp_path / "new.pt", trained.data) == 2
    assert "text.pt: cannot be loaded safely" in capsys.readouterr().err
    assert convert(tmp_path / "none.pt", tmp_path / "new.pt", trained.data) == 2
    assert "none.pt: cannot be read (No such file" in capsys.readouterr().err


def test_what_a_file_is_is_found_by_its_content(trained, tmp_path, capsys):
    """Options of one kind are refused with the others, whatever the file's name."""

    def message_for(source, *options):
        assert main(["convert", str(source), str(tmp_path / "new"), *options]) == 2
        assert not (tmp_path / "new").exists()
        return capsys.readouterr().err

    kiros = write_kiros(tmp_path / "model.npz", ["a", "b", "c"]).rename(tmp_path / "model.pt")
    error = message_for(kiros, "--vocabulary", "v.pkl")
    assert "--vocabulary is for VSE++" in error
    assert f", but {kiros} is taken for Kiros's VSE." in error
    theirs = TheirModel(["a"]).write(tmp_path / "checkpoint_best.pt")
    error = message_for(theirs, "--data", str(trained.data))
    assert f", but {theirs} is taken for VSE++." in error
    error = message_for(trained.pretrained, "--vocabulary", "v.pkl")
    assert f"{trained.pretrained} is taken for fairseq's fconv_self_att." in error


def test_the_pretrained_checkpoint_must_be_the_frozen_model(trained, tmp_path, capsys):
    option = ("--pretrained-checkpoint", trained.fusion)
    assert convert(trained.fusion, tmp_path / "new.pt", trained.data, *option) == 2
    message = capsys.readouterr().err
    assert f"{trained.fusion}: is not the model that {trained.fusion} was trained on" in message
    assert "is [(12, 4)] + [(18, 3)], that of the frozen part [(12, 4)] * 2 + [(10" in message
    assert convert(trained.pretrained, tmp_path / "new.pt", trained.data, *option) == 2
    assert "is no fusion model: it has no decoder." in capsys.readouterr().err


def test_dictionaries_must_be_given_and_fit(trained, tmp_path, capsys):
    output = str(tmp_path / "new.pt")
    assert main(["convert", str(trained.pretrained), output]) == 2
    assert "--data DIR is needed" in capsys.readouterr().err
    assert convert(trained.pretrained, output, tmp_path) == 2
    assert "dict.wp_source.txt" in capsys.readouterr().err
    for side, other in (("source", "target"), ("target", "source")):
        shutil.copy(trained.data / f"dict.wp_{side}.txt", tmp_path / f"dict.wp_{other}.txt")
    assert convert(trained.pretrained, output, tmp_path) == 2
    assert "words (special symbols included), but" in capsys.readouterr().err
    (tmp_path / "dict.wp_source.txt").write_text("a word without a count\n")
    assert convert(trained.pretrained, output, tmp_path) == 2
    assert "dict.wp_source.txt: cannot be read as a dictionary" in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_refused_before_work(trained, tmp_path, capsys):
    def message_for(output, *options):
        assert convert(trained.pretrained, output, trained.data, *options) == 2
        return capsys.readouterr().err

    for path in (tmp_path, tmp_path / "none" / "new.pt"):
        assert "must be a new file in an existing folder." in message_for(path)
    assert "would overwrite a file that is read." in message_for(trained.pretrained, "--overwrite")
    (tmp_path / "new.pt").write_text("mine")
    assert "; --overwrite replaces it." in message_for(tmp_path / "new.pt")
    assert (tmp_path / "new.pt").read_text() == "mine"
    assert convert(trained.pretrained, tmp_path / "new.pt", trained.data, "--overwrite") == 0
    assert os.listdir(tmp_path) == ["new.pt"]
