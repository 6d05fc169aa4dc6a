"""fairseq's BART in Hugging Face's package, and back again."""

import json
import os
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from toy_bart import SENTENCES, import_transformers, write_huggingface_bart

from fairseq_mm.conversion.bart import convert_bart
from fairseq_mm.conversion.bart_back import convert_bart_to_huggingface
from fairseq_mm.errors import UserError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Hugging Face's, fairseq's of it, and Hugging Face's of that."""
    folder = tmp_path_factory.mktemp("bart_back")
    model = write_huggingface_bart(folder / "first", scale=2.0, activation_function="relu")
    convert_bart(str(folder / "first"), str(folder / "fairseq"))
    result = convert_bart_to_huggingface(str(folder / "fairseq"), str(folder / "second"))
    return Namespace(root=folder, model=model, fairseq=folder / "fairseq", result=result)


def copy_of(folders, target):
    shutil.copytree(folders.fairseq, target)
    return target


def change(folder, **changes):
    """The checkpoint with other weights and options."""
    state = torch.load(folder / "model.pt", weights_only=True)
    for name, x in changes.items():
        state[name].update(x) if name != "args" else state.update(args=x, cfg=None)
    torch.save(state, folder / "model.pt")
    return state


def load_second(folder):
    return import_transformers().BartForConditionalGeneration.from_pretrained(str(folder)).eval()


def test_there_and_back_gives_the_same_weights(folders):
    again = load_second(folders.root / "second")
    expected, found = folders.model.state_dict(), again.state_dict()
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        assert torch.equal(found[name], x), name
    for name, value in folders.model.config.to_dict().items():
        if name not in ("dtype", "_name_or_path", "transformers_version"):
            assert getattr(again.config, name) == value, name
    assert folders.result.parameters == folders.model.num_parameters()


def test_there_and_back_gives_the_same_words(folders):
    transformers = import_transformers()
    first, second = (
        transformers.AutoTokenizer.from_pretrained(str(folders.root / name), **options)
        for name, options in (("first", {"tokenizer_type": "bart"}), ("second", {}))
    )
    assert second.get_vocab() == first.get_vocab()
    for text in (*SENTENCES, "naïve <mask> eels"):
        assert second(text)["input_ids"] == first(text)["input_ids"]
        assert second.decode(second(text)["input_ids"], skip_special_tokens=True) == (
            first.decode(first(text)["input_ids"], skip_special_tokens=True)
        )


def test_a_checkpoint_of_stock_fairseqs_layout_converts(folders, tmp_path):
    """Old versions' options in ``args``, the encoder's weights twice."""
    folder = copy_of(folders, tmp_path / "stock")
    state = torch.load(folder / "model.pt", weights_only=True)
    options = vars(state["cfg"]["model"])
    weights = {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}
    for layer in range(2):
        stem = f"encoder.layers.{layer}"
        weights[f"{stem}.in_proj_weight"] = torch.zeros(48, 16)
        weights[f"{stem}.fc1_bias"] = torch.zeros(24)
    weights["classification_heads.mnli.dense.weight"] = torch.zeros(16, 16)
    change(folder, model=weights, args=Namespace(**{**options, "arch": "bart_base"}))
    result = convert_bart_to_huggingface(str(folder), str(tmp_path / "new"))
    again = load_second(tmp_path / "new")
    for name, x in folders.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], x)
    assert result.notes == ["Heads that classify texts are left out."]


