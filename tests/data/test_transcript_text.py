"""What text goes through before it becomes subwords, as a data folder records it."""

import pytest

from fairseq_mm.data.transcript_text import TOKENIZERS, prepared_tokenizer


def test_text_is_lowered_or_split_by_name():
    text = "It's  Ann, today."
    assert TOKENIZERS["none"](text) == text
    assert TOKENIZERS["lower"](text) == "it's  ann, today."
    assert TOKENIZERS["words"](text) == "it 's ann , today ."


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('{"options": {"tokenizer": "lower"}}', "lower"),
        ('{"options": {"tokenizer": "later"}}', None),
        ('{"options": {"tokenizer": ["lower"]}}', None),
        ('{"options": 3}', None),
        ("{", None),
    ],
)
def test_a_folder_says_it_or_does_not(tmp_path, content, name):
    assert prepared_tokenizer(tmp_path) is None
    (tmp_path / "prepare.json").write_text(content)
    assert prepared_tokenizer(tmp_path) == name
