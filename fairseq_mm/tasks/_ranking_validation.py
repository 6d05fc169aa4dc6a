"""Validates an embedding model by ranking images and sentences.

The scores are R@1, R@5, R@10 and median rank in both directions, and rsum, the sum of the six
recalls. The directions are i2t, from images to sentences, and t2i, from sentences to images.
Ranking compares all images of a split with all its sentences, so the scores are no sums over
batches. The first validation step therefore embeds the whole split, a part in each process. Every
step logs the same values, so averaging over steps and processes leaves them unchanged.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
import torch
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from torch import Tensor

from fairseq_mm.data.collate import pad_tokens
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.ranks import RECALL_AT, summarize_ranks, true_ranks

BATCH = 128  # images or sentences that are embedded at a time, which bounds the memory

DIRECTIONS = ("i2t", "t2i")
GROWING = (*(f"{direction}_r{k}" for direction in DIRECTIONS for k in RECALL_AT), "rsum")
FALLING = tuple(f"{direction}_medr" for direction in DIRECTIONS)
_COUNT = "_ranking_count"


class RankingValidation:
    """Cache of a model's ranking scores on whole splits; :meth:`forget` empties it."""

    def __init__(self) -> None:
        self._scores: dict[str, dict[str, float]] = {}
        # weak, so that a task keeps no discarded model in memory
        self._model: Optional[weakref.ref] = None

    def forget(self) -> None:
        """Empty the cache of scores. Call this when the model may have changed."""
        self._scores.clear()

    def get_scores(
        self, split: str, datasets: Mapping[str, Any], model: Any, device: torch.device
    ) -> dict[str, float]:
        """Return the scores to log for a batch; only the first call for a split computes them.

        Args:
            model: Model in evaluation mode; may be wrapped for several processes. Every process
                must call this method equally often.
        """
        # fairseq-validate calls no begin_valid_epoch: another model is noticed only here
        if self._model is None or self._model() is not model:
            self.forget()
            self._model = weakref.ref(model)
        if split not in self._scores:
            scores = ranking_scores(*embed_split(datasets[split], model, device))
            self._scores[split] = {_COUNT: 1, **scores}
        return dict(self._scores[split])


@torch.no_grad()
def embed_split(
    dataset: Any, model: Any, device: torch.device
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embed each image and each sentence of a split once.

    With several processes, each process embeds a part of the split, so every process must call this
    function equally often.

    Returns:
        images: [I, K] float32 vectors of the images, in ascending order of the numbers that
            ``dataset.item`` gives them.
        sentences: [S, K] float32 vectors of the sentences, in the order of
            ``dataset.ordered_indices()``.
        items: [S] index in ``images`` of each sentence's image.
    """
    order = dataset.ordered_indices()  # sorted by length, for less padding
    lines = dataset.lines[order]
    _, first, items = np.unique(dataset.item[lines], return_index=True, return_inverse=True)
    pad = dataset.target_dictionary.pad()

    def embed_images(indices: np.ndarray) -> Tensor:
        net_input = dataset.collater([dataset[i] for i in indices])["net_input"]
        features, padding_mask = net_input["features"], net_input["padding_mask"]
        return model.embed_images(features.to(device), padding_mask.to(device))

    def embed_sentences(numbers: np.ndarray) -> Tensor:
        tokens = pad_tokens([dataset.target[line] for line in numbers], pad)
        return model.embed_sentences(tokens.to(device))

    images = _embed_shared(order[first], embed_images)
    sentences = _embed_shared(lines, embed_sentences)
    if not (np.isfinite(images).all() and np.isfinite(sentences).all()):
        raise UserError(
            "the model's embeddings are NaN or infinite, and cannot be ranked: take a smaller --lr "
            "or --clip-norm."
        )
    return images, sentences, items.reshape(-1)


def _embed_shared(values: np.ndarray, embed: Callable[[np.ndarray], Tensor]) -> np.ndarray:
    """Return the embeddings [N, K] of N examples; each process computes a part of the examples.

    ``values`` [N] are the indices of the examples. ``embed`` is a function from n indices to
    embeddings [n, K].
    """
    processes = distributed.get_data_parallel_world_size()
    # get_data_parallel_rank fails if there is no process group
    rank = distributed.get_data_parallel_rank() if processes > 1 else 0
    part = np.array_split(values, processes)[rank]
    batches = [part[start : start + BATCH] for start in range(0, len(part), BATCH)]
    parts: list[Any] = [[embed(batch).float().cpu().numpy() for batch in batches]]
    if processes > 1:
        own, parts = parts[0], [None] * processes
        # not fairseq's all_gather_list, whose buffer has 16 KB
        group = distributed.get_data_parallel_group()
        torch.distributed.all_gather_object(parts, own, group=group)
    return np.concatenate([vectors for part in parts for vectors in part])


def ranking_scores(
    images: np.ndarray, sentences: np.ndarray, items: np.ndarray
) -> dict[str, float]:
    """Compute retrieval scores in both directions; ties count as errors.

    Args:
        images: [I, K] vectors of the images.
        sentences: [S, K] vectors of the sentences.
        items: [S] index in ``images`` of each sentence's image.

    Returns:
        Dictionary with the recalls ``i2t_r1``, ``i2t_r5`` and ``i2t_r10`` (in percent) and the
        median rank ``i2t_medr`` of sentences retrieved by an image; the same scores with ``t2i_``
        for images retrieved by a sentence; and ``rsum``, the sum of the six recalls.
    """
    indices: Any = np.arange(len(images))
    image_of: Any = items
    ranks = {
        "i2t": true_ranks(lambda a, b: images[a:b] @ sentences.T, indices, image_of),
        "t2i": true_ranks(lambda a, b: sentences[a:b] @ images.T, image_of, indices),
    }
    scores: dict[str, float] = {}
    rsum = 0.0
    for direction, direction_ranks in ranks.items():
        summary = summarize_ranks(direction_ranks)
        for k, recall in summary.recall_at.items():
            scores[f"{direction}_r{k}"] = recall
            rsum += recall
        scores[f"{direction}_medr"] = float(summary.median_rank)
    return {**scores, "rsum": rsum}


def log_ranking(logging_outputs: list[dict[str, Any]]) -> None:
    """Log the ranking scores of validation, if ``logging_outputs`` contain any.

    ``logging_outputs`` has one dict per validation step and process. All have the same scores, so
    their mean is logged.
    """

    def total(key: str) -> float:
        return float(sum(log.get(key, 0) for log in logging_outputs))

    count = total(_COUNT)
    if not count:
        return  # a training step, for which fairseq calls reduce_metrics, too
    for key in (*GROWING, *FALLING):
        metrics.log_scalar(key, total(key) / count, weight=count, round=2)
