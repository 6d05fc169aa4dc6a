"""Which of several stories of a prompt is most its own.

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018, section 5.5: a story is scored
under its own prompt and under 9 others; ranking counts how often its own is the likeliest. Here the
stories of one prompt are ordered by how much likelier they are under it than under the likeliest of
the others, in nats a token: above 0 the own prompt ranks first. The paper orders stories so for its
Figure 7, "the relevance of the kth best story to a given prompt", by no rule that it states.
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
    """
    Attributes:
        hypothesis: the story.
        margin: log-likelihood under its own prompt less that under the likeliest of the others, in
            nats a token, ``</s>`` included.
        prompt_rank: of its own prompt, from 1; equal likelihoods count against it.
    """

    hypothesis: Hypothesis
    margin: float
    prompt_rank: int


class PromptRanking:
    """Orders the stories of a prompt by their likelihood under it and under others.

    Args:
        generator: whose likelihoods are compared.
        prompts: examples that others are drawn from; equal ones count once.
        seed: of the draws of the others, which depend on it and a story's index alone.
        distractors: greatest number of others.
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
        self.prompts = {_tokens_of(example): example for example in prompts}
        self.seed = seed
        self.distractors = distractors

    def others_of(self, example: Example, index: int) -> list[Example]:
        """
        Raises:
            UserError: if there is no other prompt.
        """
        own = _tokens_of(example)
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
        """
        Args:
            example: the prompt.
            hypotheses: its stories.
            index: of the prompt's stories, on which the draw of the others depends.
            batch_size: see :meth:`.Generator.generate`.

        Returns:
            The stories, that of the greatest margin first; equal ones as they were.

        Raises:
            UserError: if there is no other prompt.
        """
        conditions = [example, *self.others_of(example, index)]
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


def _tokens_of(example: Example) -> tuple[int, ...]:
    assert example.source is not None
    return tuple(example.source.tolist())
