"""Metrics of ``fairseq-mm score`` that need a trained model: CLIPScore, BERTScore, MAUVE."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import Rows, flag
from fairseq_mm.cli.records import list_first
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.clip_score import WEIGHT, clip_score, ref_clip_score, with_prompt
from fairseq_mm.metrics.score_rows import Row, count_label, ratio_row, rows_without, signature

if TYPE_CHECKING:
    from fairseq_mm.extract.text_encoders import TextEncoder

CLIP_METRICS = ("clipscore", "refclipscore")
# metric -> names of its scores
FIGURES: dict[str, tuple[str, ...]] = {
    "clipscore": ("clipscore",),
    "refclipscore": ("refclipscore",),
    "bertscore": ("bertscore_precision", "bertscore_recall", "bertscore_f1"),
    "mauve": ("mauve",),
}
METRIC_OF_FIGURE = dict.fromkeys(FIGURES["bertscore"], "bertscore")
# references of so many items are in memory as vectors
_ITEMS_PER_PART = 256
_NAMED = 3  # ids in a message

# option -> metrics that read it
_READ_BY = {
    "images": CLIP_METRICS,
    "clip_model": CLIP_METRICS,
    "bert_model": ("bertscore",),
    "bert_layer": ("bertscore",),
    "mauve_model": ("mauve",),
    "device": tuple(FIGURES),
}
_NEEDED = ("images", "clip_model", "bert_model", "mauve_model")
_MODEL = {"metavar": "MODEL"}
_ARGUMENTS: Rows = {
    "--images": (
        "Folder or .tar of the images, for clipscore and refclipscore; may be given again.",
        {"metavar": "FOLDER", "action": "append"},
    ),
    "--clip-model": (
        "CLIP model for clipscore and refclipscore: open_clip:NAME/TAG, or open_clip:NAME/FILE "
        "with a file of its weights, as for extract.",
        _MODEL,
    ),
    "--bert-model": (
        "Masked language model for bertscore: a folder of transformers (save_pretrained), or "
        "OWNER/NAME[@REVISION] of the Hugging Face hub.",
        _MODEL,
    ),
    "--bert-layer": (
        "Layer for bertscore, from 1 (default: the layer that correlates best with human "
        "judgments, for BERT, RoBERTa, XLM-RoBERTa and DistilBERT; else the last).",
        {"type": arguments.positive, "metavar": "N"},
    ),
    "--mauve-model": ("Language model for mauve, such as GPT-2: a folder, or a name.", _MODEL),
}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "metrics with models", "Models for --metrics clipscore, refclipscore, bertscore and mauve."
    )
    arguments.add_rows(group, _ARGUMENTS)
    arguments.add(group, "device")


def check_model_options(args: argparse.Namespace, metrics: Sequence[str]) -> None:
    """Raise UserError if a metric lacks its model or images, or an option lacks its metric."""
    for option, readers in _READ_BY.items():
        chosen = [name for name in readers if name in metrics]
        if getattr(args, option) is not None and not chosen:
            raise UserError(f"{flag(option)}: needs --metrics {' or '.join(readers)}.")
        if option in _NEEDED and chosen and getattr(args, option) is None:
            raise UserError(f"--metrics {chosen[0]}: needs {flag(option)}.")
    for path in args.images or ():
        if not os.path.exists(path):
            raise UserError(f"--images {path}: no such folder or file.")


class ModelMetrics:
    """Metrics that need trained models, which are loaded when they are first needed.

    Args:
        args: Parsed command line.
        ids: Ids of the scored images or videos.
        show: Function that is called with progress messages, such as the name of the metric.
    """

    def __init__(
        self, args: argparse.Namespace, ids: Sequence[str], show: Callable[[str], None]
    ) -> None:
        self._args = args
        self._ids = ids
        self._show = show
        self._clip: Optional[_ClipScorer] = None
        self._encoders: dict[str, TextEncoder] = {}

    def score(
        self, metric: str, texts: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[Row]:
        """Compute the scores of a metric.

        Args:
            metric: Name of the metric, a key of :data:`FIGURES`.
            texts: Text of each image or video.
            references: References of each image or video; empty for clipscore.
        """
        if metric in CLIP_METRICS:
            if self._clip is None:
                self._clip = _ClipScorer(self._args, self._ids, self._show)
            self._show(metric)
            return [self._clip.score(metric, texts, references)]
        encoder = self._load_encoder(metric)
        self._show(metric)
        if metric == "bertscore":
            return _bertscore_rows(encoder, texts, references)
        return [_mauve_row(encoder, texts, references)]

    def _load_encoder(self, metric: str) -> "TextEncoder":
        from fairseq_mm.extract.text_encoders import TextEncoder

        if metric not in self._encoders:
            args, is_bert = self._args, metric == "bertscore"
            option = "bert_model" if is_bert else "mauve_model"
            self._show(f"{metric}: load the model")
            self._encoders[metric] = TextEncoder(
                getattr(args, option),
                option=flag(option),
                kind="masked" if is_bert else "causal",
                layer=(args.bert_layer or 0) if is_bert else None,
                device=args.device or "auto",
                # the limit of mauve-text
                max_tokens=None if is_bert else 1024,
            )
        return self._encoders[metric]


class _ClipScorer:
    """Scorer of texts by a CLIP model; vectors of images and texts are computed only once."""

    def __init__(
        self, args: argparse.Namespace, ids: Sequence[str], show: Callable[[str], None]
    ) -> None:
        from fairseq_mm.extract.clip_vectors import ClipVectors
        from fairseq_mm.extract.media_list import by_any_key, list_images

        # before the model, whose loading takes longer
        self._files = by_any_key(list_images(args.images, ids="path"))
        self._ids = ids
        self._check_images(args.images)
        show("clipscore: load the model")
        self._clip = ClipVectors(
            args.clip_model, option="--clip-model", device=args.device or "auto"
        )
        self._show = show
        self._images = self._embed_images()
        self._vectors: dict[str, np.ndarray] = {}

    def _find(self, key: str) -> Optional[Any]:
        # fairseq-mm caption writes paths
        return self._files.get(key) or self._files.get(PurePosixPath(key).name)

    def _check_images(self, folders: Sequence[str]) -> None:
        missing = [key for key in self._ids if self._find(key) is None]
        if len(missing) == len(self._ids):
            raise UserError(
                f"--images {' '.join(folders)}: has none of the {len(missing):,} images, such as "
                f"{missing[0]!r}."
            )
        _report(missing, "not in --images")

    def _embed_images(self) -> dict[str, np.ndarray]:
        """Return the vectors of the images that can be read, by id."""
        vectors: dict[str, np.ndarray] = {}
        unreadable: list[str] = []
        files = {key: self._find(key) for key in self._ids}
        known = [key for key in self._ids if files[key] is not None]
        size = self._clip.images_per_batch
        for start in range(0, len(known), size):
            keys = known[start : start + size]
            self._show(f"clipscore: images, {start:,} of {len(known):,}")
            images: list[Any] = [files[key] for key in keys]
            for key, vector in zip(keys, self._clip.embed_images(images)):
                if isinstance(vector, UserError):
                    unreadable.append(f"{key}: {vector}")
                else:
                    vectors[key] = vector
        _report(unreadable, "unreadable")
        if not vectors:
            raise UserError(f"--images: none of the {len(known):,} images can be read.")
        return vectors

    def _embed_texts(self, texts: Iterable[str]) -> dict[str, np.ndarray]:
        different = list(dict.fromkeys(texts))
        return dict(zip(different, self._clip.embed_texts(with_prompt(different))))

    def score(self, metric: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Row:
        new = [text for text in texts if text not in self._vectors]
        if new:
            self._vectors.update(self._embed_texts(new))
        values: list[Optional[float]] = []
        for start in range(0, len(texts), _ITEMS_PER_PART):
            part = slice(start, start + _ITEMS_PER_PART)
            values += self._score_part(metric, self._ids[part], texts[part], references[part])
        sign = signature(
            metric,
            refs=count_label(references) if metric == "refclipscore" else None,
            w=WEIGHT,
            prompt="A-photo-depicts",
            best="of-refs" if metric == "refclipscore" else None,
            **_sign_model(self._clip.identity),
        )
        notes = _note_empty(texts)
        lacking = values.count(None)
        if lacking:
            notes.append(f"{lacking} without an image left out")
        # items without an image count 0, since the comparison of two systems needs equal items
        sums = np.array([[value or 0.0, value is not None] for value in values], dtype=float)
        scored = len(values) - lacking
        note = "; ".join(notes)
        return ratio_row(metric, sums, sign, note, scored=scored, per_item=values)

    def _score_part(
        self,
        metric: str,
        ids: Sequence[str],
        texts: Sequence[str],
        references: Sequence[Sequence[str]],
    ) -> list[Optional[float]]:
        vectors: dict[str, np.ndarray] = {}
        if metric == "refclipscore":
            vectors = self._embed_texts(text for item_texts in references for text in item_texts)
        values: list[Optional[float]] = []
        for i, (key, text) in enumerate(zip(ids, texts)):
            image = self._images.get(key)
            if image is None:
                values.append(None)
                continue
            # the model would score the words of the prompt
            value = clip_score(self._vectors[text], image) if text.strip() else 0.0
            if metric == "refclipscore":
                rows = np.stack([vectors[reference] for reference in references[i]])
                value = ref_clip_score(value, self._vectors[text], rows)
            values.append(value)
        return values


def _bertscore_rows(
    encoder: "TextEncoder", texts: Sequence[str], references: Sequence[Sequence[str]]
) -> list[Row]:
    from fairseq_mm.metrics.bert_score import TokenVectors, bert_scores

    edges = encoder.edge_tokens

    def encode(different: Sequence[str]) -> list[TokenVectors]:
        tokens: dict[int, TokenVectors] = {}
        for i, (hidden, indices) in encoder.encode(different):
            vectors = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
            tokens[i] = TokenVectors(vectors, ~np.isin(indices, edges))
        none = TokenVectors(np.zeros((0, 1), np.float32), np.zeros(0, dtype=bool))
        return [tokens.get(i, none) for i in range(len(different))]

    scores = bert_scores(encode, texts, references)
    rows = []
    for column, name in enumerate(FIGURES["bertscore"]):
        sign = signature(
            name,
            refs=count_label(references),
            best="of-refs" if any(len(item_texts) > 1 for item_texts in references) else None,
            layer=encoder.layer,
            idf="no",
            rescaled="no",
            space="before" if encoder.adds_space else None,
            **_sign_model(encoder.identity),
        )
        values = scores[:, column].tolist()
        sums = np.stack([scores[:, column], np.ones(len(scores))], axis=1)
        rows.append(ratio_row(name, sums, sign, "; ".join(_note_empty(texts)), per_item=values))
    return rows


def _mauve_row(
    encoder: "TextEncoder", texts: Sequence[str], references: Sequence[Sequence[str]]
) -> Row:
    from fairseq_mm.extract.library_networks import describe_library
    from fairseq_mm.metrics.mauve_score import SCALING, SEED, count_buckets, mauve_score

    # one text of people for each item, as many as the system's
    written = [item_texts[0] for item_texts in references]
    people, system = (_last_vectors(encoder, part) for part in (written, texts))
    facts: dict[str, object] = {
        "of": f"{len(people)}-and-{len(system)}-texts",
        "buckets": count_buckets(len(people), len(system)),
        "scaling": SCALING,
        "seed": SEED,
        **_sign_model(encoder.identity),
    }
    notes = []
    for part, vectors, owner in ((texts, system, ""), (written, people, " of people")):
        if len(vectors) < len(part):
            notes.append(f"{len(part) - len(vectors)} empty texts{owner} left out")
    try:
        value = mauve_score(people, system)
    except UserError as error:
        return rows_without({"mauve": signature("mauve", **facts)}, str(error))[0]
    sign = signature("mauve", **facts, by=describe_library("mauve-text").replace(" ", "-"))
    return Row("mauve", value, sign, len(system), "; ".join(notes))


def _last_vectors(encoder: "TextEncoder", texts: Sequence[str]) -> np.ndarray:
    """Return the hidden state of the last token of each text that has tokens, ``[N, D]``."""
    vectors = {i: hidden[-1] for i, (hidden, _) in encoder.encode(texts)}
    return np.stack([vectors[i] for i in sorted(vectors)]) if vectors else np.zeros((0, 1))


def _sign_model(identity: dict[str, str]) -> dict[str, str]:
    return {
        "model": identity["model"],
        "weights": identity["digest"][:12],
        "library": identity["library"].replace(" ", "-"),
    }


def _note_empty(texts: Sequence[str]) -> list[str]:
    count = sum(not text.strip() for text in texts)
    return [f"{count} empty {'text counts' if count == 1 else 'texts count'} 0"] if count else []


def _report(images: Sequence[str], problem: str) -> None:
    if images:
        plural = "image" if len(images) == 1 else "images"
        named = list_first(images, _NAMED)
        print(f"{len(images):,} {plural} {problem}: {named}", file=sys.stderr)
