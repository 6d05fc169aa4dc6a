"""Runs ``fairseq-mm score --constant``: scores one text that is repeated for every item.

If this text scores about as high as a system, the metric does not show that the system uses its
input.
"""

import os
from collections import Counter
from typing import TYPE_CHECKING, Optional

from fairseq_mm.cli.score_inputs import JoinedTexts, References
from fairseq_mm.data.story_text import (
    SEPARATOR,
    check_encodable,
    join_sentences,
    split_sentences,
)
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import Hypotheses

if TYPE_CHECKING:
    from fairseq_mm.data.binarised_split import SplitText

TRAINING_SPLIT = "train"
# value of --constant without TEXT; an empty TEXT, as from an unset variable of a shell, differs
MOST_FREQUENT = "\0"


def constant_texts(
    text: str, data: Optional[str], split: str, references: Optional[References]
) -> JoinedTexts:
    """Return the texts of an imaginary system that generates the same text for every item.

    Args:
        text: The text, or ``MOST_FREQUENT`` for the most frequent text of the training split.
        data: Path of the data folder; None without a data folder.
        split: Name of the split.
        references: References of the items; None for stories of prompts, which have no references:
            the items are then the lines of the split.
    """
    if text == MOST_FREQUENT:
        text = _most_frequent_text(_open_text("--constant without TEXT", data, TRAINING_SPLIT))
    elif os.path.exists(text):  # --constant FILE: HYPOTHESES was meant
        raise UserError(f"--constant {text}: must be a text, but is a file or folder.")
    elif not text.strip():
        raise UserError(f"--constant: must have words, but is {text!r}.")
    else:
        check_encodable(text, "--constant")
        if data is not None:
            _check_sentences(text, data, split)
    if references is not None:
        items = list(references.texts)
    else:
        items = list(map(str, range(len(_open_text("--constant", data, split)))))
    texts = dict.fromkeys(items, text)
    return JoinedTexts(f"every text is {text!r}", Hypotheses(texts, "constant"), texts)


def _check_sentences(text: str, data: str, split: str) -> None:
    """Raise UserError if ``text`` has not as many sentences as the split's visual stories.

    Only the first story of the split is examined.
    """
    from fairseq_mm.data.binarised_split import find_split_text

    stories = find_split_text(data, split)
    if stories is None or len(stories) == 0 or SEPARATOR not in stories.dictionary.indices:
        return
    expected = len(split_sentences(stories.decode(stories.tokens(0), 0)))
    count = len(split_sentences(text))
    if count != expected:
        raise UserError(
            f"--constant: a visual story must have {expected} sentences, separated by {SEPARATOR}, "
            f"but TEXT has {count}."
        )


def _open_text(option: str, data: Optional[str], split: str) -> "SplitText":
    if data is None:
        raise UserError(f"{option}: needs --data.")
    from fairseq_mm.data.binarised_split import find_split_text

    text = find_split_text(data, split)
    if text is None:
        raise UserError(f"{option}: {data} has no binarised text of the split {split}.")
    return text


def _most_frequent_text(text: "SplitText") -> str:
    """Return the most frequent line of a text.

    For visual stories, join the most frequent first sentence, second sentence, and so on.
    """
    if len(text) == 0:
        raise UserError(f"{text.path}: must have training texts, but is empty.")
    has_sentences = SEPARATOR in text.dictionary.indices
    # whole stories hardly repeat, their first or last sentences do
    counts: list[Counter[str]] = []
    for line in range(len(text)):
        readable = text.decode(text.tokens(line), line)
        parts = split_sentences(readable) if has_sentences else [readable]
        counts.extend(Counter() for _ in range(len(parts) - len(counts)))
        for count, part in zip(counts, parts):
            count[part] += 1
    # Counter.most_common keeps the order of first occurrence among equal counts
    return join_sentences([count.most_common(1)[0][0] for count in counts])
