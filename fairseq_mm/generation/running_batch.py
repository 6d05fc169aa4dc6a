"""Searches the texts of a batch step by step, so that waiting inputs can join a running batch.

fairseq's own search returns when the last text of a batch has ended. Here, an input leaves the
batch as soon as its texts have ended, and :meth:`RunningBatch.join` adds further inputs to the
running batch. Texts and scores are the same as with fairseq's search.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_mm.generation.beam_search import BeamSearch
from fairseq_mm.generation.seeded_sampling import SeededSampling


def can_join(generator: Any, models: Sequence[Any]) -> bool:
    """Return True if further inputs can join a running batch of a generator of fairseq.

    The decoders must support rows at different positions, and the search must be a plain beam
    search or sampling, whose maximum length does not depend on the source texts of the batch.
    """
    return (
        type(generator) is SequenceGenerator
        and type(generator.search) in (BeamSearch, SeededSampling)
        and not (generator.match_source_len or generator.max_len_a)
        and generator.lm_model is None
        and all(getattr(model.decoder, "can_join", False) for model in models)
    )


class RunningBatch:
    """Batch of inputs whose texts are searched step by step, with K beams per input.

    Each step adds one token to every text. Tokens and scores are left-padded, so that the newest
    token of each text is in the last column.

    Args:
        generator: Generator of fairseq for which :func:`can_join` is True.
        sample: Batch of B inputs, as the task's dataset collates it.
        keys: Key of each input, under which :meth:`step` returns its hypotheses.
        prefix: [B, p] tokens that the texts begin with, without ``</s>`` and padding.
        start: Token before the first token of a text; None for ``</s>``.
    """

    def __init__(
        self,
        generator: Any,
        sample: dict[str, Any],
        keys: Sequence[Any],
        *,
        prefix: Optional[Tensor] = None,
        start: Optional[int] = None,
    ) -> None:
        B, K = len(keys), generator.beam_size
        self.generator = generator
        self.model = generator.model
        # A copy, because the search keeps random numbers for each row of its batch.
        self.search = copy.copy(generator.search)
        self.max_len = min(int(generator.max_len_b), generator.max_len - 1)
        # As in fairseq; the task explains the failure.
        assert generator.min_len <= self.max_len, "min_len cannot be larger than max_len"
        self.keys = list(keys)
        self.lengths = [0] * B  # number of tokens of each input's texts
        self.hypotheses: list[list[dict[str, Any]]] = [[] for _ in keys]
        self.ids: Tensor = sample["id"]
        self.prefix = prefix
        # The end at the maximum length comes before a longer prefix.
        self.num_forced = 0 if prefix is None else min(prefix.size(1), self.max_len)
        device = self.ids.device
        self.tokens = torch.full(
            (B * K, 1), generator.eos if start is None else start, device=device
        )
        # [B * K, t] sum of the log-probabilities up to each token
        self.totals = torch.zeros(B * K, 0, device=device)
        # [B, K] True for a beam whose text has ended; a search goes on with the others
        self.is_ended = torch.zeros(B, K, dtype=torch.bool, device=device)
        self.states: list[dict[str, Any]] = [{} for _ in self.model.models]
        self.encoder_outs = self.model.forward_encoder(sample["net_input"])
        # rows of the models' states that the next step continues
        self._order: Optional[Tensor] = None
        rows = torch.arange(B, device=device).repeat_interleave(K)
        self.encoder_outs = self.model.reorder_encoder_out(self.encoder_outs, rows)

    def __len__(self) -> int:
        return len(self.keys)

    def step(self) -> list[tuple[Any, list[dict[str, Any]]]]:
        """Add a token to each text, and remove the inputs whose texts have ended.

        Returns:
            Key and hypotheses of each input that has ended, best hypothesis first, as fairseq's
            generator returns them.
        """
        generator, K = self.generator, self.generator.beam_size
        self._settle()
        lprobs, _ = self.model.forward_decoder(
            self.tokens, self.encoder_outs, self.states, generator.temperature
        )
        lprobs = self._restrict(lprobs)
        B, longest = len(self.keys), self.tokens.size(1) - 1
        lengths: Any = longest
        if isinstance(self.search, SeededSampling) and min(self.lengths) < longest:
            lengths = self.lengths
        totals, words, beams = self.search.step(
            lengths,
            lprobs.view(B, K, -1),
            self.totals.view(B, K, -1),
            self.tokens,
            self.ids,
        )
        is_end = words.eq(generator.eos) & totals.ne(-math.inf)
        # A text ends with one of the K best candidates; the others take the places of the ended.
        is_end[:, :K] &= ~self.is_ended
        ended = is_end[:, :K].nonzero().tolist()
        for item, place in ended:
            # A search that takes one word of each beam may find more ends than there are beams.
            if len(self.hypotheses[item]) < K:
                row = item * K + int(beams[item, place])
                hypothesis = self._build_hypothesis(row, self.lengths[item], totals[item, place])
                self.hypotheses[item].append(hypothesis)
        is_end[:, :K] |= self.is_ended
        self._advance(totals, words, beams, is_end)
        at_end = [length >= self.max_len for length in self.lengths]
        done = [len(self.hypotheses[item]) == K for item in range(B)]
        for item in {item for item, _ in ended}:
            done[item] |= at_end[item]
        for item in range(B):
            # as fairseq: no text has a probability, which the task explains
            assert done[item] or not at_end[item], f"{self.lengths[item]} < {self.max_len}"
        self.lengths = [length + 1 for length in self.lengths]
        finished = [
            (
                self.keys[item],
                sorted(self.hypotheses[item], key=lambda x: float(x["score"]), reverse=True),
            )
            for item in range(B)
            if done[item]
        ]
        if finished:
            self._keep([item for item in range(B) if not done[item]])
        return finished

    def join(self, other: "RunningBatch") -> None:
        """Append the inputs of another batch that has made at least one decoding step."""
        self._settle()
        other._settle()
        for model, state, joining in zip(self.model.models, self.states, other.states):
            model.decoder.join_incremental_state(state, joining)
        if self.model.has_encoder():
            self.encoder_outs = [
                model.encoder.join_encoder_out(ours, theirs)
                for model, ours, theirs in zip(
                    self.model.models, self.encoder_outs, other.encoder_outs
                )
            ]
        pad, width = self.generator.pad, max(self.tokens.size(1), other.tokens.size(1))
        for batch in (self, other):
            missing = width - batch.tokens.size(1)
            if missing:
                # Start tokens are no words, and the blocking of n-grams reads all columns but one.
                batch.tokens[:, 0] = pad
                batch.tokens = torch.nn.functional.pad(batch.tokens, (missing, 0), value=pad)
                batch.totals = torch.nn.functional.pad(batch.totals, (missing, 0))
        for name in ("tokens", "totals", "is_ended", "ids"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        if self.prefix is not None and other.prefix is not None:
            self.prefix = torch.cat([self.prefix, other.prefix])
        self.keys += other.keys
        self.lengths += other.lengths
        self.hypotheses += other.hypotheses

    def _restrict(self, lprobs: Tensor) -> Tensor:
        """Apply the limits that fairseq's search sets to log-probabilities [B * K, V]."""
        generator, lengths = self.generator, self.lengths
        # The softmax divides by one sum. If the log-probability of one word is NaN, all are.
        is_nan = lprobs[:, generator.eos].isnan().unsqueeze(1)
        if is_nan.is_cuda or bool(is_nan.any()):
            lprobs.masked_fill_(is_nan, -math.inf)
        lprobs[:, generator.pad] = -math.inf
        lprobs[:, generator.unk] -= generator.unk_penalty
        at_end = self._rows(length >= self.max_len for length in lengths)
        if at_end is not None:
            ends = lprobs[at_end, generator.eos]
            lprobs[at_end] = -math.inf
            lprobs[at_end, generator.eos] = ends
        forced = self._rows(length < self.num_forced for length in lengths)
        words = probabilities = self.tokens.new_empty(0)
        if forced is not None:
            assert self.prefix is not None
            items = torch.div(forced, generator.beam_size, rounding_mode="floor")
            words = self.prefix[items, torch.tensor(lengths, device=items.device)[items]]
            probabilities = lprobs[forced, words]
        too_short = self._rows(length < generator.min_len for length in lengths)
        if too_short is not None:
            lprobs[too_short, generator.eos] = -math.inf
        if generator.token_indices_to_suppress is not None:
            lprobs[:, generator.token_indices_to_suppress] = -math.inf
        if forced is not None:
            # The rules above do not apply to a forced word.
            lprobs[forced] = -math.inf
            lprobs[forced, words] = probabilities
        if generator.repeat_ngram_blocker is not None:
            lprobs = generator.repeat_ngram_blocker(
                self.tokens,
                lprobs,
                len(self.keys),
                generator.beam_size,
                self.tokens.size(1) - 1,
            )
        return lprobs

    def _rows(self, is_chosen: Iterable[bool]) -> Optional[Tensor]:
        """Return the row indices of the chosen inputs' beams; None if no input is chosen."""
        items = [item for item, chosen in enumerate(is_chosen) if chosen]
        if not items:
            return None
        K = self.generator.beam_size
        rows = [item * K + beam for item in items for beam in range(K)]
        return torch.tensor(rows, device=self.tokens.device)

    def _advance(self, totals: Tensor, words: Tensor, beams: Tensor, is_end: Tensor) -> None:
        """Continue each input with its K best candidates that do not end a text.

        ``totals``, ``words`` and ``beams`` [B, C] are the candidates of each input, the best first:
        sum of log-probabilities, word, and the beam that the word continues. ``is_end`` [B, C] is
        True for candidates that cannot be continued.
        """
        B, C = words.shape
        K = self.generator.beam_size
        # Candidates are ranked by their number; candidates that end a text come last.
        ranks = is_end * C + torch.arange(C, device=words.device)
        ranks, chosen = ranks.topk(K, dim=1, largest=False)
        self.is_ended = ranks >= C
        first_rows = torch.arange(0, B * K, K, device=words.device).unsqueeze(1)
        self._order = (beams.gather(1, chosen) + first_rows).flatten()
        newest = words.gather(1, chosen).view(-1, 1), totals.gather(1, chosen).view(-1, 1)
        self.tokens = torch.cat([self.tokens[self._order], newest[0]], dim=1)
        self.totals = torch.cat([self.totals[self._order], newest[1]], dim=1)

    def _build_hypothesis(self, row: int, length: int, total: Tensor) -> dict[str, Any]:
        """Return the hypothesis of a text of ``length`` tokens with log-probability ``total``."""
        generator = self.generator
        first = self.tokens.size(1) - length
        end = self.tokens.new_full((1,), generator.eos)
        totals = torch.cat([self.totals[row, first - 1 :], total.view(1)])
        score = total
        if generator.normalize_scores:
            score = total / (length + 1) ** generator.len_penalty
        return {
            "tokens": torch.cat([self.tokens[row, first:], end]),
            "score": score,
            "positional_scores": torch.cat([totals[:1], totals[1:] - totals[:-1]]),
        }

    def _keep(self, items: list[int]) -> None:
        """Remove all inputs but those at the indices ``items``."""
        K, device = self.generator.beam_size, self.tokens.device
        kept = torch.tensor(items, dtype=torch.long, device=device)
        rows = (kept.unsqueeze(1) * K + torch.arange(K, device=device)).flatten()
        self.search.prune_sentences(kept)
        assert self._order is not None
        self._order = self._order[rows]
        for name in ("keys", "lengths", "hypotheses"):
            values = getattr(self, name)
            setattr(self, name, [values[item] for item in items])
        width = max(self.lengths, default=0) + 1
        self.tokens = self.tokens[rows, -width:]
        self.totals = self.totals[rows, self.totals.size(1) + 1 - width :]
        self.is_ended, self.ids = self.is_ended[kept], self.ids[kept]
        if self.prefix is not None:
            self.prefix = self.prefix[kept]

    def _settle(self) -> None:
        """Reorder the models' states, so that each row continues the beam chosen for it."""
        if self._order is None:
            return
        self.model.reorder_incremental_state(self.states, self._order)
        self.encoder_outs = self.model.reorder_encoder_out(self.encoder_outs, self._order)
        self._order = None
