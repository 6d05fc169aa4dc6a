"""Retrieval by likelihood: images for a sentence, sentences for an image.

Mao et al. 2015, section 5. Images are ranked by P(s | I), sentences by P(s | I) / P(s)
(equation 7), in section 9.2 among the sentences of the query's nearest images. Kiros et al. 2014b,
as section 5 describes them, divide perplexities instead: of a sentence under the mean training
image, by that under the query.
"""

from collections.abc import Sequence
from typing import Callable, Optional

import numpy as np

from fairseq_mm.metrics.ranks import TrueRanks, true_ranks
from fairseq_mm.retrieval.likelihood import Likelihood, check_finite, log_marginal
from fairseq_mm.retrieval.score_file import ScoreFile

# Pairs of a word and an image in a block: what a kill may lose, some 10 s of a CPU core.
_BLOCK_PAIRS = 400_000


def sentence_blocks(sentences: Sequence[Sequence[int]], num_images: int) -> list[np.ndarray]:
    """Divide sentences into blocks of similar sentences, which share their beginnings.

    Each sentence is scored with ``num_images`` images. Returns the indices of the sentences of each
    block.
    """
    order = sorted(range(len(sentences)), key=lambda i: tuple(sentences[i]))
    words = sum(len(sentence) for sentence in sentences) / len(sentences)
    size = min(max(1, round(_BLOCK_PAIRS / (words * num_images))), 512)
    return [np.array(order[i : i + size]) for i in range(0, len(order), size)]


def fill_scores(
    file: ScoreFile,
    likelihood: Likelihood,
    sentences: Sequence[Sequence[int]],
    blocks: Sequence[np.ndarray],
    num_images: int,
    *,
    on_block: Callable[[int], object],
) -> None:
    """Compute the blocks that the file lacks, see :func:`sentence_blocks`, and finish the file.

    ``likelihood`` is of ``num_images`` images to rank, followed by the images of the marginal, if
    any. ``on_block`` receives the number of sentences of each block that is on disk.
    """
    for block, members in enumerate(blocks):
        if block in file.finished_blocks:
            continue
        scores = likelihood([sentences[i] for i in members])
        check_finite(scores)
        log_probs = scores.cpu().numpy()
        marginals = np.zeros(len(members))
        if log_probs.shape[1] > num_images:
            marginals = log_marginal(log_probs[:, num_images:])
        file.write_block(block, members, log_probs[:, :num_images], marginals)
        on_block(len(members))
    file.finish()


def nearest_images(features: np.ndarray, count: int, *, block: int = 256) -> np.ndarray:
    """Compute the shortlists [I, count] of section 9.2, by Euclidean distance of features [I, D].

    The query itself comes first, and the earlier of two images at the same distance. Distances of
    ``block`` queries are in memory at once.
    """
    squares = (features**2).sum(1)
    nearest = []
    for start in range(0, len(features), block):
        queries = np.arange(start, min(start + block, len(features)))
        # the query's own square is left out: it changes no order
        distances = squares - 2 * features[queries] @ features.T
        # rounding may put an equal image before the query itself
        distances[np.arange(len(queries)), queries] = -np.inf
        nearest.append(np.argsort(distances, axis=1, kind="stable")[:, :count])
    return np.concatenate(nearest)


def rank_images(log_probs: np.ndarray, image_of_sentence: np.ndarray) -> TrueRanks:
    """Rank the images for each sentence by P(s | I).

    ``log_probs`` are [S, I], ``image_of_sentence`` [S] are the true images.
    """
    return true_ranks(
        lambda start, end: log_probs[start:end], image_of_sentence, np.arange(log_probs.shape[1])
    )


def rank_sentences(
    log_probs: np.ndarray,
    log_marginals: np.ndarray,
    image_of_sentence: np.ndarray,
    shortlist: Optional[np.ndarray] = None,
) -> TrueRanks:
    """Rank the sentences for each image by P(s | I) / P(s) (equation 7).

    If both arguments are divided by the number of tokens, this ranks by the ratio of perplexities.

    Args:
        log_probs: [S, I].
        log_marginals: [S] log P(s); zeros to rank by P(s | I).
        image_of_sentence: [S] the image that each sentence describes.
        shortlist: [I, count] images whose sentences are ranked for each image; None for all.
    """
    num_images = log_probs.shape[1]

    def score_block(start: int, end: int) -> np.ndarray:
        # in float64: rounding the ratios to float32 would make ties
        scores = (log_probs[:, start:end] - log_marginals[:, None]).T  # [q, S] float64
        if shortlist is not None:
            is_listed = np.zeros((end - start, num_images), dtype=bool)
            np.put_along_axis(is_listed, shortlist[start:end], True, axis=1)
            # -inf takes a sentence out of the list, so that ranks count only listed sentences
            scores[~is_listed[:, image_of_sentence]] = -np.inf
        return scores

    return true_ranks(score_block, np.arange(num_images), image_of_sentence)
