"""The project's words are the field's."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_vocabulary.py"


def script():
    spec = importlib.util.spec_from_file_location("check_vocabulary", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_project_uses_the_words_of_the_field(capsys):
    assert script().main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# a Picture of it", "Picture"),
        ("picture_story = 1", "picture"),
        ("class PictureTeller:", "Picture"),
        ("numbered_unknowns: int", "numbered_unknowns"),
        ("the model looks at the frames", "looks at the frames"),
        ("is_real = ~padding_mask", "is_real"),
    ],
)
def test_other_words_are_named_with_their_line(text, word):
    found = list(script().unwanted(f"\n{text}", "fairseq_mm/new.py"))
    assert (found[0][0], found[0][1]) == (2, word)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("depicture, tell it, look at the log, the mask is real", "docs/new.md"),
        ("self.pictures = images", "fairseq_mm/models/glac.py"),
        ("--picture-dim 6", "docs/new.md"),
    ],
)
def test_ordinary_english_and_exceptions_pass(text, name):
    assert list(script().unwanted(text, name)) == []
