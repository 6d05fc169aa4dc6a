"""Captions are tagged by what is installed, or by rules."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairseq_mm.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from tag_pos import RuleTagger, tag_lines

TEXTS = ["a dog jumping", "men running and diving", "she is smiling", "a boy watching tv"]


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a black dog jumps over two logs", "DET ADJ NOUN VERB ADP NUM NOUN"),
        ("dogs run and a dog jumps", "NOUN VERB CONJ DET NOUN VERB"),
        ("a mountain jump", "DET NOUN NOUN"),  # a mountain jumps, mountains jump
        ("people dive to watch it", "NOUN VERB PRT VERB PRON"),
        ("the running dog is running quickly", "DET ADJ NOUN VERB VERB ADV"),
        ("a trimmed tree was trimmed .", "DET ADJ NOUN VERB VERB ."),
        ("the building is colorful , at 10", "DET NOUN VERB ADJ . ADP NUM"),
    ],
)
def test_rules_tag_as_a_reader_would(text, tags):
    assert " ".join(RuleTagger(TEXTS).tag(text.split())) == tags


def test_rules_give_each_token_one_tag():
    lines = ["", "-", "running", "in in a", "'s & 3rd the", "a running"]
    for line, tags in zip(lines, tag_lines(lines, "rules", known=TEXTS)):
        assert len(tags.split()) == len(line.split())


def test_nltk_gives_universal_tags(monkeypatch):
    def pos_tag(tokens, tagset):
        assert tagset == "universal"
        return [(token, "NOUN" if token == "dog" else "") for token in tokens]

    monkeypatch.setitem(sys.modules, "nltk", SimpleNamespace(pos_tag=pos_tag))
    assert list(tag_lines(["a dog", ""], "nltk")) == ["X NOUN", ""]


def test_spacy_tags_tokens_as_they_are(monkeypatch):
    class Doc(list):
        def __init__(self, vocab, words):
            super().__init__(SimpleNamespace(text=word, pos_="") for word in words)

    def component(document):
        for token in document:
            token.pos_ = "SPACE 1" if token.text == "-" else "NOUN"
        return document

    pipeline = SimpleNamespace(vocab=None, pipeline=[("tagger", component)])
    tokens = SimpleNamespace(Doc=Doc)
    load = {"own_model": pipeline}

    def load_model(name, exclude):
        if name not in load:
            raise OSError(f"[E050] Can't find model '{name}'.\nmore")
        return pipeline

    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load_model, tokens=tokens))
    assert list(tag_lines(["t-shirt -"], "spacy", model="own_model")) == ["NOUN SPACE_1"]
    with pytest.raises(UserError, match=r"its model en_core_web_sm cannot be loaded \(\[E050\]"):
        list(tag_lines(["a dog"], "spacy"))
