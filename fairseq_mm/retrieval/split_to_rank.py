"""Collects sentences and images of a split to rank, and training images to estimate P(sentence)."""

import hashlib
from typing import Any, Optional

import numpy as np
from torch import Tensor

from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError


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
        """Return the features ``[N, D]`` of image ``place``; further images are last."""
        count = len(self.images)
        if self.mean_image is not None and place == len(self) - 1:
            return self.mean_image
        image = self.images[place] if place < count else self.sampled[place - count]
        return np.concatenate([self.store.read(key) for key in image.split("\t")])

    def read_images(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Return features [B, N, D] and padding mask [B, N] of images ``start`` to ``end - 1``."""
        return pad_features([self.rows(place) for place in range(start, end)])

    def mean_features(self) -> np.ndarray:
        """Return the mean features over the regions of each image of the split, ``[images, D]``."""
        return np.stack(
            [self.rows(place).mean(0, dtype=np.float32) for place in range(len(self.images))]
        )

    def identity(self) -> dict[str, Any]:
        """Return digests of sentences and images, and the number of sampled images."""
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
    """Return the mean ``[1, D]`` of the features of a data folder's training images.

    ``store`` is the feature store of the images. If an image has several regions, their mean is
    the image's feature.
    """
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
