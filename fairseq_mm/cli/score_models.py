"""Metrics of ``fairseq-mm score`` that need a trained model: CLIPScore and BERTScore.

The user gives the models as folders of transformers; torchmetrics computes BERTScore. CLIPScore
(Hessel et al. 2021, section 3) is 2.5 max(cos, 0) of the vectors of an image and of "A photo
depicts " + caption; RefCLIPScore is its harmonic mean with the largest cosine, at least 0, of the
caption and a reference. BERTScore (Zhang et al. 2020, section 3): the mean over the tokens of one
text of the largest cosine with a token of the other text; of several references, the largest value
counts.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, Callable, Optional

import numpy as np

from fairseq_mm.cli.arguments import Rows, flag
from fairseq_mm.cli.records import list_first
from fairseq_mm.errors import UserError, first_line, import_extra
from fairseq_mm.metrics.score_rows import Row, count_label, mean_row, signature
from fairseq_mm.metrics.text_scores import Metric

METRICS = {
    "clipscore": Metric(None, needs=("images", "clip_model")),
    "refclipscore": Metric(None, needs=("references", "images", "clip_model")),
    "bertscore": Metric(
        None,
        ("bertscore_precision", "bertscore_recall", "bertscore_f1"),
        ("references", "bert_model"),
    ),
}
WEIGHT = 2.5
PROMPT = "A photo depicts "
_NAMED = 3  # ids in a message
# (type of the model, number of layers) -> layer that correlates best with human judgments,
# according to table 8 of Zhang et al. 2020 and the package bert-score
_BEST_LAYERS = {
    ("bert", 12): 9,
    ("bert", 24): 18,
    ("roberta", 12): 10,
    ("roberta", 24): 17,
    ("distilbert", 6): 5,
    ("xlm-roberta", 12): 9,
    ("xlm-roberta", 24): 17,
}
ARGUMENTS: Rows = {
    "--images": (
        "Folder or .tar of the images, for (ref)clipscore.",
        {"metavar": "FOLDER", "action": "append"},
    ),
    "--clip-model": ("CLIP model of transformers.", {"metavar": "FOLDER"}),
    "--bert-model": ("Model of transformers for bertscore.", {"metavar": "FOLDER"}),
}


def build_scorer(
    args: argparse.Namespace, ids: Sequence[str], show: Callable[[str], None]
) -> Callable[[str, Sequence[str], Sequence[Sequence[str]]], list[Row]]:
    """Return a function that scores texts of the items ``ids`` by a metric of :data:`METRICS`; the
    models are loaded when they are first needed. ``show`` is called with progress messages."""
    clip = lru_cache(lambda: _ClipScorer(args, ids, show))
    bert = lru_cache(lambda: _Model(args, "bert_model"))

    def score(metric: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[Row]:
        show(metric)
        if metric == "bertscore":
            return _bertscore_rows(bert(), texts, references)
        return [clip().score(metric, texts, references)]

    return score


class _Model:
    """Hugging Face model and its tokenizer or processor, from a folder of the user."""

    def __init__(self, args: argparse.Namespace, option: str) -> None:
        from fairseq_mm.extract.extractor import find_device
        from fairseq_mm.extract.weights import compute_weights_digest, name_some

        self.folder = getattr(args, option)
        self.where = f"{flag(option)} {self.folder}"
        is_clip = option == "clip_model"
        if not is_clip:
            import_extra("torchmetrics", extra="models", purpose=self.where)
        transformers: Any = import_extra("transformers", extra="models", purpose=self.where)
        self.device = find_device(args.device or "auto")
        network_class = transformers.CLIPModel if is_clip else transformers.AutoModel
        reader = transformers.CLIPProcessor if is_clip else transformers.AutoTokenizer
        place = {"local_files_only": True, "trust_remote_code": False}
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            network, info = network_class.from_pretrained(
                self.folder, output_loading_info=True, **place
            )
            self.reader = reader.from_pretrained(self.folder, **place)
            # no metric depends on the pooler of a text
            lacking = sorted(name for name in info["missing_keys"] if "pooler." not in name)
            if lacking:  # the values would be random
                raise ValueError(f"its weights lack {name_some(lacking)}")
        except Exception as error:  # transformers raises errors of many classes
            raise UserError(f"{self.where}: cannot be loaded: {first_line(error)}") from None
        finally:
            transformers.logging.set_verbosity(verbosity)
        self.network = network.eval().float()
        needed = [name for name in self.network.state_dict() if "pooler." not in name]
        self.signature = {
            "model": os.path.basename(os.path.abspath(self.folder)),
            "weights": compute_weights_digest(self.network, needed).rpartition(":")[2][:12],
            "library": f"transformers-{transformers.__version__}",
        }
        self.network.to(self.device)


class _ClipScorer:
    """Scorer of texts by a CLIP model and the images of the items."""

    def __init__(
        self, args: argparse.Namespace, ids: Sequence[str], show: Callable[[str], None]
    ) -> None:
        from fairseq_mm.extract.media import by_any_key, list_images, read_image

        # before the model, whose loading takes longer
        files = by_any_key(list_images(args.images, ids="path"))
        # fairseq-mm caption writes paths
        self._files = [files.get(key) or files.get(PurePosixPath(key).name) for key in ids]
        missing = [key for key, file in zip(ids, self._files) if file is None]
        _report(missing, "not in --images")
        show("clipscore: load the model")
        self._model = _Model(args, "clip_model")
        self._images: list[Optional[Any]] = []
        unreadable = []
        for i, (key, file) in enumerate(zip(ids, self._files)):
            if i % 10 == 0:
                show(f"clipscore: images, {i:,} of {len(ids):,}")
            self._images.append(None)
            try:
                if file is not None:
                    self._images[i] = self._embed(images=[read_image(file)])[0]
            except UserError as error:
                unreadable.append(f"{key}: {error}")
        _report(unreadable, "unreadable")

    def _embed(self, **inputs: Any) -> Any:
        """Return vectors ``[N, D]`` of unit length of images or texts."""
        import torch

        if "text" in inputs:
            inputs.update(padding=True, truncation=True)
        with torch.inference_mode():
            network = self._model.network
            batch = self._model.reader(**inputs, return_tensors="pt").to(self._model.device)
            embed = network.get_text_features if "text" in inputs else network.get_image_features
            vectors = embed(**batch)
            vectors = getattr(vectors, "pooler_output", vectors)  # an output of transformers 5
            return torch.nn.functional.normalize(vectors.float(), dim=1)

    def score(self, metric: str, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Row:
        has_references = metric == "refclipscore"
        values: list[Optional[float]] = []
        for i, (text, image) in enumerate(zip(texts, self._images)):
            if image is None or not text.strip():
                # the model would score the words of the prompt
                values.append(None if image is None else 0.0)
                continue
            captions = [text, *(references[i] if has_references else ())]
            caption, *others = self._embed(text=[PROMPT + text for text in captions])
            value = WEIGHT * max(float(caption @ image), 0.0)
            if has_references:
                best = max(0.0, *(float(caption @ other) for other in others))
                value = 2 * value * best / (value + best) if value + best else 0.0
            values.append(value)
        sign = signature(
            metric,
            refs=count_label(references) if has_references else None,
            w=WEIGHT,
            prompt="A-photo-depicts",
            best="of-refs" if has_references else None,
            **self._model.signature,
        )
        notes = _note_empty(texts)
        lacking = values.count(None)
        if lacking:
            notes.append(f"{lacking} without an image left out")
        return mean_row(metric, values, sign, "; ".join(notes))


def _bertscore_rows(
    model: _Model, texts: Sequence[str], references: Sequence[Sequence[str]]
) -> list[Row]:
    from torchmetrics.functional.text.bert import bert_score

    config = model.network.config
    count = config.num_hidden_layers
    layer = _BEST_LAYERS.get((config.model_type, count), count)
    # RoBERTa counts positions from the index after padding
    padding = getattr(getattr(model.network, "embeddings", None), "padding_idx", None)
    positions = getattr(config, "max_position_embeddings", 512)
    positions -= padding + 1 if padding and config.model_type != "bert" else 0
    limit = min(positions, model.reader.model_max_length)
    scores = np.zeros((len(texts), 3))
    for i, text in enumerate(texts):
        others = [reference for reference in references[i] if reference.strip()]
        if text.strip() and others:  # a text without words has no score
            # one item a call: torchmetrics 1.9 sorts the texts by length, and puts more than two
            # back in a wrong order, which does not matter to the largest values of one item
            result: Any = bert_score(
                [text],
                [others],
                model=model.network,
                user_tokenizer=model.reader,
                num_layers=layer,
                device=model.device,
                max_length=limit,
                truncation=True,
            )
            scores[i] = [result[name].item() for name in ("precision", "recall", "f1")]
    rows = []
    for column, name in enumerate(METRICS["bertscore"].figures):
        sign = signature(
            name,
            refs=count_label(references),
            best="of-refs" if any(len(item_texts) > 1 for item_texts in references) else None,
            layer=layer,
            idf="no",
            rescaled="no",
            **model.signature,
        )
        note = "; ".join(_note_empty(texts))
        rows.append(mean_row(name, scores[:, column].tolist(), sign, note))
    return rows


def _note_empty(texts: Sequence[str]) -> list[str]:
    count = sum(not text.strip() for text in texts)
    return [f"{count} empty {'text counts' if count == 1 else 'texts count'} 0"] if count else []


def _report(images: Sequence[str], problem: str) -> None:
    if images:
        plural = "image" if len(images) == 1 else "images"
        named = list_first(images, _NAMED)
        print(f"{len(images):,} {plural} {problem}: {named}", file=sys.stderr)
