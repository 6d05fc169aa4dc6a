"""Loads the captioner of the structure-content model (``sc_nlm``) and the models that it needs."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Optional, Union

import numpy as np

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.inference.candidates import TrainingSentences
from fairseq_mm.inference.checkpoint import Checkpoint, build_models
from fairseq_mm.inference.checkpoint_files import compute_digests
from fairseq_mm.inference.embedder import Embedder, load_embedder
from fairseq_mm.inference.structured_captioner import StructuredCaptioner
from fairseq_mm.ngrams.arpa import LanguageModel, load_language_model
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney
from fairseq_mm.retrieval.nearest_vectors import unit_vectors

logger = logging.getLogger(__name__)


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
    for checkpoint in checkpoints:
        if not checkpoint.reads_structure:
            raise UserError(
                f"{checkpoint.path}: must be a model that reads structures (sc_nlm), but is none."
            )
    decoder = build_models(checkpoints, device)
    embedder = load_embedder(embedding, weights=weights, device=device)
    split = open_split(data, "train")
    words, tags = split.tokens(), split.field("tags")
    for line, (caption, tagged) in enumerate(zip(words, tags)):
        if tagged is None or len(tagged.split()) != len(caption):
            raise UserError(f"{split.path}: caption {line} must have a tag for each of its words.")
    structures = Counter(" ".join(line.split()) for line in tags)
    lines = [" ".join(line) for line in words]
    ids: list[Optional[str]] = [*split.keys] if split.keys else [None] * len(lines)
    model: LanguageModel
    if language_model is None:
        model = estimate_kneser_ney(words)
    else:
        model = load_language_model(os.fspath(language_model))
    if vectors is None:
        what, vectors_of_lines = "training sentence", _embed(lines, embedder)
    else:
        what = f"{os.fspath(vectors)}: training sentence"
        vectors_of_lines = _read_vectors(os.fspath(vectors), len(lines), embedder)
    sentences = TrainingSentences(lines, ids, unit_vectors(vectors_of_lines, what))
    captioner = StructuredCaptioner(decoder, embedder, sentences, structures, model)
    text_path = os.path.join(data, "text", "train.txt")
    text_path = text_path if os.path.exists(text_path) else split.path
    captioner.sources = {"language_model": compute_digests([str(language_model or text_path)])}
    return captioner


def _embed(lines: Sequence[str], embedder: Embedder) -> np.ndarray:
    logger.info(f"embedding {len(lines):,} training captions")
    index = embedder.task.target_dictionary.index
    return embedder.embed_tokens([[index(word) for word in line.split()] for line in lines])


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
