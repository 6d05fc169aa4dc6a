"""A story of five images is one line of text: its sentences, joined by a separator.

The running count of separators says which sentence, hence which image, a word belongs to, in
training and at every step of a search; the last sentence ends with fairseq's ``</s>``.
"""

from collections.abc import Sequence

NUM_IMAGES = 5
SEPARATOR = "<sent>"


def join_sentences(sentences: Sequence[str]) -> str:
    """Sentences of words separated by spaces -> the story's line."""
    return f" {SEPARATOR} ".join(sentences)


def split_sentences(line: str) -> list[str]:
    """Inverse of :func:`join_sentences`; sentences without words are empty."""
    sentences: list[list[str]] = [[]]
    for word in line.split():
        if word == SEPARATOR:
            sentences.append([])
        else:
            sentences[-1].append(word)
    return [" ".join(words) for words in sentences]
