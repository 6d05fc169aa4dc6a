"""What captions of an image are conditioned on: vectors near it in the space of an embedding.

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 5.2 of the supplementary material. https://arxiv.org/abs/1411.2539
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairseq_mm.retrieval.vector_index import nearest, unit_vectors

# the image's own vector, or the mean of the words' or training sentences' nearest to it
CONDITIONS = ("image", "words", "sentences")


class TrainingSentences(NamedTuple):
    """Captions that a model was trained on.

    Attributes:
        lines: words separated by spaces.
        ids: images that the captions belong to.
        vectors: ``[n, K]`` float32 of unit length.
    """

    lines: list[str]
    ids: list[str]
    vectors: np.ndarray


class NearestSentence(NamedTuple):
    """The training sentence that is nearest to an image.

    Attributes:
        caption: its words, separated by spaces.
        id: of the image that it belongs to.
        line: of the training text, counted from 0.
        cosine: between the vectors of sentence and image.
    """

    caption: str
    id: str
    line: int
    cosine: float


class Neighbourhood(NamedTuple):
    """What surrounds B images.

    Attributes:
        conditions: ``[B, C, K]`` float32 of unit length, for each condition asked for.
        nearest: of each image.
    """

    conditions: np.ndarray
    nearest: list[NearestSentence]


def find_conditions(
    images: np.ndarray,
    words: np.ndarray,
    sentences: TrainingSentences,
    *,
    names: Sequence[str] = CONDITIONS,
    num_nearest: int = 5,
) -> Neighbourhood:
    """A mean is brought to unit length, as the vectors are that the language model is trained on;
    models that scale their content vector to a mean square of one would see no difference.

    Args:
        images: ``[B, K]`` float32 of unit length.
        words: ``[W, K]`` float32 of unit length, each of a sentence of one word.
        sentences: of training.
        names: of ``CONDITIONS``, C of them.
        num_nearest: words or sentences of a mean, by cosine; all where there are fewer.
    """
    lines, cosines = nearest(images, sentences.vectors, min(num_nearest, len(sentences.lines)))
    found = []
    for name in names:
        if name == "image":
            found.append(images)
        elif name == "words":
            places, _ = nearest(images, words, min(num_nearest, len(words)))
            found.append(unit_vectors(words[places].mean(1), "mean of words'"))
        else:
            means = sentences.vectors[lines].mean(1)
            found.append(unit_vectors(means, "mean of sentences'"))
    first = [
        NearestSentence(sentences.lines[line], sentences.ids[line], line, cosine)
        for line, cosine in zip(lines[:, 0].tolist(), cosines[:, 0].tolist())
    ]
    return Neighbourhood(np.stack(found, axis=1), first)
