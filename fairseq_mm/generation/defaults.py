"""Generation defaults, one table a task.

``fairseq-generate``, validation by generated text, the Python interface and the commands of
``fairseq-mm`` take them where no option is given. The names are those of fairseq's
``GenerationConfig``.
"""

from collections.abc import Sequence
from typing import Any, Optional

from fairseq_mm.errors import UserError

# fairseq's own
_FAIRSEQ: dict[str, Any] = {
    "beam": 5,
    "max_len_a": 0,
    "max_len_b": 200,
    "min_len": 1,
    "lenpen": 1.0,
    "no_repeat_ngram_size": 0,
    "temperature": 1.0,
}
CAPTIONS: dict[str, Any] = {**_FAIRSEQ, "beam": 3, "max_len_b": 30}
# the length of visual stories is set sentence by sentence
VISUAL_STORIES: dict[str, Any] = _FAIRSEQ
# Fan et al. 2018, section 5.3: stories of 150 words
PROMPT_STORIES: dict[str, Any] = {**_FAIRSEQ, "min_len": 150, "max_len_b": 150}
# Yu et al. 2021: 64 tokens, with the beginning and the end; the released code blocks trigrams
SUMMARIES: dict[str, Any] = {**_FAIRSEQ, "max_len_b": 62, "no_repeat_ngram_size": 3}

# of the draws; fairseq's own --seed
SEED = 1
# a sampled text is one draw, where no number of them is given
SAMPLING_BEAM = 1

ALLOW_UNK_HELP = (
    "allow <unk> in generated text (default: the most probable other token is taken in its place)"
)


def numbers_of(items: Optional[Sequence[int]], count: int) -> Sequence[int]:
    """The numbers on which the draws of inputs depend: their places, unless others are given.

    Raises:
        UserError: if there are not as many as inputs, or one is negative.
    """
    if items is None:
        return range(count)
    if len(items) != count or any(item < 0 for item in items):
        raise UserError(
            f"`items` must be {count} numbers of 0 or more, one for each input, but are "
            f"{list(items)[:5]} ({len(items)})."
        )
    return items
