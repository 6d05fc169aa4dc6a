"""Tokenizes transcripts and summaries before they are split into subwords.

The tokenizer ``lower`` lower-cases the text, ``words`` also splits it into words, and ``none`` does
not change it. The text of How2's release is lower-cased and split into words already; ``words``
prepares other text in the same way.
"""

import os
from typing import Callable, Optional, Union

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.input_files import read_json
from fairseq_mm.errors import UserError

# fairseq names binarised files by two languages; these are the suffixes of How2's release
SOURCE, TARGET = "tran", "desc"
# How2's text for a video without transcript
NOT_AVAILABLE = "transcript not available"

# punctuation stays, since How2's transcripts and summaries have it
_split_words = CaptionTokenizer("words", keep_punctuation=True)

TOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": str,
    "lower": str.lower,
    "words": lambda text: " ".join(_split_words(text)),
}


def prepared_tokenizer(folder: Union[str, os.PathLike]) -> Optional[str]:
    """Return the name of the tokenizer that ``prepare.json`` of a data folder records; None if it
    records no tokenizer."""
    # a folder of fairseq-preprocess has no such file
    try:
        name = read_json(os.path.join(folder, "prepare.json"))["options"]["tokenizer"]
    except (UserError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name in TOKENIZERS else None


def is_not_available(transcript: str) -> bool:
    """Return True if a transcript is only the text that How2 has in place of a missing
    transcript."""
    return " ".join(transcript.lower().split()).rstrip(" .") == NOT_AVAILABLE
