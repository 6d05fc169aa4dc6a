"""Prepares and ranks candidate captions of the structure-content model (``sc_nlm``): computes the
vectors and samples the part-of-speech sequences from which candidates are generated, and computes
the scores of candidates.

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 5.2 of the supplementary material. https://arxiv.org/abs/1411.2539
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.data.pos_sequences import LONGEST, SHORTEST, sample_pos_sequences
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import check_declared, declare
from fairseq_mm.retrieval.nearest_vectors import nearest, unit_vectors

CONDITIONS = ("image", "words", "sentences", "concepts")
DEFAULT_CONDITIONS = CONDITIONS[:3]
# sample structures from all training sentences (by frequency), or from the set of different ones
POS_SAMPLING = ("frequency", "types")

# words that say little about an image, by their universal tag, and auxiliaries
FUNCTION_WORDS_BY_TAG = {
    "DET": (
        "a an the this that these those some any each every another both all no its his her "
        "their our my your either neither what which whose"
    ),
    "PRON": (
        "he she it they we you i him them us me himself herself itself themselves each-other "
        "who someone something somebody everyone nothing one-another others there one"
    ),
    "ADP": (
        "in on at by with of from into onto over under above below behind beside besides "
        "between among through across along around near off toward towards against during "
        "after before for about outside inside underneath beneath atop amongst within without "
        "upon past like down up out as next alongside whilst via until since despite while "
        "because if although though so than"
    ),
    "CONJ": "and or but nor yet &",
    "PRT": "to not n't 's '",
}
_AUXILIARIES = (
    "is are was were be been being am has have had having do does did can could will would may "
    "might must should"
)
_FUNCTION_WORDS = frozenset(" ".join([*FUNCTION_WORDS_BY_TAG.values(), _AUXILIARIES]).split())


class TrainingSentences(NamedTuple):
    """Training captions as words separated by spaces, ids of their images (None without images),
    and vectors of the captions: [captions, K] float32 of unit length.
    """

    lines: list[str]
    ids: Sequence[Optional[str]]
    vectors: np.ndarray


class NearestSentence(NamedTuple):
    """Training sentence nearest to an image: its words, the id of its image (None without images),
    its line from 0, and the cosine of both vectors.
    """

    caption: str
    id: Optional[str]
    line: int
    cosine: float


class Neighbourhood(NamedTuple):
    """Vectors from which captions of B images are generated, and nearest training sentences.

    Attributes:
        conditions: [B, C, K] float32 vectors of unit length: one for each image and each condition,
            such as ``image`` or ``words``, in the order of ``names`` in :func:`find_conditions`.
        nearest: Nearest training sentence of each image.
    """

    conditions: np.ndarray
    nearest: list[NearestSentence]


def find_conditions(
    images: np.ndarray,
    words: np.ndarray,
    sentences: TrainingSentences,
    *,
    names: Sequence[str] = DEFAULT_CONDITIONS,
    num_nearest: int = 5,
) -> Neighbourhood:
    """Compute the vectors, called conditions, from which captions of images are generated.

    The condition ``image`` is the image's own vector, ``words`` is the mean vector of the nearest
    words, ``sentences`` the mean of the nearest training sentences, and ``concepts`` the mean of
    these words and sentences together. Means are scaled to unit length.

    Args:
        images: [B, K] float32 vectors of the images, of unit length.
        words: [W, K] float32 vectors of the W words of the vocabulary, of unit length; each word
            was embedded as a sentence of one word.
        sentences: Training sentences.
        names: Names of the conditions to compute, from ``CONDITIONS``.
        num_nearest: Number of nearest words, and of nearest sentences, by cosine with the image;
            all are taken if there are fewer.

    Returns:
        The conditions and the nearest training sentence of each image.
    """
    # means of unit length, like the vectors that the captioner was trained on
    lines, cosines = nearest(images, sentences.vectors, min(num_nearest, len(sentences.lines)))
    near_sentences = sentences.vectors[lines]  # [B, N, K]
    places, _ = nearest(images, words, min(num_nearest, len(words)))
    near_words = words[places]
    groups = {
        "words": near_words,
        "sentences": near_sentences,
        "concepts": np.concatenate([near_words, near_sentences], axis=1),
    }
    vectors = [
        images if name == "image" else unit_vectors(groups[name].mean(1), f"mean of {name}'")
        for name in names
    ]
    first = [
        NearestSentence(sentences.lines[line], sentences.ids[line], line, cosine)
        for line, cosine in zip(lines[:, 0].tolist(), cosines[:, 0].tolist())
    ]
    return Neighbourhood(np.stack(vectors, axis=1), first)


LANGUAGE_SCORES = ("word", "sentence")


@dataclass(frozen=True)
class CandidateWeights:
    """Weights of the score by which candidate captions are ranked:

        score = translation_weight * repeat_penalty^r * cosine + language_weight * log_prob

    where r is the number of content words that occurred before in the same candidate. If the cosine
    is negative, the factor ``repeat_penalty^r`` is left out. Kiros et al. 2014 set the weights by
    hand; the defaults here were tuned on 100 images of Flickr8k's dev split.

    Args:
        translation_weight: Weight of the cosine between the vectors of image and candidate.
        language_weight: Weight of the candidate's log-probability under an n-gram model.
        language_score: ``word`` for the mean log-probability of the candidate's words and ``</s>``;
            ``sentence`` for the sum, as in Kiros et al. 2014. The sum favours short candidates,
            even if they fit the image badly.
        repeat_penalty: Penalty of a repeated content word, a factor from 0 to 1; 1 is no penalty.
    """

    translation_weight: float = declare(1.0, 0)
    language_weight: float = declare(0.2, 0)
    language_score: str = declare("word", choices=LANGUAGE_SCORES)
    repeat_penalty: float = declare(0.7, 0, 1)

    def __post_init__(self) -> None:
        check_declared(self)


class CandidateScores(NamedTuple):
    """Scores of the n candidate captions of an image; :class:`CandidateWeights` has the formula.

    Attributes:
        score: [n] weighted sums by which the candidates are ranked.
        cosine: [n] cosines between the vectors of image and candidate, without penalty.
        log_prob: [n] natural log-probabilities of the candidates: the mean or the sum over words
            and ``</s>``, see ``language_score`` of :class:`CandidateWeights`.
        penalty: [n] penalties ``repeat_penalty^r`` for repeated content words.
    """

    score: np.ndarray
    cosine: np.ndarray
    log_prob: np.ndarray
    penalty: np.ndarray


def count_repetitions(words: Sequence[str]) -> int:
    """Count the content words that occurred before in the same sentence; ignore function words."""
    counts = Counter(word for word in words if word not in _FUNCTION_WORDS)
    return sum(counts.values()) - len(counts)


def score_candidates(
    sentences: Sequence[Sequence[str]],
    cosines: np.ndarray,
    log_probs: np.ndarray,
    weights: CandidateWeights,
) -> CandidateScores:
    """Compute the scores of the n candidate captions of one image.

    ``cosines`` [n] are between image and candidate; ``log_probs`` [n] are sums of natural
    log-probabilities over the candidate's words and ``</s>``.
    """
    if weights.language_score == "word":
        # the end of the sentence is predicted, too, so it counts as a word
        log_probs = log_probs / np.array([len(words) + 1 for words in sentences])
    repetitions = np.array([count_repetitions(words) for words in sentences])
    penalties = weights.repeat_penalty ** repetitions.astype(np.float64)
    cosines = cosines.astype(np.float64)
    # a factor below 1 raises a negative cosine: it stays as it is
    penalised = np.minimum(cosines, cosines * penalties)
    scores = weights.translation_weight * penalised + weights.language_weight * log_probs
    return CandidateScores(scores, cosines, log_probs, penalties)


@dataclass(frozen=True)
class StructuredSearch:
    """Options for generating and ranking candidate captions.

    A candidate is generated from a condition (a vector that says what the caption is about) and a
    structure (a sequence of part-of-speech tags). "Paper" is Kiros et al. 2014.

    Args:
        candidates: Number of sampled pairs of condition and structure for each image.
        conditions: Names of the conditions to sample from, see :func:`find_conditions`. The paper
            samples from ``image`` and ``concepts``.
        num_nearest: Number of nearest words, and of nearest training sentences, whose mean vector
            is a condition.
        pos_sampling: ``frequency`` to sample structures by their frequency in training, ``types``
            to sample all structures equally often, as the paper does.
        shortest: Minimum number of tags of a structure.
        longest: Maximum number of tags of a structure.
        seed: Seed of the samples. All images have the same seed.
        beam: Beam size for generating the sentence of each pair; 1 is greedy search.
        max_len_b: Maximum number of tokens of a caption; the structure's length does not limit it.
        top: Number of captions to return for each image.
        batch_size: Number of candidates per batch; it changes only the speed.
        weights: Weights of cosine and log-probability in a candidate's score.
    """

    candidates: int = declare(1000, 1)
    conditions: Sequence[str] = DEFAULT_CONDITIONS
    num_nearest: int = declare(5, 1)
    pos_sampling: str = declare("frequency", choices=POS_SAMPLING)
    shortest: int = declare(SHORTEST, 1)
    longest: int = declare(LONGEST, 1)
    seed: int = declare(0)
    beam: int = declare(1, 1)
    max_len_b: int = declare(30, 1)
    top: int = declare(5, 1)
    batch_size: int = declare(1000, 1)
    weights: CandidateWeights = field(default_factory=CandidateWeights)

    def __post_init__(self) -> None:
        check_declared(self)


class Draws(NamedTuple):
    """P different pairs of condition and structure, sorted by the length of the structure.

    Attributes:
        conditions: [P] index of each pair's condition in :attr:`StructuredSearch.conditions`.
        structures: [P] part-of-speech tags of each pair's structure, separated by spaces.
    """

    conditions: list[int]
    structures: list[str]


def draw_pairs(counts: "Counter[str]", search: StructuredSearch) -> Draws:
    """Sample ``search.candidates`` pairs of condition and structure; return each pair once.

    ``counts`` has the number of training captions with each structure.
    """
    lengths = {structure: len(structure.split()) for structure in counts}
    chosen = Counter(
        {s: counts[s] for s, n in lengths.items() if search.shortest <= n <= search.longest}
    )
    if not chosen:
        raise UserError(
            f"there are no structures of {search.shortest} to {search.longest} tags to draw from: "
            f"those of training have {min(lengths.values())} to {max(lengths.values())} "
            "(--shortest, --longest)."
        )
    if search.pos_sampling == "types":
        chosen = Counter(structure for structure, count in chosen.items() if count)
    # the same seed for every image, so that its captions do not depend on the other images
    structures = sample_pos_sequences(chosen, search.candidates, seed=search.seed)
    # a stream of its own: the same numbers would tie conditions to structures
    generator = random.Random(f"conditions {search.seed}")
    conditions = generator.choices(range(len(search.conditions)), k=search.candidates)
    # sorted by length, so that a batch needs little padding
    # and without repetitions: a pair that is sampled twice would give the same sentence
    pairs = sorted(dict.fromkeys(zip(conditions, structures)), key=lambda pair: lengths[pair[1]])
    return Draws([condition for condition, _ in pairs], [structure for _, structure in pairs])
