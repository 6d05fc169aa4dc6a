"""Ranks several stories of one prompt by how well they fit it.

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018, section 5.5, scores a story
under its own prompt and under 9 others. Here, the stories of one prompt are ranked by their
log-likelihood under the prompt minus the highest log-likelihood under another prompt, in nats per
token. The paper ranks stories for its Figure 7, "the relevance of the kth best story to a given
prompt", but does not state its rule.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import numpy as np
import torch

from fairseq_mm.errors import UserError
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.hypothesis import Hypothesis
from fairseq_mm.inference.processor import Example

DISTRACTORS = 9


class RankedStory(NamedTuple):
    """Story with its fit to its prompt.

    Attributes:
        hypothesis: The story.
        margin: Log-likelihood under its own prompt minus the highest under another prompt, in nats
            per token with ``</s>``.
        prompt_rank: Rank of its own prompt among all scored prompts by the story's likelihood, from
            1; an equally likely prompt ranks before it.
    """

    hypothesis: Hypothesis
    margin: float
    prompt_rank: int


class PromptRanking:
    """Orders the stories of a prompt by their likelihood under it and under other prompts.

    Args:
        generator: Generator whose models compute the likelihoods.
        prompts: Examples to sample the other prompts from; equal prompts count once.
        seed: Seed of the samples, which also depend on the prompt, its index and ``prompts``.
        distractors: Maximum number of other prompts.
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
        self.prompts = {_get_tokens(example): example for example in prompts}
        self.seed = seed
        self.distractors = distractors

    def draw_others(self, example: Example, index: int) -> list[Example]:
        """Sample the prompts to compare the prompt ``example`` with; ``index`` is its index.

        Raises:
            UserError: if there is no other prompt.
        """
        own = _get_tokens(example)
        others = [other for tokens, other in self.prompts.items() if tokens != own]
        if not others:
            raise UserError(
                "ranking by prompts compares a story under its prompt and under others, but there "
                "is no other prompt: give some (--other-prompts FILE)."
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
        """Rank the stories ``hypotheses`` of the prompt ``example``.

        The sample of other prompts depends on ``index``, the index of the prompt.

        Returns:
            The stories in descending order of :attr:`RankedStory.margin`; equal margins keep the
            order of ``hypotheses``.

        Raises:
            UserError: if there is no other prompt.
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


def _get_tokens(example: Example) -> tuple[int, ...]:
    assert example.source is not None
    return tuple(example.source.tolist())
