"""Hugging Face's BART in fairseq: equal logits, equal beams, equal tokens."""

import json
import os
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe import GPT2BPE
from fairseq.models.bart import BARTModel
from fairseq.sequence_generator import SequenceGenerator
from toy_bart import FILLERS, SENTENCES, import_transformers, write_huggingface_bart

from fairseq_mm.cli.pretrained_options import pretrained_dropouts
from fairseq_mm.conversion.bart import convert_bart
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.errors import UserError

PAD, EOS, BOS = 1, 2, 0


class Converted:
    """Hugging Face's model, its folder, and what became of it."""

    def __init__(self, folder, **options):
        self.source = folder / "huggingface"
        self.model = write_huggingface_bart(self.source, **options)
        self.output = folder / "fairseq"
        self.result = convert_bart(str(self.source), str(self.output))

    def load(self):
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(self.output / "model.pt")], arg_overrides={"data": str(self.output)}
        )
        return model.eval(), task


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return Converted(tmp_path_factory.mktemp("bart"), scale=1.5, ending=3.0, seed=2)


def test_dropouts_are_those_of_the_configuration_or_its_defaults(tmp_path):
    rates = {"dropout": 0.15, "attention_dropout": 0.25, "activation_dropout": 0.35}
    converted = Converted(tmp_path, **rates)
    assert {**converted.result.options, **rates} == converted.result.options
    assert pretrained_dropouts(str(converted.output / "model.pt")) == rates
    config = json.loads((converted.source / "config.json").read_text())
    for name in rates:
        del config[name]
    (converted.source / "config.json").write_text(json.dumps(config))
    convert_bart(str(converted.source), str(tmp_path / "again"))
    assert pretrained_dropouts(str(tmp_path / "again/model.pt")) == {
        name: getattr(import_transformers().BartConfig(), name) for name in rates
    }


def batch(words):
    torch.manual_seed(3)
    source = torch.randint(4, words - 1, (3, 9))
    source[:, 0], source[:, -1] = BOS, EOS
    source[1, 5], source[1, 6:] = EOS, PAD
    prev_output_tokens = torch.randint(4, words - 1, (3, 6))
    prev_output_tokens[:, 0] = EOS
    return source, prev_output_tokens


def assert_equal_logits(theirs, ours, words):
    source, target = batch(words)
    with torch.no_grad():
        expected = theirs(
            input_ids=source, attention_mask=source.ne(PAD), decoder_input_ids=target
        ).logits
        found = ours(source, source.ne(PAD).sum(1), target)[0]
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_logits_are_equal(converted):
    model, task = converted.load()
    assert isinstance(model, BARTModel)
    assert len(task.source_dictionary) == converted.model.config.vocab_size
    assert_equal_logits(converted.model, model, len(task.source_dictionary))


@pytest.mark.parametrize(
    "config",
    [
        {"scale_embedding": True, "activation_function": "relu"},
        {"activation_function": "gelu_new", "dtype": "bfloat16"},
    ],
)
def test_logits_are_equal_with_other_options(config, tmp_path):
    import_transformers()
    dtype = getattr(torch, config.pop("dtype", "float32"))
    source = tmp_path / "huggingface"
    model = write_huggingface_bart(source, scale=2.0, **config).to(dtype)
    model.save_pretrained(source)
    convert_bart(str(source), str(tmp_path / "fairseq"))
    (ours,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(tmp_path / "fairseq" / "model.pt")],
        arg_overrides={"data": str(tmp_path / "fairseq")},
    )
    assert_equal_logits(model.float(), ours.eval(), model.config.vocab_size)


