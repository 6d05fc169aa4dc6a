"""Which candidate captions are written by structure and content: conditions and structures, drawn.

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 5.2 of the supplementary material. https://arxiv.org/abs/1411.2539
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fairseq_mm.data.pos_sequences import LONGEST, SHORTEST, sample_pos_sequences
from fairseq_mm.errors import UserError
from fairseq_mm.inference.candidate_conditions import CONDITIONS
from fairseq_mm.inference.candidate_scores import CandidateWeights


@dataclass(frozen=True)
class StructuredSearch:
    """How candidates are made and ranked.

    Args:
        candidates: draws of a condition and a structure for each image.
        conditions: that are drawn from, of ``image``, ``words`` and ``sentences``.
        num_nearest: words or sentences whose mean is a condition.
        shortest: least number of a structure's tags.
        longest: greatest number.
        seed: of the draws, with which those of each image begin: its captions do not depend on
            the images around it.
        beam: of the search for a structure's sentence; 1 is greedy. No caption has ``<unk>``.
        max_len_b: maximum length of a caption in tokens, whatever its structure.
        top: captions that are kept.
        batch_size: candidates that are written at a time; it changes nothing but the speed.
        weights: of the parts of a score.

    Raises:
        UserError: if a value is out of its range.
    """

    candidates: int = 1000
    conditions: Sequence[str] = CONDITIONS
    num_nearest: int = 5
    shortest: int = SHORTEST
    longest: int = LONGEST
    seed: int = 0
    beam: int = 1
    max_len_b: int = 30
    top: int = 5
    batch_size: int = 1000
    weights: CandidateWeights = field(default_factory=CandidateWeights)

    def __post_init__(self) -> None:
        for name in (
            *("candidates", "num_nearest", "shortest", "beam", "max_len_b", "top", "batch_size"),
        ):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"`{name}` must be 1 or more, but is {value} instead.")
        if self.longest < self.shortest:
            raise UserError(
                f"`longest` must be `shortest` ({self.shortest}) or more, but is {self.longest} "
                "instead."
            )
        unknown = [name for name in self.conditions if name not in CONDITIONS]
        if unknown or not self.conditions:
            raise UserError(
                f"`conditions` must be of {', '.join(CONDITIONS)}, but are "
                f"{', '.join(self.conditions) or 'none'} instead."
            )


class Draws(NamedTuple):
    """The P different pairs that were drawn, those with short structures first.

    Attributes:
        conditions: ``[P]`` places in the search's conditions.
        structures: of each pair.
    """

    conditions: list[int]
    structures: list[str]


def draw_pairs(counts: "Counter[str]", search: StructuredSearch) -> Draws:
    """
    Args:
        counts: structure -> how often it occurs in training.
        search: how many are drawn, and of which lengths.

    Raises:
        UserError: if no structure has the length asked for.
    """
    lengths = {structure: len(structure.split()) for structure in counts}
    chosen = Counter(
        {s: counts[s] for s, n in lengths.items() if search.shortest <= n <= search.longest}
    )
    if not chosen:
        raise UserError(
            f"there are no structures of {search.shortest} to {search.longest} tags to draw from: "
            f"those of training have {min(lengths.values())} to {max(lengths.values())} "
            "(--shortest, --longest)."
        )
    structures = sample_pos_sequences(chosen, search.candidates, seed=search.seed)
    # a stream of its own: the same numbers would tie conditions to structures
    generator = random.Random(f"conditions {search.seed}")
    conditions = generator.choices(range(len(search.conditions)), k=search.candidates)
    pairs = sorted(dict.fromkeys(zip(conditions, structures)), key=lambda pair: lengths[pair[1]])
    return Draws([condition for condition, _ in pairs], [structure for _, structure in pairs])
