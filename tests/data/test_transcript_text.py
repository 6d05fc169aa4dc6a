"""What text goes through before it becomes subwords."""

from fairseq_mm.data.transcript_text import TOKENIZERS


def test_text_is_lowered_or_split_by_name():
    text = "It's  Ann, today."
    assert TOKENIZERS["none"](text) == text
    assert TOKENIZERS["lower"](text) == "it's  ann, today."
    assert TOKENIZERS["words"](text) == "it 's ann , today ."
