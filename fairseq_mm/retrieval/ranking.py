"""Retrieval by likelihood: images for a sentence, sentences for an image.

Mao et al. 2015, section 5: images I are ranked by P(s | I) for a sentence s, sentences by
P(s | I) / P(s) for an image (equation 7); in section 9.2 only sentences of the images nearest to
the query are ranked. According to section 5, Kiros et al. 2014b rank sentences by a ratio of
perplexities instead: perplexity under the mean training image over perplexity under the query.
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
    """Sort sentences and divide them into blocks, whose sentences have first words in common.

    ``sentences`` are token indices. The larger ``num_images`` is, the number of images with which
    each sentence will be scored, the smaller are the blocks. Returns the indices of the sentences
    of each block.
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
    """Compute the blocks of scores that a score file lacks, and finish the file.

    Args:
        file: Score file of ``sentences`` and the first ``num_images`` images of ``likelihood``.
        likelihood: Function that computes log P(sentence | image) for the images to rank, followed
            by the images over which P(sentence) is the mean, if any.
        sentences: Token indices of each sentence.
        blocks: Indices of the sentences of each block, see :func:`sentence_blocks`.
        num_images: Number of images to rank.
        on_block: Function that is called with the number of sentences of each block that has been
            written.
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
    """Return the indices [I, count] of the ``count`` images nearest to each image (Mao et al. 2015,
    section 9.2).

    The I images are compared by the Euclidean distance of their ``features`` [I, D]. The image
    itself comes first; of two images at the same distance, the earlier one comes first. Distances
    of ``block`` images to all others are in memory at once.
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

    ``log_probs`` are log P(sentence | image), [sentences, images]; ``image_of_sentence``
    [sentences] is the index of the image that each sentence describes.
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

    If log P(s | I) and log P(s) are divided by the number of tokens, sentences are ranked by a
    ratio of perplexities.

    Args:
        log_probs: [S, I] log P(s | I) of S sentences and I images.
        log_marginals: [S] log P(s); zeros to rank by P(s | I).
        image_of_sentence: [S] index of the image that each sentence describes.
        shortlist: [I, count] indices of the images whose sentences are ranked for each image; None
            to rank all sentences.
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
