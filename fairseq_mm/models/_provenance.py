"""Stores the provenance, a record of a checkpoint's training data, among the weights.

The record contains the dictionaries, the state of the subword model, and attributes that identify
the feature extractor, so that a checkpoint can be used without ``dict.txt``.
"""

import hashlib
import json
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_mm.errors import UserError

# fairseq's moving average of weights skips names that contain "version", and would fail to
# average integers.
MODULE_NAME = "data_version"
STATE_KEY = f"{MODULE_NAME}._extra_state"


def list_words(dictionary: Dictionary) -> list[str]:
    """Return the symbols of a fairseq dictionary without the special symbols, in index order."""
    return dictionary.symbols[dictionary.nspecial :]


def fingerprint(words: list[str]) -> str:
    """Return the first twelve hexadecimal digits of the SHA-256 of a list of words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def encode_json(content: Any) -> Tensor:
    """Encode a JSON object as an int32 tensor with one number per byte."""
    # Through numpy, because a list of millions of numbers would take a second. int32, because
    # fairseq averages checkpoints by adding integers and dividing the sum; bytes would overflow.
    return torch.from_numpy(np.frombuffer(json.dumps(content).encode(), np.uint8).astype(np.int32))


def decode_json(state: Tensor) -> Any:
    # a tensor of another layout may be far larger than the file that it comes from
    if not isinstance(state, Tensor) or state.dim() != 1 or not state.is_contiguous():
        raise ValueError("no row of bytes")
    content = json.loads(state.cpu().numpy().astype(np.uint8).tobytes().decode())
    json.dumps(content, ensure_ascii=False).encode()  # fails for lone surrogates
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return content


class Provenance(nn.Module):
    """Module that saves a record of the training data in the state dict, and checks it on loading.

    Loading a state dict whose record names another dictionary, subword model or feature extractor
    raises a UserError.

    Args:
        words: Words of the target dictionary, see :func:`list_words`.
        extractor: Attributes of the feature store that identify the feature extractor; empty if
            they are unknown, or the model reads no features.
        feature_dim: Dimension of the features; 0 if the model reads no features.
        source_words: Words of the source dictionary; None if the model reads no source text.
        rows_per_image: Number of regions per image, 1 or the number of positions of a grid; None if
            the model accepts any number.
        subwords: State of the subword model, a JSON object that may contain a ``fingerprint``
            (hash) of the subword model; None if unknown.
        max_frames: Number of frames at which longer videos were truncated; None for models that
            read no videos.
    """

    def __init__(
        self,
        words: list[str],
        extractor: dict[str, Any],
        feature_dim: int,
        source_words: Optional[list[str]] = None,
        rows_per_image: Optional[int] = None,
        subwords: Optional[dict[str, Any]] = None,
        max_frames: Optional[int] = None,
    ) -> None:
        super().__init__()
        self.words = words
        self.extractor = dict(extractor)
        self.feature_dim = feature_dim
        self.source_words = source_words
        self.rows_per_image = rows_per_image
        self.subwords = subwords
        self.max_frames = max_frames
        self._encoded: Optional[tuple[dict[str, Any], Tensor]] = None  # last content, and its code

    @classmethod
    def of_task(cls, task: Any, *, has_source: bool = False) -> "Provenance":
        feature_dim = getattr(task, "feature_dim", 0)
        return cls(
            list_words(task.target_dictionary),
            getattr(task, "feature_attributes", {}),
            feature_dim,
            list_words(task.source_dictionary) if has_source else None,
            getattr(task, "rows_per_image", None),
            getattr(task, "subwords_state", None),
            getattr(task, "max_frames", None) if feature_dim else None,
        )

    # fairseq reads task_state only when it loads a model for generation, and a resumed run uses the
    # config of the command line. Every way of loading reads the state dict, so it has the record.
    def get_extra_state(self) -> Tensor:
        content: dict[str, Any] = {
            "words": self.words,
            "extractor": dict(self.extractor),
            "feature_dim": self.feature_dim,
        }
        if self.source_words is not None:
            content["source_words"] = self.source_words
        for name in ("rows_per_image", "subwords", "max_frames"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        # fairseq's moving average reads the state dict in every update, and encoding takes longer
        # than an update of a small model. Lists that are the same object are compared at once.
        if self._encoded is None or self._encoded[0] != content:
            self._encoded = content, encode_json(content)
        return self._encoded[1].clone()

    def set_extra_state(self, state: Tensor) -> None:
        """Compare a checkpoint's record of training data with the record of this module.

        Then ``subwords``, ``max_frames`` and ``extractor`` are taken from the checkpoint, if it has
        them.
        """
        saved = decode_provenance(state)
        is_pair = self.source_words is not None
        for name, current, file in (
            ("words", self.words, "the target dictionary" if is_pair else "dict.txt"),
            ("source_words", self.source_words, "the source dictionary"),
        ):
            # Words in another order would silently be read as other words.
            if name in saved and current is not None and saved[name] != current:
                raise _dictionary_error(saved[name], current, file)
        store = "the feature store has"
        compared: list[tuple[str, ...]] = [
            (
                *(_name_dim(saved["feature_dim"]), _name_dim(self.feature_dim)),
                *(store, ""),
            ),
            (
                f"{saved.get('rows_per_image')} regions of each image",
                f"{self.rows_per_image} regions of each image",
                *(store, ": pooled features are no grid"),
            ),
        ]
        split_by = saved.get("subwords")
        if split_by and self.subwords:
            remedy = ": prepare it with the checkpoint's"
            names = (
                f"subwords of kind {x.get('kind')!r} (fingerprint {subwords_fingerprint(x)})"
                for x in (split_by, self.subwords)
            )
            compared.append((*names, "the data folder has", remedy))
        for key, trained in saved["extractor"].items():
            if key in self.extractor and key not in _NOTES:
                values = (f"features with {key} = {x!r}" for x in (trained, self.extractor[key]))
                compared.append((*values, store, ": extract with the checkpoint's extractor"))
        for trained, given, place, remedy in compared:
            if trained != given:
                raise UserError(
                    f"the checkpoint was trained on {trained}, but {place} {given}{remedy}."
                )
        self.subwords = split_by or self.subwords
        # models without videos have no max_frames; others truncate videos as in their training
        self.max_frames = saved.get("max_frames", self.max_frames)
        # Resumed on an unlabelled store, the model still knows its extractor from the checkpoint.
        self.extractor = saved["extractor"] or self.extractor


def _dictionary_error(saved: list[str], current: list[str], name: str) -> UserError:
    if sorted(saved) == sorted(current):
        cause = "the same words in another order"
    elif sorted(x for x in saved if not _is_filler(x)) == sorted(
        x for x in current if not _is_filler(x)
    ):
        cause = "one of the two was padded with madeupword...: prepare with --padding-factor 1"
    else:
        cause = "prepared with another vocabulary threshold, or from other training text"
    return UserError(
        f"the checkpoint was trained with a dictionary of {len(saved)} words (fingerprint "
        f"{fingerprint(saved)}), but {name} of the data folder has {len(current)} (fingerprint "
        f"{fingerprint(current)}): {cause}."
    )


def _name_dim(dim: int) -> str:
    return f"{dim}-dimensional features" if dim else "no features"


def subwords_fingerprint(state: Optional[dict[str, Any]]) -> str:
    """Return a hash of a subword model's state; None is no subword model."""
    content = state or {}
    return content.get("fingerprint") or fingerprint([json.dumps(content, sort_keys=True)])


