"""Retrieves images for a sentence, and sentences for an image, by likelihood.

Mao et al. 2015, section 5, rank images I for a sentence s by P(s | I), and sentences for an image
by P(s | I) / P(s) (equation 7). In section 9.2, only sentences of the images nearest to the query
image are ranked. Section 5 describes another ranking of sentences, by Kiros et al. 2014b: their
perplexity given the mean training image, divided by their perplexity given the query image.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
from torch import Tensor

from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.ranks import TrueRanks, true_ranks
from fairseq_mm.retrieval.likelihood import Likelihood, check_finite, log_marginal
from fairseq_mm.retrieval.score_file import ScoreFile

# Pairs of a word and an image in a block: what a kill may lose, some 10 s of a CPU core.
_BLOCK_PAIRS = 400_000


def sentence_blocks(sentences: Sequence[Sequence[int]], num_images: int) -> list[np.ndarray]:
    """Sort sentences by token indices, so that neighbours share first words, which are computed
    once; divide them into blocks, and return each block's indices. More images make blocks
    smaller."""
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


class SplitToRank:
    """Sentences and images of a split to rank, and further images to estimate P(sentence).

    P(sentence) is the mean of P(sentence | image) over the further images. The name of an image is
    its key in the feature store; several keys of a line, joined by tabs, count as one image.

    Args:
        dataset: :class:`~fairseq_mm.data.multimodal_dataset.MultimodalDataset` with all lines of
            the split.
        max_images: Number of images of the split to use, from the first, with their sentences; None
            for all.
        sampled: Names of the further images, from the training split. Their indices follow the
            indices of the split's images.
        mean_image: [1, D] mean features of the training images, used as one more further image with
            the last index; None for no such image.

    Attributes:
        images: Images of the split, in order of first appearance.
        lines: Line number of each sentence in the split.
        sentences: Token indices of each sentence, with the end token.
        image_of_sentence: [sentences] index in ``images`` of each sentence's image.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        max_images: Optional[int] = None,
        sampled: Optional[list[str]] = None,
        mean_image: Optional[np.ndarray] = None,
    ) -> None:
        self.store = dataset.features
        self.images = list(dict.fromkeys(dataset.visual_ids))[:max_images]
        places = {image: place for place, image in enumerate(self.images)}
        self.lines = [i for i, image in enumerate(dataset.visual_ids) if image in places]
        self.image_of_sentence = np.array([places[dataset.visual_ids[i]] for i in self.lines])
        self.sentences = [tuple(dataset.target[i].tolist()) for i in self.lines]
        self.sampled = sampled or []
        self.mean_image = mean_image

    def __len__(self) -> int:
        """Return the number of all images: the split's images and the further images."""
        return len(self.images) + len(self.sampled) + (self.mean_image is not None)

    def rows(self, place: int) -> np.ndarray:
        """Return the features ``[N, D]`` of image ``place``; the further images come last."""
        count = len(self.images)
        if self.mean_image is not None and place == len(self) - 1:
            return self.mean_image
        image = self.images[place] if place < count else self.sampled[place - count]
        return np.concatenate([self.store.read(key) for key in image.split("\t")])

    def read_images(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return features [B, N, D] and padding mask [B, N] of images ``start`` to ``end - 1``."""
        return pad_features([self.rows(place) for place in range(start, end)])

    def identity(self) -> dict[str, Any]:
        """Return digests of sentences and images, and the number of images for the prior."""
        # with their lengths, so that no two lists of sentences have the same digits
        words = np.concatenate([[len(words), *words] for words in self.sentences])
        return {
            "sentences": _digest(words, self.image_of_sentence),
            "images": _digest(*(self.rows(place) for place in range(len(self.images)))),
            "marginal_images": len(self.sampled),
            "sampled_images": _digest(
                *(self.rows(place) for place in range(len(self.images), len(self)))
            ),
        }


def sample_training_images(folder: str, count: int, seed: int) -> list[str]:
    """Sample ``count`` different images of the training split of a data folder, in random order."""
    split = open_split(folder, "train")
    # each image once, although it has a line for each of its captions
    images = list(dict.fromkeys(split.keys or ()))
    if len(images) < count:
        raise UserError(
            f"--marginal-images {count}: the {len(images)} images of {split.path} are too few."
        )
    # the beginning of a permutation, so that a larger sample contains a smaller one
    return [images[i] for i in np.random.default_rng(seed).permutation(len(images))[:count]]


def mean_training_image(folder: str, store: Any) -> np.ndarray:
    """Return the mean ``[1, D]`` of the features of a data folder's training images, each the mean
    of its regions."""
    images = dict.fromkeys(open_split(folder, "train").keys or ())
    total = np.zeros(1)
    for image in images:
        rows = np.concatenate([store.read(key) for key in image.split("\t")])
        # in float64: a sum of 100,000 float32 images would lose digits
        total = total + rows.mean(0, dtype=np.float64)
    return (total / len(images)).astype(np.float32)[None]


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        # with shape and type: equal bytes of another shape are other features
        digest.update(repr((array.shape, array.dtype.str)).encode() + array.tobytes())
    return digest.hexdigest()[:12]
