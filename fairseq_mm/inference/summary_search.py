"""How summaries are searched for or drawn."""

import math
from dataclasses import dataclass
from typing import Optional

from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED, SUMMARIES

MAX_LEN: int = SUMMARIES["max_len_b"]


@dataclass(frozen=True)
class Search:
    """How summaries are generated.

    Args:
        beam: width of the beam; 1 is greedy.
        max_len: longest summary in tokens, its end not counted; None for 62, or as many as the
            models have positions for.
        min_len: shortest one.
        lenpen: above 1 favours long summaries.
        no_repeat_ngram: no sequence of so many tokens occurs twice; 0 allows it. 3 is the released
            code's.
        sampling: draw the tokens instead, one summary a video. A video's draws depend on ``seed``
            and its number alone, not on the videos around it.
        topk: draw from the k most probable tokens only; 0 for all.
        topp: draw from the most probable tokens that have this share of the probability; 1 for all.
        temperature: above 1 flattens the distribution that is drawn from or searched.
        seed: of the draws.
        allow_unk: generate ``<unk>`` as well; an indexed OOV token (``<unk-0>``) is a word of the
            transcript, and always allowed.

    Raises:
        UserError: if a value is out of its range, or ``topk`` or ``topp`` is given without
            ``sampling``.
    """

    beam: int = SUMMARIES["beam"]
    max_len: Optional[int] = None
    min_len: int = SUMMARIES["min_len"]
    lenpen: float = SUMMARIES["lenpen"]
    no_repeat_ngram: int = SUMMARIES["no_repeat_ngram_size"]
    sampling: bool = False
    topk: int = 0
    topp: float = 1.0
    temperature: float = SUMMARIES["temperature"]
    seed: int = SEED
    allow_unk: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("beam", 1),
            ("max_len", 1),
            ("min_len", 1),
            ("no_repeat_ngram", 0),
            ("topk", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"`{name}` must be {least} or more, but is {value} instead.")
        if not 0 < self.temperature < math.inf:
            raise UserError(
                f"`temperature` must be above 0 and finite, but is {self.temperature} instead."
            )
        if not 0 <= self.lenpen < math.inf:
            raise UserError(f"`lenpen` must be 0 or more and finite, but is {self.lenpen} instead.")
        if not 0 < self.topp <= 1:
            raise UserError(f"`topp` must be above 0 and at most 1, but is {self.topp} instead.")
        if not -(2**63) <= self.seed < 2**64:
            raise UserError(f"`seed` must be a number of 64 bits, but is {self.seed} instead.")
        for name in ("topk", "topp"):
            value = getattr(self, name)
            if value != Search.__dataclass_fields__[name].default and not self.sampling:
                raise UserError(f"`{name}` is {value}, but tokens are drawn with `sampling` only.")
        if self.topk and self.topp < 1:
            raise UserError("`topk` and `topp` exclude each other.")
