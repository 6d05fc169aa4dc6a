"""Computes log P of each token of given texts, by a model or an ensemble.

    likelihood = TextLikelihood(models, dataset.__getitem__, dataset.collater)
    pairs = [(line, encode_text(dictionary, words)), ...]
    for numbers, log_probs in likelihood.batches(pairs):
        ...

Texts of similar length share a batch, so that little padding is computed, and an input that several
texts of a batch share is encoded once.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Callable, Optional

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from fairseq_mm.data.collate import collate
from fairseq_mm.errors import UserError
from fairseq_mm.retrieval.likelihood import check_finite
from fairseq_mm.retrieval.word_likelihood import CHUNK_BYTES, mean_log_probs, word_log_probs

# condition of a text, and the tokens of the text, with the end token if it is scored
Pair = tuple[Any, list[int]]
# function from each model's hidden states [N, E] and targets [N] to log P of the targets [N]
LogProbs = Callable[[Sequence[Tensor], Tensor], Tensor]


def encode_text(
    dictionary: Any, words: Sequence[str], num_words: Optional[int] = None
) -> list[int]:
    """Return the token indices of a text, with the end token unless the text is truncated after
    ``num_words`` words (None: unlimited)."""
    tokens = [dictionary.index(word) for word in words]
    if num_words is not None and len(tokens) > num_words:
        return tokens[:num_words]
    return [*tokens, dictionary.eos()]


def encode_prompt(models: Any, words: Sequence[str]) -> tuple[int, ...]:
    """Return the token indices of a prompt, with the end token."""
    most = max_words(models, "prompt")
    if len(words) > most:
        raise UserError(
            f"a prompt has {len(words)} words, but the model has positions for {most}: "
            f"{' '.join(words[:8])} ..."
        )
    dictionary = models.source_dictionary
    return (*map(dictionary.index, words), dictionary.eos())


def max_words(models: Any, side: str) -> int:
    """Return the maximum number of words, without end token, of a ``prompt`` or ``story``."""
    # language models of fairseq return one number, encoder-decoder models a pair
    limits = [
        np.ravel(model.max_positions())[0 if side == "prompt" else -1] for model in models.models
    ]
    return int(min(limits)) - 1


def prompt_likelihood(models: Any, **options: Any) -> "TextLikelihood":
    """Build the scorer of stories under prompts (tuples of token indices), or with language models
    of texts without prompts (None). ``models`` are :class:`.LoadedModels`."""
    dictionary = models.dictionary
    source_pad = models.source_dictionary.pad() if models.source_dictionary else None
    # a model that attends to padding gives a text another probability in another batch
    masks_padding = all(
        getattr(part, "masks_padding", False) and getattr(part, "frozen_masks_padding", True)
        for part in (model.decoder for model in models.models)
    )
    return TextLikelihood(
        models.models,
        lambda prompt: {
            "features": None,
            "source": None if prompt is None else torch.tensor(prompt),
        },
        partial(collate, pad=dictionary.pad(), start=dictionary.eos(), source_pad=source_pad),
        group=lambda prompt: 0 if masks_padding or prompt is None else len(prompt),
        **options,
    )


class TextLikelihood:
    """Scorer of log P(text | condition), such as a prompt, an image or a line of a split.

    Args:
        models: Models in evaluation mode, on one device.
        read: Function from a condition to the model's input, as :class:`.MultimodalDataset` returns
            it: a dict of ``features`` and, where needed, ``missing`` and ``source``.
        collater: Function that collates such dicts, with ``id`` and ``target``, to a batch.
        group: Function from a condition to a number; texts with different numbers never share a
            batch.
        has_features: True if the models' logits are ``output_layer`` of what the decoder's
            ``extract_features`` returns, so that the logits of few tokens are in memory at a time.
        precision: ``float32``, or ``bfloat16`` to run the networks under autocast. Sums are float32
            in any case, and so are the logits of the text's tokens if the output layer is linear.
        batch_tokens: Maximum number of text tokens in a batch, padding included; a longer text is a
            batch of its own.
        chunk_bytes: Maximum size of the logits in memory, in bytes.
    """

    def __init__(
        self,
        models: Sequence[Any],
        read: Callable[[Any], dict[str, Any]],
        collater: Callable[[list[dict[str, Any]]], dict[str, Any]],
        *,
        group: Callable[[Any], int] = lambda condition: 0,
        has_features: bool = True,
        precision: str = "float32",
        batch_tokens: int = 4000,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.models = models
        self.read = read
        self.collater = collater
        self.group = group
        self.has_features = has_features
        self.precision = precision
        self.batch_tokens = batch_tokens
        self.chunk_bytes = chunk_bytes
        self.device = next(models[0].parameters()).device

    @torch.no_grad()
    def batches(
        self, pairs: Sequence[Pair], *, log_probs_of: Optional[LogProbs] = None
    ) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Score the texts of pairs, batch by batch.

        Yields, for each batch, the indices of its pairs in ``pairs``, and for each of these pairs
        log P of the text's tokens, [tokens] float32 on the CPU. Every pair is in exactly one batch.

        ``log_probs_of`` computes log P [N] of N tokens from a list of the hidden states [N, E] of
        each model, and the tokens' indices [N]; by default, probabilities are averaged over models.
        """
        groups = [self.group(condition) for condition, _ in pairs]
        batches: list[list[int]] = []
        # the longest first: a batch that does not fit into memory fails at once, not after hours
        for number in sorted(range(len(pairs)), key=lambda n: (groups[n], -len(pairs[n][1]))):
            if (
                not batches
                or groups[batches[-1][0]] != groups[number]
                or len(pairs[batches[-1][0]][1]) * (len(batches[-1]) + 1) > self.batch_tokens
            ):
                batches.append([])
            batches[-1].append(number)
        read = lru_cache(16)(self.read)
        for batch in batches:
            rows = [
                {
                    **read(pairs[number][0]),
                    "id": number,
                    "is_first": True,
                    "target": torch.tensor(pairs[number][1]),
                }
                for number in batch
            ]
            sample = utils.apply_to_sample(lambda x: x.to(self.device), self.collater(rows))
            # the collater sorts examples by the length of their source, if they have one
            numbers = sample["id"].tolist()
            yield numbers, self._score(sample, [pairs[number] for number in numbers], log_probs_of)

    def _score(
        self, sample: dict[str, Any], pairs: Sequence[Pair], log_probs_of: Optional[LogProbs]
    ) -> list[Tensor]:
        lengths = [len(text) for _, text in pairs]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        mask = mask.to(self.device)
        target = sample["target"][mask]
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"
        ):
            if self.has_features:
                # without padding: the output layer is the largest part of the work
                features = [
                    self._extract_features(model, sample["net_input"], pairs)[mask]
                    for model in self.models
                ]
                if log_probs_of is not None:
                    log_probs = log_probs_of(features, target)
                else:
                    of_models = [
                        word_log_probs(model.decoder, hidden, target, chunk_bytes=self.chunk_bytes)
                        for model, hidden in zip(self.models, features)
                    ]
                    log_probs = mean_log_probs(of_models)
            else:
                of_models = []
                for model in self.models:
                    logits, *others = model(**sample["net_input"])
                    all_log_probs = model.get_normalized_probs(  # [B, T, V]
                        (logits.float(), *others), log_probs=True, sample=sample
                    )
                    of_models.append(all_log_probs[mask].gather(1, target.unsqueeze(1)).squeeze(1))
                log_probs = mean_log_probs(of_models)
        check_finite(log_probs, "a word")
        return list(log_probs.cpu().split(lengths))

    def _extract_features(
        self, model: Any, net_input: dict[str, Tensor], pairs: Sequence[Pair]
    ) -> Tensor:
        """Return the hidden states [B, T, E] from which the words of B texts are predicted."""
        inputs = dict(net_input)
        previous = inputs.pop("prev_output_tokens")
        if not inputs:  # of a language model
            return model.decoder.extract_features(previous)[0]
        places: dict[Any, int] = {}
        order = [places.setdefault(condition, len(places)) for condition, _ in pairs]
        first = torch.tensor([order.index(place) for place in places.values()])
        encoder_out = model.encoder(**{key: x[first.to(x.device)] for key, x in inputs.items()})
        if len(places) < len(pairs):
            rows = torch.tensor(order, device=self.device)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, rows)
        return model.decoder.extract_features(previous, encoder_out)[0]