def test_a_checkpoint_without_the_mask_converts(folders, tmp_path):
    """As training on a task that has no such word leaves it."""
    folder = copy_of(folders, tmp_path / "trained")
    state = torch.load(folder / "model.pt", weights_only=True)
    names = [
        name for name, x in state["model"].items() if "embed_tokens" in name or "output" in name
    ]
    change(folder, model={name: state["model"][name][:-1].clone() for name in names})
    os.rename(folder / "dict.txt", folder / "dict.desc.txt")
    result = convert_bart_to_huggingface(
        str(folder / "model.pt"), str(tmp_path / "new"), data=str(folder)
    )
    assert result.notes == ["It has no <mask>: the checkpoint's task had none."]
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(str(tmp_path / "new"))
    model = load_second(tmp_path / "new")
    assert len(tokenizer) == model.config.vocab_size == folders.model.config.vocab_size - 1
    ids = tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]
    expected = folders.model(input_ids=ids, decoder_input_ids=ids).logits[..., :-1]
    torch.testing.assert_close(model(input_ids=ids, decoder_input_ids=ids).logits, expected)


def test_what_fairseq_loads_computes_the_same(folders):
    (ours,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(folders.fairseq / "model.pt")], arg_overrides={"data": str(folders.fairseq)}
    )
    tokens = torch.tensor([[0, 17, 9, 2], [0, 8, 2, 1]])
    target = torch.tensor([[2, 0, 17], [2, 0, 8]])
    with torch.no_grad():
        expected = ours.eval()(tokens, tokens.ne(1).sum(1), target)[0]
        found = load_second(folders.root / "second")(
            input_ids=tokens, attention_mask=tokens.ne(1), decoder_input_ids=target
        ).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def refused(folder, tmp_path, match):
    with pytest.raises(UserError, match=match):
        convert_bart_to_huggingface(str(folder), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": {"encoder.fusion.weight": torch.zeros(2)}}, "has not: encoder.fusion.weight"),
        (
            {"model": {"decoder.embed_tokens.weight": torch.zeros(3, 16)}},
            "encoder.embed_tokens.weight and decoder.embed_tokens.weight differ",
        ),
        (
            {"model": {"encoder.layers.1.fc1.bias": torch.zeros(25)}},
            r"encoder.layers.1.fc1.bias is \[25\], but by the options \[24\] is expected",
        ),
        ({"args": Namespace(arch="transformer")}, "must be of fairseq's BART, but is of --arch tr"),
        ({"args": None}, "is no checkpoint of fairseq: it has no model, or no options"),
        (
            {"args": Namespace(arch="bart_base", encoder_normalize_before=True)},
            "--encoder-normalize-before is True, but Hugging Face's BART is as with False",
        ),
        (
            {"args": Namespace(arch="bart_base", activation_fn="linear")},
            "--activation-fn must be gelu or relu or tanh or gelu_accurate, but is linear",
        ),
    ],
)
def test_a_model_that_is_no_such_bart_is_refused(changes, match, folders, tmp_path):
    folder = copy_of(folders, tmp_path / "changed")
    change(folder, **changes)
    refused(folder, tmp_path, match)


def test_files_that_do_not_fit_are_refused(folders, tmp_path):
    folder = copy_of(folders, tmp_path / "changed")
    lines = (folder / "dict.txt").read_text().splitlines()
    (folder / "dict.txt").write_text("\n".join(lines[:-2]) + "\n")
    refused(folder, tmp_path, r"dict.txt: has \d+ words with the special symbols, but the embedd")
    (folder / "dict.txt").write_text("\n".join(["sausage 1", *lines[1:]]) + "\n")
    refused(folder, tmp_path, r"lacks 1 of the pieces that the BPE makes, such as")
    os.remove(folder / "dict.txt")
    refused(folder, tmp_path, r"has no dict.txt or dict.desc.txt; --data DIR names another")
    shutil.copy(folders.fairseq / "dict.txt", folder)
    encoder = json.loads((folder / "encoder.json").read_text())
    (folder / "encoder.json").write_text(json.dumps({**encoder, "!": "x"}))
    refused(folder, tmp_path, 'encoder.json: must be {"piece": number')
    os.remove(folder / "encoder.json")
    refused(folder, tmp_path, "has no encoder.json, GPT-2's, which the tokenizer is made of")
    os.remove(folder / "model.pt")
    refused(folder, tmp_path, "model.pt: no such checkpoint")
