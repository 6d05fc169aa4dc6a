"""Text survives the way to tokens and back, as fairseq's own encoders have it, in any storage."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import toy_subwords

from fairseq_mm.data.subwords import Subwords, by_word, join_pieces
from fairseq_mm.errors import UserError

TEXT = "Learn the  roses,\nisn't it? ... é 你好"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subwords")
    toy_subwords.write_gpt2(folder)
    toy_subwords.write_sentencepiece(folder / "sentencepiece.model")
    return folder


@pytest.fixture(params=["none", "gpt2", "sentencepiece"])
def subwords(request, folder):
    return of_kind(request.param, folder)


def of_kind(kind, folder):
    names = {"gpt2": ["encoder.json", "vocab.bpe"], "sentencepiece": ["sentencepiece.model"]}
    return Subwords.from_paths(kind, {name: folder / name for name in names.get(kind, [])})


def test_decoding_gives_the_text_on_one_line(subwords):
    tokens = subwords.encode(TEXT)
    assert all(token == token.strip() and len(token.split()) == 1 for token in tokens)
    assert subwords.decode(" ".join(tokens)) == "Learn the roses, isn't it? ... é 你好"


def test_gpt2_tokens_are_those_of_fairseq(folder):
    from fairseq.data.encoders.gpt2_bpe import GPT2BPE

    theirs = GPT2BPE(
        SimpleNamespace(
            gpt2_encoder_json=str(folder / "encoder.json"), gpt2_vocab_bpe=str(folder / "vocab.bpe")
        )
    )
    ours = of_kind("gpt2", folder)
    text = " ".join(TEXT.split())
    assert " ".join(ours.encode(text)) == theirs.encode(text)
    with_unknown = f"{theirs.encode('the rose')} <unk> {theirs.encode(' it')}"
    assert ours.decode(with_unknown) == theirs.decode(with_unknown) == "the rose<unk> it"


def test_sentencepiece_tokens_are_those_of_fairseq(folder):
    from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE

    theirs = SentencepieceBPE(
        SimpleNamespace(
            sentencepiece_model=str(folder / "sentencepiece.model"),
            sentencepiece_enable_sampling=False,
            sentencepiece_alpha=None,
        )
    )
    ours = of_kind("sentencepiece", folder)
    text = " ".join(TEXT.split())
    assert " ".join(ours.encode(text)) == theirs.encode(text)
    with_unknown = f"{theirs.encode('the roses')} <unk> {theirs.encode('it')}"
    assert ours.decode(with_unknown) == theirs.decode(with_unknown) == "the roses<unk> it"


def test_control_symbols_are_silent_and_other_symbols_stay(subwords):
    tokens = " ".join(subwords.encode("the roses"))
    assert subwords.decode(f"<s> {tokens} </s> <pad> <pad>") == "the roses"
    assert subwords.decode("<mask>") == "<mask>"
    assert subwords.decode("") == ""


def test_characters_that_are_spelled_in_bytes_are_put_together(folder):
    assert of_kind("sentencepiece", folder).decode("▁caf <0xC3> <0xA9> ▁x") == "café x"


def test_a_state_is_json_and_complete(subwords):
    again = Subwords.from_state(json.loads(json.dumps(subwords.to_state())))
    assert again.kind == subwords.kind
    assert again.encode(TEXT) == subwords.encode(TEXT)
    assert again.fingerprint == subwords.fingerprint


def test_a_folder_has_all_that_is_needed(subwords, tmp_path):
    subwords.save(tmp_path / "new")
    again = Subwords.load(tmp_path / "new")
    assert again.encode(TEXT) == subwords.encode(TEXT)
    assert again.fingerprint == subwords.fingerprint
    assert not list((tmp_path / "new").glob("*.partial"))


def test_indexed_oov_tokens_are_kept(tmp_path):
    Subwords(indexed_oov=7).save(tmp_path)
    assert json.loads((tmp_path / "subwords.json").read_text()) == {
        "kind": "none",
        "numbered_unknowns": 7,
    }
    assert Subwords.load(tmp_path).indexed_oov == 7
    assert Subwords.from_state(Subwords(indexed_oov=7).to_state()).indexed_oov == 7


def test_fingerprints_tell_subwords_apart_but_not_layouts(folder, tmp_path):
    kinds = [of_kind(kind, folder) for kind in ("none", "gpt2", "sentencepiece")]
    prints = [subwords.fingerprint for subwords in [*kinds, Subwords(indexed_oov=2)]]
    assert len(set(prints)) == 4
    assert all(len(print_) == 12 for print_ in prints)
    encoder, merges = toy_subwords.write_gpt2(tmp_path)
    encoder.write_text(json.dumps(json.loads(encoder.read_text()), indent=2))
    merges.write_text(merges.read_text().rstrip("\n"))
    assert of_kind("gpt2", tmp_path).fingerprint == prints[1]
    numbers = json.loads(encoder.read_text())
    encoder.write_text(json.dumps({**numbers, "a": numbers["b"], "b": numbers["a"]}))
    assert of_kind("gpt2", tmp_path).fingerprint != prints[1]
    encoder.write_text(json.dumps(numbers))
    merges.write_text(merges.read_text().rpartition("\n")[0])
    assert of_kind("gpt2", tmp_path).fingerprint != prints[1]


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("gpt2", "encoder.json", "{", "its gpt2 subwords cannot be read: JSONDecodeError"),
        ("gpt2", "encoder.json", "{}", r"encoder\.json lacks the piece '!', which vocab\.bpe"),
        ("gpt2", "vocab.bpe", "#version\nt h e\n", "its gpt2 subwords cannot be read"),
        ("gpt2", "vocab.bpe", "#version\nq x\n", r"encoder\.json lacks the piece 'qx'"),
        ("gpt2", "vocab.bpe", None, r"vocab\.bpe: cannot be read"),
        ("sentencepiece", "sentencepiece.model", "", "its sentencepiece subwords cannot be read"),
        ("sentencepiece", "sentencepiece.model", "no model", "subwords cannot be read: Runtime"),
        ("none", "subwords.json", "{", r"subwords\.json: not JSON"),
        ("none", "subwords.json", "[]", r"subwords\.json: must be a JSON object"),
        ("none", "subwords.json", '{"kind": "bert"}', "its bert subwords cannot be read: KeyError"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, kind, name, content, message):
    of_kind(kind, folder).save(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        Subwords.load(tmp_path)


def test_pieces_are_put_together_to_words(folder):
    for subwords in (of_kind("gpt2", folder), of_kind("sentencepiece", folder)):
        for text in (*toy_subwords.SENTENCES, "the rose's  naïve thé", "x"):
            tokens = subwords.encode(text)
            words, owners = join_pieces(["<s>", *tokens, "</s>"], subwords)
            assert words == ["<s>", *subwords.decode(" ".join(tokens)).split(), "</s>"]
            assert len(owners) == len(tokens) + 2
            for w, word in enumerate(words[1:-1], start=1):
                pieces = [token for token, owner in zip(tokens, owners[1:-1]) if owner == w]
                assert subwords.decode(" ".join(pieces)).strip() == word
    words, owners = join_pieces(["the", "<unk>", "</s>"], Subwords())
    assert (words, owners.tolist()) == (["the", "<unk>", "</s>"], [0, 1, 2])


def test_a_piece_that_is_a_space_alone_does_not_say_the_word_before_again(folder):
    """As before a word whose first sign no piece has."""
    pieces = ["\u2581", "<unk>", "\u2581"]
    words, _ = join_pieces([*pieces, "</s>"], of_kind("sentencepiece", folder))
    assert words == ["", "<unk>", "", "</s>"]
    tokens = of_kind("sentencepiece", folder).encode("the")
    words, _ = join_pieces([*tokens, *pieces], of_kind("sentencepiece", folder))
    assert words == ["the", "", "<unk>", ""]


def test_words_have_the_means_or_the_sums_of_their_pieces():
    weights = np.arange(2 * 4 * 3, dtype=float).reshape(2, 4, 3)
    owners = np.array([0, 1, 1, 2])
    for sums in (False, True):
        found = by_word(weights, owners, sums=sums)
        for i in range(2):
            for m in range(3):
                first, second, third, fourth = weights[i, :, m]
                middle = (second + third) / (1 if sums else 2)
                assert found[i, :, m].tolist() == [first, middle, fourth]
