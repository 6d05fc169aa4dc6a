"""Samples each text in fairseq's search from its own stream of random numbers.

fairseq's own sampling uses one generator for all samples of a batch, so that a text depends on the
other texts of its batch. Here, the random number for word t of beam b of input i depends only on
the seed and on i, b and t.
"""

from typing import Any, Optional, Union

import numpy as np
import torch
from fairseq.search import Search
from torch import Tensor

from fairseq_mm.generation.beam_search import top_words

# bits of a random number: float64 has 53, so its product with a sum stays below the sum
DRAW_BITS = 48
# number of most probable words among which the share of the probability is sought first
FIRST_CANDIDATES = 256
# number of steps whose random numbers are generated at once
FIRST_STEPS = 64


class SeededSampling(Search):
    """Search strategy that samples one word per step for each text of a batch.

    The texts in the beam of an input are sampled independently. Fan et al. 2018, section 5.4,
    sample from the k most probable words (``topk``). Holtzman et al. 2020,
    https://arxiv.org/abs/1904.09751, sample from the smallest set of words whose probabilities sum
    to at least p (``topp``). Meister, Pimentel, Wiher, Cotterell 2023, Locally Typical Sampling,
    https://arxiv.org/abs/2202.00666, sample from the words whose information content -log p is
    nearest to the entropy of the distribution, as many as sum to at least tau (``typical_p``). As
    in Hugging Face's transformers, these words are chosen among the words that ``topk`` and
    ``topp`` leave.

    Args:
        dictionary: Dictionary of the generated text.
        topk: Number of most probable words to sample from at each step; 0 for all words.
        topp: Sum p of probabilities; 1 for all words. The sum is relative to the sum over all words
            that are allowed at this step.
        typical_p: Sum tau of probabilities, relative to the sum over the words that ``topk`` and
            ``topp`` leave; 1 for all these words.
        seed: Seed of the samples, an integer of 64 bits with or without sign.
        stream: Number of the stream; texts of different streams are sampled independently even if
            seed and input are the same.
    """

    def __init__(
        self,
        dictionary: Any,
        *,
        topk: int = 0,
        topp: float = 1.0,
        typical_p: float = 1.0,
        seed: int = 0,
        stream: int = 0,
    ) -> None:
        super().__init__(dictionary)
        self.topk = topk
        self.topp = topp
        self.typical_p = typical_p
        self.seed = seed % 2**64
        self.stream = stream
        self._draws = torch.empty(0, 0, 0)

    def step(
        self,
        step: Union[int, list[int]],
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sample the next word of each text.

        Args:
            step: Number of words of each text so far; a list of B numbers if the numbers differ
                between the inputs. Inputs that have joined since the last step are at the end.
            lprobs: [B, beam, V] log-probabilities of the next word, ``-inf`` for forbidden words.
            original_batch_idxs: [B] indices of the inputs, on which the random numbers depend.

        Returns:
            Three tensors [B, beam]: the sum of log-probabilities with the new word, the new word,
            and the beam that the word continues, which is always the text's own beam.
        """
        B, beam, V = lprobs.shape
        longest = step if isinstance(step, int) else max(step)
        if longest == 0 or longest >= self._draws.size(2):
            self._draws = torch.empty(0, beam, max(FIRST_STEPS, 2 * longest))
        if len(self._draws) < B:
            assert original_batch_idxs is not None
            bits = []
            for item in original_batch_idxs[len(self._draws) :].tolist():
                for number in range(beam):
                    key = [self.seed, int(item), self.stream]
                    if number:
                        key.append(number)
                    # seeding and bit generators are stable between versions of numpy, unlike
                    # distributions; a larger number of draws begins with the same numbers
                    generator = np.random.Philox(np.random.SeedSequence(key))
                    bits.append(generator.random_raw(self._draws.size(2)))
            draws = (np.stack(bits) >> np.uint64(64 - DRAW_BITS)) / 2.0**DRAW_BITS
            joining = torch.from_numpy(draws).view(-1, beam, self._draws.size(2)).to(lprobs.device)
            self._draws = torch.cat([self._draws.to(joining), joining])
        log_probabilities, words = self._truncated(lprobs.reshape(B * beam, V))
        if self.typical_p < 1:
            log_probabilities = forbid_untypical(log_probabilities, self.typical_p)
        # relative to the most probable word, because a sum of probabilities may underflow
        peak = log_probabilities.amax(dim=1, keepdim=True)
        mass = (log_probabilities.double() - peak).exp().cumsum(dim=1)
        if isinstance(step, int):
            draws_now = self._draws[:, :, step]
        else:
            places = torch.tensor(step, device=lprobs.device).view(B, 1, 1).expand(-1, beam, -1)
            draws_now = self._draws.gather(2, places).squeeze(2)
        threshold = draws_now.reshape(-1, 1) * mass[:, -1:]
        # with NaN, or without any candidate, no place is right; the score then is not finite
        place = torch.searchsorted(mass, threshold, right=True).clamp(max=mass.size(1) - 1)
        chosen = log_probabilities.gather(1, place).view(B, beam)
        if longest > 0:
            assert scores is not None
            chosen = chosen + scores[:, :, -1]
        beams = torch.arange(beam, device=lprobs.device).expand(B, beam)
        return chosen, words.gather(1, place).view(B, beam), beams

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        """Keep only the inputs ``batch_idxs`` of the batch; all other texts are complete."""
        self._draws = self._draws[batch_idxs]

    def _truncated(self, lprobs: Tensor) -> tuple[Tensor, Tensor]:
        """Select the K words to sample from for each of N texts, by ``topk`` and ``topp``.

        ``lprobs`` [N, V] are the log-probabilities of the next word. Returns the log-probabilities
        [N, K] and indices [N, K] of the selected words, in ascending order of the index. A
        log-probability of ``-inf`` excludes the word.
        """
        num_types = lprobs.size(1)
        most = min(self.topk or num_types, num_types)
        if self.topp >= 1 and most == num_types:
            return lprobs, torch.arange(num_types, device=lprobs.device).expand_as(lprobs)
        values, words = top_words(lprobs, most if self.topp >= 1 else min(FIRST_CANDIDATES, most))
        if self.topp < 1:
            peak = lprobs.amax(dim=1, keepdim=True).double()
            share = (lprobs.double().logsumexp(dim=1, keepdim=True) - peak).exp() * self.topp
            while True:
                probabilities = (values.double() - peak).exp()
                mass = probabilities.cumsum(dim=1)
                if values.size(1) == most or bool((mass[:, -1:] >= share).all()):
                    break
                values, words = top_words(lprobs, min(8 * values.size(1), most))
            # the word that reaches the share is the last
            values = values.masked_fill(mass - probabilities >= share, -torch.inf)
        # not in the order of their probabilities: two words of nearly equal probability may change
        # places when the batch changes
        words, order = words.sort(dim=1)
        return values.gather(1, order), words


def forbid_untypical(lprobs: Tensor, typical_p: float) -> Tensor:
    """Set the log-probabilities of words outside the locally typical set to ``-inf``.

    Words that are as near to the entropy as the last word of the set also belong to the set. The
    set therefore does not depend on the order of the words.

    Args:
        lprobs: [N, K] log-probabilities; their probabilities need not sum to 1.
        typical_p: Sum of probabilities that the set must reach, above 0 and below 1.
    """
    log_p = lprobs.double().log_softmax(dim=1)
    p = log_p.exp()
    is_allowed = log_p > -torch.inf
    # 0 log 0 is 0
    entropy = -(p * log_p.masked_fill(~is_allowed, 0)).sum(dim=1, keepdim=True)
    distance = (log_p + entropy).abs()  # infinite for forbidden words, which come last
    ascending, order = distance.sort(dim=1)
    mass = p.gather(1, order).cumsum(dim=1)
    # the word that reaches the sum is the last
    last = (mass < typical_p).sum(dim=1, keepdim=True).clamp(max=lprobs.size(1) - 1)
    return lprobs.masked_fill(distance > ascending.gather(1, last), -torch.inf)
