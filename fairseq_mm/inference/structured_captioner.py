"""Captions images with the structure-content model (``sc_nlm``): generates many candidate captions
per image and keeps the best.

Kiros, Salakhutdinov, Zemel. Unifying Visual-Semantic Embeddings with Multimodal Neural Language
Models. 2014, section 5.2 of the supplementary material. https://arxiv.org/abs/1411.2539

For each image, 1,000 pairs of a condition and a structure are sampled. A condition is the image's
own vector, or the mean vector of the 5 nearest words or training sentences; a structure is the
sequence of part-of-speech tags of a training sentence. For each pair, ``sc_nlm`` generates its most
probable sentence. These candidates are ranked by :mod:`fairseq_mm.inference.candidates`.

The paper has two conditions, the image's own vector and one mean of the nearest words and sentences
together (``conditions=["image", "concepts"]``), and samples all different structures equally often
(``pos_sampling="types"``). By default, the means of words and of sentences are separate conditions,
and structures are sampled by their frequency in training.

    captioner = fairseq_mm.from_pretrained(
        "checkpoints/sc_nlm", embedding="checkpoints/vse_lstm", data="data-bin/flickr8k"
    )
    captioner.caption(["dog.jpg"])[0].captions[0].text

Decides what the paper does not say:
- The most probable sentence is searched for greedily, or by a beam search.
- Conditions and structures are sampled with replacement, conditions all equally often. A sentence
  is generated once for a pair that was sampled twice, and ranked once if several pairs give it.
- :class:`.CandidateWeights` has the weights of the score and a penalty of repeated words.
"""

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch

from fairseq_mm.data.collate import pad_tokens
from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.pos_sequences import TagLines, get_tags
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import AnyImage
from fairseq_mm.generation.config import GenerationConfig, check_names
from fairseq_mm.inference.candidates import (
    CandidateWeights,
    Draws,
    NearestSentence,
    StructuredSearch,
    TrainingSentences,
    draw_pairs,
    find_conditions,
    score_candidates,
)
from fairseq_mm.inference.checkpoint import Checkpoint, LoadedModels, build_models
from fairseq_mm.inference.checkpoint_files import compute_digests
from fairseq_mm.inference.embedder import Embedder, load_embedder
from fairseq_mm.inference.image_processor import CaptionProcessor, list_of_several
from fairseq_mm.inference.processor import Example, Processor
from fairseq_mm.inference.set_up import Picklable
from fairseq_mm.ngrams.arpa import LanguageModel, load_language_model
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney
from fairseq_mm.retrieval.nearest_vectors import unit_vectors

logger = logging.getLogger(__name__)


class ScoredCaption(NamedTuple):
    """Candidate caption with its scores, see :class:`.CandidateScores`.

    Attributes:
        condition: Kind of the vector that the caption was generated from, see
            :func:`.find_conditions`.
        structure: Part-of-speech tags that the caption was generated from, separated by spaces.
        nearest: Training sentence that is nearest to the image; None if it was not computed.
    """

    text: str
    score: float
    cosine: float
    log_prob: float
    penalty: float
    condition: str
    structure: str
    nearest: Optional[NearestSentence] = None


class StructuredProcessor(CaptionProcessor):
    """Processor that extracts features of images for :class:`StructuredCaptioner`."""

    def __init__(self, loaded: LoadedModels, embedder: Embedder) -> None:
        Processor.__init__(self, loaded)
        self.reader = embedder
        self.extractor_identity = embedder.identity
        self.embedder = None

    def to_entry(self, hypothesis: ScoredCaption) -> dict[str, Any]:
        parts = ("score", "cosine", "log_prob", "penalty")
        return {
            "hypothesis": hypothesis.text,
            **{part: round(getattr(hypothesis, part), 4) for part in parts},
            "condition": hypothesis.condition,
            "structure": hypothesis.structure,
        }

    def to_record(
        self, record: Mapping[str, Any], example: Example, best: ScoredCaption
    ) -> dict[str, Any]:
        assert best.nearest is not None
        nearest = {**best.nearest._asdict(), "cosine": round(best.nearest.cosine, 4)}
        return {"nearest": nearest}


