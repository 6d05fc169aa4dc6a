"""Samples texts from a model in training, and computes their log-probabilities with gradients.

fairseq's generator samples the texts with :class:`.SeededSampling`. Some words are forbidden:
``<unk>``, ends before the minimum length, and words that the task's constraints exclude. Each word
is therefore sampled from the model's distribution over the allowed words of its step, and
log-probabilities are computed under this distribution. A forced word, such as the end at the
maximum length, has the probability 1 and no gradient.
"""

from typing import Any, NamedTuple, Optional

import torch
from fairseq.search import Search
from torch import Tensor, nn

from fairseq_mm.generation.seeded_sampling import SeededSampling


class Drawn(NamedTuple):
    """Texts that were generated for a batch.

    Attributes:
        tokens: [B, K, T] tokens of K texts for each of B inputs, with ``</s>`` and padding at the
            ends.
        is_cut: [B, K] True for a text that ends only because it has the maximum length.
    """

    tokens: Tensor
    is_cut: Tensor


class _Recorder(Search):
    """Search strategy that only records the log-probabilities that it receives."""

    lprobs: Optional[Tensor] = None

    def step(self, step: int, lprobs: Tensor, *others: Any) -> Any:
        self.lprobs = lprobs


class SamplingPolicy:
    """Distribution over texts, defined by a model in training and a generator.

    Args:
        task: Task that generates, with ``inference_step`` and ``begin_search``.
        model: Model in training, without wrappers for several processes.
        generator: fairseq's generator of ``model``, built by the task.
    """

    def __init__(self, task: Any, model: Any, generator: Any) -> None:
        self.task = task
        self.model = model
        self.generator = generator
        # strategies that wrap others, the outermost first
        self._wrappers: list[Any] = []
        search = generator.search
        while hasattr(search, "search"):
            self._wrappers.append(search)
            search = search.search
        self._search = search

    def draw(self, sample: dict[str, Any], stream: int) -> Drawn:
        """Sample as many texts as the beam has for each input of a batch.

        The model must be in evaluation mode. The texts of an input depend only on the seed of the
        task, on the number ``stream`` and on the ``id`` of the input, not on the other inputs of
        the batch.
        """
        if isinstance(self._search, SeededSampling):
            self._search.stream = stream
        inputs = _get_inputs(sample)
        batch = {"id": sample["id"], "net_input": inputs}
        results = self.task.inference_step(self.generator, [self.model], batch)
        beam = self.generator.beam_size
        texts = [text["tokens"] for texts in results for text in texts[:beam]]
        tokens = nn.utils.rnn.pad_sequence(texts, True, float(self.generator.pad))
        tokens = tokens.view(len(results), -1, tokens.size(1))
        lengths = tokens.ne(self.generator.pad).sum(dim=2)
        is_cut = lengths > self._longest(inputs)
        return Drawn(tokens, is_cut)

    def _longest(self, inputs: dict[str, Any]) -> int:
        """Return the maximum number of words, without ``</s>``, of a generated text."""
        # as in fairseq's generator, which calls the features the source
        source = inputs.get("src_tokens", inputs.get("features"))
        assert source is not None
        generator = self.generator
        return min(
            int(generator.max_len_a * source.size(1) + generator.max_len_b), generator.max_len - 1
        )

    def log_probabilities(self, sample: dict[str, Any], drawn: Drawn) -> Tensor:
        """Compute the log-probability [B, K] of each text, with gradients.

        The encoder runs once for each input, and the decoder once for all texts.
        """
        tokens, pad = drawn.tokens, self.generator.pad
        B, K, T = tokens.shape
        flat = tokens.view(B * K, T)
        start = self.task.start_index
        first = flat.new_full((B * K, 1), self.generator.eos if start is None else start)
        before = torch.cat([first, flat[:, :-1]], dim=1)
        # no text goes on after its end, so the decoder may read the end as padding
        before[:, 1:].masked_fill_(before[:, 1:].eq(self.generator.eos), pad)
        inputs = _get_inputs(sample)
        encoded = self.model.encoder(**inputs)
        order = torch.arange(B, device=tokens.device).repeat_interleave(K)
        encoded = self.model.encoder.reorder_encoder_out(encoded, order)
        output = self.model.decoder(before, encoder_out=encoded)
        lprobs = self.model.get_normalized_probs(output, log_probs=True)
        is_word = flat.ne(pad)  # [B * K, T]
        rows = lprobs[is_word].float()  # [words, V]
        rows = rows + self._offsets(inputs, before, B)[is_word]
        words = rows.gather(1, flat[is_word].unsqueeze(1)).squeeze(1) - rows.logsumexp(dim=1)
        place = is_word.nonzero()[:, 0]
        return words.new_zeros(B * K).index_add(0, place, words).view(B, K)

    @torch.no_grad()
    def _offsets(self, inputs: dict[str, Any], before: Tensor, num_inputs: int) -> Tensor:
        """Return the terms [N, T, V] that the search adds to the log-probabilities of each step.

        They are ``-inf`` for forbidden words. ``before`` [N, T] are the words before each step, the
        start token first; ``num_inputs`` is the number of inputs.
        """
        generator = self.generator
        N, T = before.shape
        offsets = torch.zeros(T, generator.vocab_size, device=before.device)
        offsets[:, generator.pad] = -torch.inf
        offsets[: generator.min_len, generator.eos] = -torch.inf
        if generator.token_indices_to_suppress is not None:
            offsets[:, generator.token_indices_to_suppress] = -torch.inf
        longest = self._longest(inputs)
        offsets[longest:] = -torch.inf
        offsets[longest:, generator.eos] = 0
        if not self._wrappers:
            return offsets.expand(N, T, -1)
        steps = offsets.repeat(N, 1, 1).view(N, T, -1)
        self.task.begin_search(generator, {"net_input": inputs}, None)
        recorder = _Recorder(generator.tgt_dict)
        self._wrappers[-1].search = recorder
        try:
            for step in range(T):
                given = steps[:, step].reshape(num_inputs, N // num_inputs, -1)
                self._wrappers[0].step(step, given, None, before[:, : step + 1])
                assert recorder.lprobs is not None
                steps[:, step] = recorder.lprobs.view(N, -1)
        finally:
            self._wrappers[-1].search = self._search
        return steps


def _get_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    return {k: x for k, x in sample["net_input"].items() if k != "prev_output_tokens"}
