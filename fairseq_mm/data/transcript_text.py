"""Tokenizes transcripts and summaries before they are split into subwords.

The tokenizer ``lower`` lower-cases the text, ``words`` also splits it into words, and ``none`` does
not change it. The text of How2's release is lower-cased and split into words already; ``words``
prepares other text in the same way.
"""

from typing import Callable

from fairseq_mm.data.caption_text import CaptionTokenizer

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


def is_not_available(transcript: str) -> bool:
    """Return True if a transcript is the placeholder that How2 has for a missing transcript."""
    return " ".join(transcript.lower().split()).rstrip(" .") == NOT_AVAILABLE