class StructuredCaption(NamedTuple):
    """Different captions of one image, best first, and the training sentence nearest to it."""

    captions: list[ScoredCaption]
    nearest: NearestSentence


class StructuredCaptioner(Picklable):
    """Captioner of images with an ``sc_nlm`` model, an embedding model and an n-gram model.

    Args:
        decoder: Models of ``--arch sc_nlm``, which generate captions.
        embedder: Embedding model on whose vectors the ``decoder`` was trained.
        sentences: Training sentences with their vectors, among which the sentences nearest to an
            image are searched.
        structures: Number of occurrences in training of each structure, a sequence of
            part-of-speech tags separated by spaces.
        language_model: n-gram model, whose method ``log_probs(sentences)`` returns the natural
            log-probabilities [n] of n sentences, their ends included.
    """

    def __init__(
        self,
        decoder: LoadedModels,
        embedder: Embedder,
        sentences: TrainingSentences,
        structures: "Counter[str]",
        language_model: Any,
    ) -> None:
        embedder.check_vectors(
            decoder.extractor, decoder.feature_dim, what=f"what {decoder.files[0]} was trained on"
        )
        self.decoder = self.loaded = decoder
        self.task = decoder.task
        self.files = decoder.files
        self.sources: dict[str, Any] = {}
        self.processor = StructuredProcessor(decoder, embedder)
        self.embedder = embedder
        self.sentences = sentences
        self.structures = structures
        self.language_model = language_model
        decoder.prepare_for_generation()
        self.tags = decoder.task.structure_dictionary
        if TagLines([*structures], self.tags).num_unknown:
            raise UserError(
                f"{self.files[0]}: does not know all tags of the training structures: give the "
                "data that it was trained on."
            )
        # the dictionaries of the two models may differ in order and size; if the embedding lacks a
        # word of the decoder, it reads <unk>
        theirs = embedder.task.target_dictionary
        symbols = decoder.task.target_dictionary.symbols
        self._embedded_word = [theirs.index(symbol) for symbol in symbols]
        words = [
            [number]
            for number in range(theirs.nspecial, len(theirs))
            # fairseq fills dictionaries up with such symbols, which are no words
            if not theirs[number].startswith("madeupword")
        ]
        self.word_vectors = unit_vectors(embedder.embed_tokens(words), "word")  # [W, K]

    def caption(self, images: Iterable[AnyImage], **options: Any) -> list[StructuredCaption]:
        """Caption images.

        Args:
            images: Paths, contents of files (bytes) or open images.
            **options: Options of :meth:`config`.

        Returns:
            The best captions of each image, in the order of the images.
        """
        images = list_of_several(images, "images")
        search = self.config(**options)
        features = self.embedder.read_all_features(images) if images else []
        return list(self.caption_features(features, search))

    search_options = (
        *("candidates", "conditions", "num_nearest", "pos_sampling", "shortest", "longest", "top"),
        *("translation_weight", "language_weight", "language_score", "repeat_penalty"),
    )

    def config(self, **options: Any) -> StructuredSearch:
        """Build the options of a search; ``options`` are fields of :class:`StructuredSearch` and of
        :class:`.CandidateWeights`."""
        names = [x.name for x in dataclasses.fields(CandidateWeights)]
        weights = {name: options.pop(name) for name in names if name in options}
        known = [x.name for x in dataclasses.fields(StructuredSearch)]
        check_names(options, [*known, *names], "captions by structure")
        return StructuredSearch(**options, weights=CandidateWeights(**weights))

    def stream(
        self, examples: Sequence[Example], search: StructuredSearch, **_: Any
    ) -> Iterator[list[ScoredCaption]]:
        """Yield the captions of each example, as :meth:`.Generator.stream` does."""
        features: list[Any] = [example.features for example in examples]
        for result in self.caption_features(features, search):
            yield [caption._replace(nearest=result.nearest) for caption in result.captions]

    def describe_run(self, search: StructuredSearch, reading: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of JSON records that say how captions were made."""
        options = dataclasses.asdict(search)
        options.update(options.pop("weights"))
        return {
            "extractor": self.embedder.identity,
            "checkpoint": compute_digests(self.files),
            "embedding": compute_digests(self.embedder.files),
            **self.sources,
            "options": options,
        }

    def caption_features(
        self, features: Sequence[np.ndarray], search: StructuredSearch
    ) -> Iterator[StructuredCaption]:
        """Yield the captions of each image from its features [N, D]."""
        if not features:
            return
        images = unit_vectors(self.embedder.embed_features(features), "image")
        neighbours = find_conditions(
            images,
            self.word_vectors,
            self.sentences,
            names=search.conditions,
            num_nearest=search.num_nearest,
        )
        draws = draw_pairs(self.structures, search)
        # several images share a batch if they have few candidates: small batches leave a GPU idle
        step = max(1, search.batch_size // len(draws.structures))  # images at a time
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            written = self._write(neighbours.conditions[part], draws, search)
            ranked = self._rank(images[part], written, draws, search)
            for captions, sentence in zip(ranked, neighbours.nearest[part]):
                yield StructuredCaption(captions, sentence)

    def _write(
        self, conditions: np.ndarray, draws: Draws, search: StructuredSearch
    ) -> list[list[tuple[int, ...]]]:
        """Generate a sentence (token indices) for each of B images and each pair of a condition and
        a structure in ``draws``. ``conditions`` [B, C, K] are C vectors of each image."""
        B, P, device = len(conditions), len(draws.structures), self.decoder.device
        tags = TagLines(draws.structures, self.tags)
        rows = [tags[pair] for pair in range(P)]
        lengths = torch.from_numpy(tags.sizes)
        vectors = torch.from_numpy(conditions[:, draws.conditions])  # [B, P, K]
        task = self.decoder.task
        config = GenerationConfig.of_task(task, beam=search.beam, max_len_b=search.max_len_b)
        generator = task.generator_for(self.decoder.models, config)
        captions: list[tuple[int, ...]] = []
        for start in range(0, B * P, search.batch_size):
            numbers = range(start, min(start + search.batch_size, B * P))
            pairs = [number % P for number in numbers]
            features = vectors.flatten(0, 1)[start : start + search.batch_size].unsqueeze(1)
            net_input = {
                "features": features.to(device),
                "padding_mask": torch.zeros(features.shape[:2], dtype=torch.bool, device=device),
                "src_tokens": pad_tokens(
                    [rows[pair] for pair in pairs], self.tags.pad(), left=True
                ).to(device),
                "src_lengths": lengths[pairs].to(device),
            }
            sample = {"id": torch.arange(len(pairs), device=device), "net_input": net_input}
            with torch.no_grad():
                hypotheses = task.inference_step(generator, self.decoder.models, sample)
            # all but </s>
            captions += [tuple(best[0]["tokens"].tolist()[:-1]) for best in hypotheses]
        return [captions[start : start + P] for start in range(0, B * P, P)]

    def _rank(
        self,
        images: np.ndarray,
        written: list[list[tuple[int, ...]]],
        draws: Draws,
        search: StructuredSearch,
    ) -> list[list[ScoredCaption]]:
        """Return the best ``search.top`` captions of each image with the vectors ``images`` [B, K].

        ``written`` has the sentences from :meth:`_write` for the pairs ``draws``.
        """
        place_of = {
            tokens: i for i, tokens in enumerate(dict.fromkeys(t for w in written for t in w))
        }
        symbols = self.decoder.task.target_dictionary.symbols
        sentences = [[symbols[number] for number in tokens] for tokens in place_of]
        read = [[self._embedded_word[number] for number in tokens] for tokens in place_of]
        vectors = self.embedder.embed_tokens(read)
        log_probs = self.language_model.log_probs(sentences)
        ranked = []
        for image, candidates in zip(images, written):
            # reversed, because the last entry of a key wins in a dictionary: of several pairs with
            # one sentence, the first is kept
            pair_of = {tokens: pair for pair, tokens in reversed(list(enumerate(candidates)))}
            pairs = sorted(pair_of.values())
            places = [place_of[candidates[pair]] for pair in pairs]
            scores = score_candidates(
                [sentences[place] for place in places],
                vectors[places] @ image,
                log_probs[places],
                search.weights,
            )
            # stable: ties keep the order of the pairs, whatever the platform sorts with
            best = np.argsort(-scores.score, kind="stable")[: search.top]
            ranked.append(
                [
                    ScoredCaption(
                        " ".join(sentences[places[i]]),
                        float(scores.score[i]),
                        float(scores.cosine[i]),
                        float(scores.log_prob[i]),
                        float(scores.penalty[i]),
                        search.conditions[draws.conditions[pairs[i]]],
                        draws.structures[pairs[i]],
                    )
                    for i in best.tolist()
                ]
            )
        return ranked


def load_structured_captioner(
    checkpoints: Sequence[Checkpoint],
    *,
    embedding: Union[str, os.PathLike],
    data: Union[str, os.PathLike],
    vectors: Optional[Union[str, os.PathLike]] = None,
    language_model: Optional[Union[str, os.PathLike]] = None,
    weights: Optional[str] = None,
    device: Optional[str] = None,
) -> StructuredCaptioner:
    """Load a captioner with one ``sc_nlm`` model, or an ensemble of several.

    Args:
        embedding: Path of the embedding model on whose vectors the ``sc_nlm`` models were trained.
        data: Folder with the training captions and their part-of-speech tags.
        vectors: Feature store with the vectors of the training captions, from ``fairseq-mm embed
            --split train --of sentences``; if None, the captions are embedded now.
        language_model: ARPA file of an n-gram model; if None, a Kneser-Ney trigram model of the
            training captions is estimated.
        weights: Path of the image extractor's weights, see :class:`.MediaReader`.
    """
    decoder = build_models(checkpoints, device)
    embedder = load_embedder(embedding, weights=weights, device=device)
    split = open_split(data, "train")
    words, tags = split.tokens(), [line.split() for line in get_tags(split)]
    if [*map(len, words)] != [*map(len, tags)]:
        raise UserError(f"{split.path}: each token must have one tag.")
    structures = Counter(" ".join(line) for line in tags)
    lines = [" ".join(line) for line in words]
    ids: list[Optional[str]] = [*split.keys] if split.keys else [None] * len(lines)
    if language_model is None:
        model: LanguageModel = estimate_kneser_ney(words)
    else:
        model = load_language_model(os.fspath(language_model))
    if vectors is None:
        logger.info(f"embedding {len(lines):,} training captions")
        index = embedder.task.target_dictionary.index
        rows = embedder.embed_tokens([[index(word) for word in line] for line in words])
    else:
        rows = _read_vectors(os.fspath(vectors), len(lines), embedder)
    what = f"{os.fspath(vectors)}: training sentence" if vectors else "training sentence"
    sentences = TrainingSentences(lines, ids, unit_vectors(rows, what))
    captioner = StructuredCaptioner(decoder, embedder, sentences, structures, model)
    text_path = os.path.join(data, "text", "train.txt")
    text_path = text_path if os.path.exists(text_path) else split.path
    captioner.sources = {"language_model": compute_digests([str(language_model or text_path)])}
    return captioner


def _read_vectors(path: str, num_lines: int, embedder: Embedder) -> np.ndarray:
    """Read the vectors [num_lines, K] of the training captions from a feature store.

    The keys of the store are ``train:0``, ``train:1``, .... Raise UserError if another model than
    ``embedder``'s made the store.
    """
    store = FeatureStore(path)
    embedder.check_vectors(store.attributes, store.dim, what=path)
    rows = [store.count_rows(key) for key in store.ids if key.startswith("train:")]
    if rows != [1] * num_lines:
        raise UserError(
            f"{path}: must have one row for each of {num_lines} training captions, but has "
            f"{sum(rows)} of {len(rows)}: make it with fairseq-mm embed --split train --of "
            "sentences."
        )
    return np.concatenate([store.read(f"train:{line}") for line in range(num_lines)])