def test_beams_are_identical(converted):
    model, task = converted.load()
    words = len(task.source_dictionary)
    source, _ = batch(words)
    length = 25
    expected = converted.model.generate(
        input_ids=source,
        attention_mask=source.ne(PAD),
        num_beams=4,
        num_return_sequences=4,
        min_length=2,  # the start token and a word, as fairseq has it
        max_length=length,
        length_penalty=1.3,
        early_stopping=True,
        suppress_tokens=[PAD],
        forced_bos_token_id=None,
        forced_eos_token_id=None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    generator = SequenceGenerator(
        [model], task.source_dictionary, beam_size=4, max_len_b=length, len_penalty=1.3
    )
    found = generator.generate(
        [model], {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
    )
    lengths = []
    for row in range(3):
        for beam in range(4):
            tokens = found[row][beam]["tokens"].tolist()
            lengths.append(len(tokens))
            theirs = [x for x in expected.sequences[4 * row + beam].tolist()[1:] if x != PAD]
            assert tokens == theirs
            score = expected.sequences_scores[4 * row + beam]
            torch.testing.assert_close(found[row][beam]["score"], score, atol=1e-4, rtol=0)
    assert max(lengths) < length - 1  # all ended by themselves
    assert len(set(lengths)) > 2


def test_text_becomes_the_same_words(converted):
    tokenizer = import_transformers().BartTokenizer.from_pretrained(str(converted.source))
    dictionary = Dictionary.load(str(converted.output / "dict.txt"))
    files = (str(converted.output / name) for name in ("encoder.json", "vocab.bpe"))
    bpe = GPT2BPE(Namespace(**dict(zip(("gpt2_encoder_json", "gpt2_vocab_bpe"), files))))
    subwords = Subwords.load(str(converted.output))
    for text in [*SENTENCES, "Zoë ate 17 naïve eels,\twhy?", "日本 🎣 100%"]:
        expected = tokenizer(text)["input_ids"][1:-1]
        found = dictionary.encode_line(bpe.encode(text), add_if_not_exist=False)
        assert found.tolist() == [*expected, EOS]
        assert 3 not in found.tolist()  # no unknown word
        assert bpe.decode(bpe.encode(text)) == text
        assert subwords.encode(text) == bpe.encode(" ".join(text.split())).split()


def test_the_dictionary_is_laid_out_as_fairseqs(converted):
    words = [line.split()[0] for line in (converted.output / "dict.txt").read_text().splitlines()]
    encoder = json.loads((converted.output / "encoder.json").read_text())
    assert words[-FILLERS:] == [f"madeupword{i:04}" for i in range(FILLERS)]
    assert words[-FILLERS - 1] == str(encoder["<|endoftext|>"]) == str(len(encoder) - 1)
    assert encoder["!"] == 0  # GPT-2's numbers
    assert encoder["Ā"] == 188
    assert all(word.isdigit() for word in words[:-FILLERS])
    assert sorted(os.listdir(converted.output)) == [
        *("dict.txt", "encoder.json", "model.pt", "subwords.json", "vocab.bpe")
    ]
    state = torch.load(converted.output / "model.pt", weights_only=True)
    assert len(state["model"]["encoder.embed_tokens.weight"]) == 4 + len(words) + 1  # <mask>


def test_fairseqs_own_interface_loads_it(converted):
    bart = BARTModel.from_pretrained(
        str(converted.output),
        gpt2_encoder_json=str(converted.output / "encoder.json"),
        gpt2_vocab_bpe=str(converted.output / "vocab.bpe"),
    )
    text = SENTENCES[0]
    assert bart.decode(bart.encode(text)) == text


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder to change."""
    folder = tmp_path_factory.mktemp("small") / "huggingface"
    write_huggingface_bart(folder)
    return folder


def weights_of(folder):
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    return library.load_file(folder / "model.safetensors")


def changed(source, folder, *, weights=None, remove=(), **config):
    """A copy with other configuration and weights."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    if weights or remove:
        library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
        content = {**weights_of(source), **(weights or {})}
        kept = {name: x for name, x in content.items() if name not in remove}
        library.save_file(kept, folder / "model.safetensors")
    return folder


def assert_refused(folder, match, **options):
    output = folder.parent / "new"
    with pytest.raises(UserError, match=match):
        convert_bart(str(folder), str(output), **options)
    assert not output.exists()
    assert not list(folder.parent.glob("*.partial"))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"normalize_before": True}, "`normalize_before` must be false, but is true"),
        ({"activation_function": "swish"}, '"gelu_new", but is "swish"'),
        ({"encoder_layers": 3}, "it lacks encoder.layers.2.self_attn.q_proj.weight, .* 12 more"),
        (
            {"max_position_embeddings": 40},
            r"other shapes of encoder.embed_positions.weight .\[32, 16\], must be \[42, 16\]",
        ),
    ],
)
def test_another_kind_of_model_is_refused(config, match, small, tmp_path):
    assert_refused(changed(small, tmp_path / "changed", **config), match)


def test_weights_that_fairseqs_bart_has_no_place_for_are_refused(small, tmp_path):
    words = len(weights_of(small)["model.shared.weight"])
    for weights, remove, match in (
        ({"final_logits_bias": torch.ones(1, words)}, [], "has no place for final_logits_bias"),
        ({"lm_head.weight": torch.zeros(words, 16)}, [], "must have one table of embeddings"),
        ({}, ["model.shared.weight"], "must have one table of embeddings"),
    ):
        folder = changed(small, tmp_path / "changed", weights=weights, remove=remove)
        assert_refused(folder, match)
        shutil.rmtree(folder)


def test_a_head_that_classifies_is_left_out_and_said(small, tmp_path):
    head = {"classification_head.dense.weight": torch.zeros(3, 3)}
    folder = changed(small, tmp_path / "changed", weights=head)
    result = convert_bart(str(folder), str(tmp_path / "new"))
    assert result.notes == ["The head that classifies texts is left out."]


