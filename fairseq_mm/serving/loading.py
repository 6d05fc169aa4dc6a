"""Loads the checkpoints and image indexes that the server offers."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from fairseq_mm.data.input_files import compute_sha256
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, usable_device
from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR
from fairseq_mm.inference.image_index import ImageIndex
from fairseq_mm.inference.pretrained import from_checkpoints
from fairseq_mm.serving.requests import Limits
from fairseq_mm.serving.search import SearchSystem
from fairseq_mm.serving.systems import KINDS, TextSystem


def load_systems(
    names: Sequence[tuple[str, str]],
    limits: Limits,
    *,
    weights: Sequence[str] = (),
    weights_dtype: str = "float32",
    embedding: Optional[str] = None,
    data: Optional[str] = None,
    device: Optional[str] = None,
) -> Iterator[TextSystem]:
    """Load the checkpoints that the server offers, one after the other.

    Args:
        names: Name and path of each system. A system without a name ("") is named by its
            architecture. The path is a checkpoint, or several checkpoints of an ensemble, see
            :meth:`.Checkpoint.open_all`.
        limits: Maximum sizes and times of requests.
        weights: Paths of weights files (state dicts) of image or video networks. Each checkpoint
            uses the file whose digest it records.
        weights_dtype: Type of the weights of linear layers, see :class:`.GenerationConfig`.
        embedding: Checkpoint of the embedding model, for captioning models that were trained on its
            vectors.
        data: Data folder with the dictionaries of checkpoints of fairseq's own models.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU if there is one.

    Yields:
        One system per element of ``names``, in order.
    """
    for path in weights:
        if not os.path.isfile(path):
            raise UserError(f"--weights {path}: no such file.")
    opened = [(name, Checkpoint.open_all(path, data=data)) for name, path in names]
    for _, checkpoints in opened:
        _check_served(checkpoints[0])
    for name, checkpoints in opened:
        first = checkpoints[0]
        options: dict[str, Any] = {"device": device}
        # only to the models that need them: other models refuse them
        if not first.has_provenance:
            options["data"] = data
        elif first.extractor.get("extractor") == VECTORS_EXTRACTOR:
            options["embedding"] = embedding
        options["weights"] = _find_weights(weights, first)
        model: Any = from_checkpoints(checkpoints, kind="generator", **options)
        common: Any = {"about": first.summary(), "limits": limits}
        name = name or first.arch
        system = TextSystem(name, model, first.kind, weights_dtype=weights_dtype, **common)
        if system.kind in ("captions", "albums") or system.reads_video:
            # an extractor that cannot be rebuilt is reported before the server starts
            system.processor.reader.load_extractor()
        yield system


def load_indexes(
    names: Sequence[tuple[str, str]], limits: Limits, *, device: Optional[str] = None
) -> Iterator[SearchSystem]:
    """Load the indexes of folders of images, one after the other.

    Args:
        names: Name and path of each folder. Without a name (""), the folder's own name is used.
        limits: Maximum sizes and times of requests.
        device: Device of the embedding models; by default a GPU if there is one.

    Yields:
        One system per folder, in order.
    """
    place = str(usable_device(device))
    for name, folder in names:
        index = ImageIndex.open(folder, device=place)
        # an extractor that cannot be rebuilt is reported before the server starts
        index.embedder.load_extractor()
        yield SearchSystem(name or os.path.basename(os.path.abspath(folder)), index, limits)


def _check_served(checkpoint: Checkpoint) -> None:
    if checkpoint.kind not in KINDS:
        raise UserError(
            f"{checkpoint.path}: --arch {checkpoint.arch} (--task {checkpoint.task_name}) cannot "
            "be served: it is no model of captions, stories or summaries."
        )
    checkpoint.check_generates_alone()


def _find_weights(paths: Sequence[str], checkpoint: Checkpoint) -> Optional[str]:
    """Return the file in ``paths`` with the weights of a checkpoint's extractor, else None."""
    recorded = checkpoint.extractor.get("weights") if checkpoint.has_provenance else None
    return next((path for path in paths if compute_sha256(path) == recorded), None)
