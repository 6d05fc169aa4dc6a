"""Ranks several stories of one prompt, or of one image sequence, by how well they fit it.

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018, section 5.5, scores a story
under its own prompt and under 9 others. Here, the stories of one prompt are ranked by their
log-likelihood under the prompt minus the highest log-likelihood under another prompt, in nats per
token. Stories of images are ranked in the same way, by image sequences. The paper ranks stories for
its Figure 7, "the relevance of the kth best story to a given prompt", but does not name the score.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from fairseq_mm.errors import UserError
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.hypothesis import Hypothesis
from fairseq_mm.inference.processor import Example

DISTRACTORS = 9  # Fan et al. 2018, section 5.5


class RankedStory(NamedTuple):
    """Story with measures of how well it fits its own prompt.

    Attributes:
        hypothesis: The story.
        margin: Log-likelihood of the story under its own prompt minus the highest log-likelihood
            under another prompt, divided by the number of tokens (``</s>`` included), in nats.
        prompt_rank: Rank of the own prompt, from 1, by the likelihood of the story; last in a tie.
    """

    hypothesis: Hypothesis
    margin: float
    prompt_rank: int


class PromptRanking:
    """Ranking of the stories of a prompt by their likelihood under this and other prompts.

    With a model of visual stories, the prompts are image sequences. Sequences that share an image
    belong to one album, and are never compared.

    Args:
        generator: Generator whose models compute the likelihoods.
        prompts: Prompts from which the other prompts are sampled, as a processor returns them;
            equal prompts count once.
        seed: Seed for sampling other prompts.
        distractors: Maximum number of other prompts for each story.
    """

    def __init__(
        self,
        generator: Generator,
        prompts: Iterable[Example],
        *,
        seed: int,
        distractors: int = DISTRACTORS,
    ) -> None:
        self.generator = generator
        self.prompts = {_get_parts(example): example for example in prompts}
        self.seed = seed
        self.distractors = distractors

    def draw_others(self, example: Example, index: int) -> list[Example]:
        """Sample at most ``distractors`` prompts that differ from the prompt ``example``.

        The sample depends on the seed and on ``index``, the index of the prompt.
        """
        own = set(_get_parts(example))
        others = [other for parts, other in self.prompts.items() if own.isdisjoint(parts)]
        if not others:
            raise UserError(
                "ranking compares a story under its own prompt or images and under others, but "
                "there are no others: give more."
            )
        order = np.random.default_rng([self.seed % 2**64, index]).permutation(len(others))
        return [others[i] for i in order[: self.distractors]]

    def rank(
        self,
        example: Example,
        hypotheses: Sequence[Hypothesis],
        *,
        index: int,
        batch_size: Optional[int] = None,
    ) -> list[RankedStory]:
        """Rank the stories ``hypotheses`` by descending margin; equal margins keep their order.

        ``index`` is the index of the prompt, on which the sampling of other prompts depends.
        """
        conditions = [example, *self.draw_others(example, index)]
        targets = [torch.tensor(story.tokens) for story in hypotheses]
        scored = self.generator.score_tokens(
            [target for target in targets for _ in conditions],
            conditions * len(targets),
            batch_size=batch_size,
        )
        ranked = []
        for i, story in enumerate(hypotheses):
            group = scored[i * len(conditions) : (i + 1) * len(conditions)]
            own, *others = (sum(x.positional_scores) for x in group)
            margin = (own - max(others)) / len(story.tokens)
            ranked.append(RankedStory(story, margin, 1 + sum(other >= own for other in others)))
        return sorted(ranked, key=lambda x: -x.margin)


def _get_parts(example: Example) -> tuple[Any, ...]:
    """Return the features of each image of a sequence as bytes, or the tokens of a prompt."""
    if example.features is None:
        assert example.source is not None
        return (tuple(example.source.tolist()),)
    rows = zip(example.features, example.missing if example.missing is not None else repeat(False))
    return tuple(row.tobytes() for row, is_absent in rows if not is_absent)