def assert_same_files(first, second):
    for name in os.listdir(first):
        if name != "model.pt":
            assert (second / name).read_bytes() == (first / name).read_bytes(), name
    found, expected = (
        torch.load(folder / "model.pt", weights_only=True)["model"] for folder in (second, first)
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], x) for name, x in expected.items())


def test_every_layout_of_the_files_gives_the_same(small, tmp_path):
    """tokenizer.json alone, in old and new form; weights in a pickle, and in several files."""
    convert_bart(str(small), str(tmp_path / "expected"))
    tokenizer = import_transformers().BartTokenizer.from_pretrained(str(small))
    folder = changed(small, tmp_path / "tokenizer")
    for name in ("vocab.json", "merges.txt"):
        os.remove(folder / name)
    tokenizer.save_pretrained(str(folder))
    weights = weights_of(small)
    os.remove(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    convert_bart(str(folder), str(tmp_path / "first"))
    assert_same_files(tmp_path / "expected", tmp_path / "first")

    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = content["model"]["merges"]
    content["model"]["merges"] = [x if isinstance(x, str) else " ".join(x) for x in merges]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    os.remove(folder / "pytorch_model.bin")
    names = sorted(weights)
    places = {}
    for number, part in enumerate((names[:20], names[20:])):
        file = f"pytorch_model-{number}.bin"
        torch.save({name: weights[name] for name in part}, folder / file)
        places.update(dict.fromkeys(part, file))
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    convert_bart(str(folder), str(tmp_path / "second"))
    assert_same_files(tmp_path / "expected", tmp_path / "second")

    for content in ({"weight_map": {"extra": "../secret.bin"}}, []):
        index.write_text(json.dumps(content))
        assert_refused(folder, r"index.json: cannot be read .*(must name files of its|TypeError)")
    os.remove(index)
    assert_refused(folder, r"pytorch_model.bin: .*No such file")


def test_damaged_files_are_refused(small, tmp_path):
    folder = changed(small, tmp_path / "changed")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:1000])
    assert_refused(folder, "model.safetensors: is no state dict")
    (folder / "model.safetensors").write_bytes(weights)
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))

    def write(content):
        (folder / "vocab.json").write_text(json.dumps(content), encoding="utf-8")

    for change in ({"<pad>": 2, "</s>": 1}, {"twice": 9}, {"more": len(pieces)}):
        write({**pieces, **change})
        assert_refused(folder, "tokenizer must be a BPE as BART's, which gives each piece a number")
    write(pieces)
    os.remove(folder / "merges.txt")
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    assert_refused(folder, "tokenizer must be a BPE .*tokenizer.json is Unigram")


def test_words_that_were_added_have_rows_of_their_own(small, tmp_path):
    """After ``<mask>``, which then is in the dictionary; what is no text gets a filler's name."""
    rows = weights_of(small)["model.shared.weight"]
    more = torch.cat([rows, torch.randn(3, 16)])
    bias = torch.zeros(1, len(more))
    weights = {"model.shared.weight": more, "final_logits_bias": bias}
    folder = changed(small, tmp_path / "changed", weights=weights, vocab_size=len(more))
    added = {"<sport>": len(rows), "two words": len(rows) + 1}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    result = convert_bart(str(folder), str(tmp_path / "new"))
    words = [line.split()[0] for line in (tmp_path / "new" / "dict.txt").read_text().splitlines()]
    encoder = json.loads((tmp_path / "new" / "encoder.json").read_text())
    assert words[-4:] == ["<mask>", str(encoder["<sport>"]), "madeupword0002", "madeupword0003"]
    assert len(words) == len(more) - 4 == result.words - 4
    assert len(Dictionary.load(str(tmp_path / "new" / "dict.txt"))) == len(more)


def test_fairseqs_published_layout_needs_no_conversion(converted, tmp_path):
    """Old options in ``args``, old versions' buffers: loads as it is."""
    state = torch.load(converted.output / "model.pt", weights_only=True)
    options = vars(state["cfg"]["model"])
    weights = dict(state["model"])
    for side in ("encoder", "decoder"):
        weights[f"{side}.version"] = torch.tensor([3.0])
    published = Namespace(**{**options, "arch": "bart_base", "task": "denoising"})
    folder = tmp_path / "bart.base"
    folder.mkdir()
    shutil.copy(converted.output / "dict.txt", folder)
    old = {**state, "args": published, "cfg": None, "model": weights}
    torch.save(old, folder / "model.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / "model.pt")], arg_overrides={"data": str(folder)}
    )
    assert_equal_logits(converted.model, model.eval(), len(task.source_dictionary))