def _is_filler(word: str) -> bool:  # fairseq fills a dictionary up to a multiple of 8
    return word.startswith("madeupword") and word[len("madeupword") :].isdigit()


def decode_provenance(state: Tensor) -> dict[str, Any]:
    """Decode the record of the training data, entry ``STATE_KEY`` of a checkpoint's weights.

    Returns a dict with the arguments of :class:`Provenance`; arguments that are None are left out.

    Raises:
        KeyError: if ``words``, ``extractor`` or ``feature_dim`` is missing.
    """
    content = decode_json(state)
    # A checkpoint may come from anywhere, so types are checked before values are used.
    for name, kind in _TYPES.items():
        value = content.get(name)
        if value is None and name in ("words", "extractor", "feature_dim"):
            raise KeyError(name)
        is_right = value is None or (
            type(value) is kind and not (isinstance(value, int) and value < 0)
        )
        if not is_right or (kind is list and not all(isinstance(x, str) for x in value or ())):
            raise ValueError(f"`{name}` must be {_NAMES[kind]}, but is {repr(value)[:100]}")
    return content


_NAMES = {list: "a list of strings", dict: "an object", int: "a number of 0 or more"}
_TYPES: dict[str, Any] = {
    "words": list,
    "source_words": list,
    "extractor": dict,
    "subwords": dict,
    "feature_dim": int,
    "rows_per_image": int,
    "max_frames": int,
}
# attributes of an extractor that may differ between features that fit together; feature stores
# name them EXTRACTOR_NOTES
_NOTES = ("library", "network_config")
