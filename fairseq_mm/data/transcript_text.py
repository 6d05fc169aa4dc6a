"""Transcripts and summaries as they are before they become tokens: lower case, split, or as found.

How2's text is lower-cased and split already; other text is made like it by ``words``.
"""

import os
from typing import Callable, Optional, Union

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

# the sides of the data folder
SOURCE, TARGET = "tran", "desc"
# as How2 writes it
NOT_AVAILABLE = "transcript not available"

_split_words = CaptionTokenizer("words", keep_punctuation=True)

# name -> text to text, whose words are separated by spaces
TOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": str,
    "lower": str.lower,
    "words": lambda text: " ".join(_split_words(text)),
}


def default_tokenizer(subwords: str) -> str:
    """What ``fairseq-mm prepare videos`` takes where nothing is said, by the kind of subwords."""
    return "words" if subwords == "none" else "none"


def prepared_tokenizer(folder: Union[str, os.PathLike]) -> Optional[str]:
    """What ``prepare.json`` of a data folder says of it; None where there is no such file, or it
    says nothing that is known."""
    try:
        name = read_json(os.path.join(folder, "prepare.json"))["options"]["tokenizer"]
    except (UserError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name in TOKENIZERS else None


def is_not_available(transcript: str) -> bool:
    """Whether it says that there is none, as How2 does."""
    return " ".join(transcript.lower().split()).rstrip(" .") == NOT_AVAILABLE
