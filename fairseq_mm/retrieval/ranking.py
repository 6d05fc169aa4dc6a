"""Retrieves images for a sentence, and sentences for an image, by likelihood.

Mao et al. 2015, section 5, rank images I for a sentence s by P(s | I), and sentences for an image
by P(s | I) / P(s) (equation 7). In section 9.2, only sentences of the images nearest to the query
image are ranked. Section 5 describes another ranking of sentences, by Kiros et al. 2014b: their
perplexity given the mean training image, divided by their perplexity given the query image.
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
    """Sort sentences by their token indices, and return the indices of each block of sentences.

    The sentences of a block then often have the same first words, which are computed only once.
    The larger ``num_images``, with which each sentence will be scored, the smaller the blocks.
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
    *,
    on_block: Callable[[int], object],
) -> None:
    """Compute the blocks of scores that a score file lacks.

    Args:
        file: Score file of ``sentences`` and I images.
        likelihood: Function that computes log P(sentence | image) for sentences and all images: I
            images to rank, then sampled images. P(sentence) is the mean of P(sentence | image) over
            the sampled images; without them, it is stored as 1.
        sentences: Token indices of each sentence.
        blocks: Indices of the sentences of each block, see :func:`sentence_blocks`.
        on_block: Function that is called after each block with its number of sentences.
    """
    num_images = file.log_probs.shape[1]
    for members in blocks:
        if not file.has(members):
            scores = likelihood([sentences[i] for i in members])
            check_finite(scores)
            log_probs = scores.cpu().numpy()
            marginals = np.zeros(len(members))
            if log_probs.shape[1] > num_images:
                marginals = log_marginal(log_probs[:, num_images:])
            file.write(members, log_probs[:, :num_images], marginals)
        on_block(len(members))


def nearest_images(features: np.ndarray, count: int, *, block: int = 256) -> np.ndarray:
    """Find the images nearest to each image, as in Mao et al. 2015, section 9.2.

    Args:
        features: [I, D] features of I images, which are compared by the Euclidean distance.
        count: Number of images to return for each image.
        block: Number of images whose distances to all images are in memory at once.

    Returns:
        Indices [I, count], nearest first. Each image is its own nearest image; equally distant
        images are in the order of their indices.
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
    """Rank the images for each sentence by P(sentence | image).

    Args:
        log_probs: [sentences, images] log P(sentence | image).
        image_of_sentence: [sentences] index of the image that each sentence describes.
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
    """Rank the sentences s for each image I by P(s | I) / P(s) (Mao et al. 2015, equation 7).

    To rank by a ratio of perplexities, first divide ``log_probs`` and ``log_marginals`` by the
    number of tokens of each sentence.

    Args:
        log_probs: [S, I] log P(s | I) of S sentences and I images.
        log_marginals: [S] log P(s); zeros to rank by P(s | I).
        image_of_sentence: [S] index of the image that each sentence describes.
        shortlist: [I, count] indices, for each image, of the images whose sentences are candidates,
            see :func:`nearest_images`; None to rank all sentences.
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
