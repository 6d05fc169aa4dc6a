"""Videos -> features, by the extractor that a checkpoint was trained with."""

import logging
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import (
    Extractor,
    FirstClips,
    build_extractor,
    build_extractor_from_identity,
)
from fairseq_mm.extract.media_list import AnyMedia
from fairseq_mm.inference.extractor_provenance import (
    check_recorded,
    check_trained_features,
    weights_file_of,
)
from fairseq_mm.inference.loading import LoadedModels

logger = logging.getLogger(__name__)


class VideoReader:
    """Reads videos as the features that models were trained on.

    Args:
        loaded: the models.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.

    Attributes:
        reads_video: False where the models read transcripts alone.
        identity: of the extractor, as the feature store of the training data had it; empty if it
            had none.
        feature_dim: D, dimension of the features; 0 where no video is read.
        max_frames: frames that the models read; longer videos are truncated.

    Raises:
        UserError: if weights are given, but no video is read.
    """

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        self.files = loaded.files
        self.architectures = loaded.architectures
        self.device = loaded.device
        self.identity: dict[str, Any] = loaded.provenance["extractor"]
        self.feature_dim: int = loaded.provenance["feature_dim"]
        self.reads_video = bool(loaded.task.reads_video)
        self.max_frames: int = loaded.task.max_frames
        self.weights = weights
        if weights is not None and not self.reads_video:
            raise UserError(
                f"`weights` (--weights) is for models of videos, but {self.files[0]} (--arch "
                f"{self.architectures[0]}) reads none."
            )

    def __repr__(self) -> str:
        name = "transcripts"
        if self.reads_video:
            name = f"videos as {self.identity.get('extractor', 'unknown features')}"
        return f"{type(self).__name__}({os.pathsep.join(self.files)!r}: {name}, {self.device})"

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor that the models were trained with.

        Raises:
            UserError: if it is not known, or its weights are not the ones it had.
        """
        file = self.files[0]
        if not self.reads_video:
            raise UserError(f"{file}: --arch {self.architectures[0]} reads no video.")
        check_recorded(self.identity, file, noun="video")
        try:
            extractor = self._build_extractor()
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        if extractor.dim != self.feature_dim:
            raise UserError(
                f"{file}: was trained on features of {self.feature_dim} dimensions, but "
                f"{self.identity['extractor']} gives {extractor.dim}."
            )
        return extractor

    def _build_extractor(self) -> Extractor:
        name = str(self.identity["extractor"])
        if "weights" in self.identity:
            weights_file = weights_file_of(self.identity, self.files, self.weights)
            return build_extractor_from_identity(
                self.identity, weights_file, self.device, reads="videos"
            )
        # as How2's features are published
        if self.weights is None:
            raise UserError(
                f"was trained on features of {name} with weights that are not recorded. Give the "
                "file that made them (--weights FILE; in Python weights=...), or features "
                "(--features STORE)."
            )
        extractor = build_extractor(name, weights=str(self.weights), device=self.device)
        logger.warning(
            "%s: its features do not record their weights and preprocessing: taken to be %s and "
            "%s's own",
            *(self.files[0], self.weights, name),
        )
        return extractor

    def read_video(
        self, video: AnyMedia, *, batch_size: Optional[int] = None, **options: Any
    ) -> FirstClips:
        """The features of a video, as far as the models read them.

        Args:
            video: path, content, or an entry of a list.
            batch_size: clips that the extractor gets at a time, by default 8 on a CPU and 64
                elsewhere; it changes nothing but the speed.
            **options: of :meth:`.Extractor.first_clips`:
                ``keep_damaged=False``, ``max_pixels``, ``num_images=0``.

        Raises:
            UserError: if the extractor cannot be rebuilt; or why the video cannot be read, without
                its name.
        """
        size = batch_size or (8 if self.device.type == "cpu" else 64)
        return self.extractor.first_clips(video, self.max_frames, batch_size=size, **options)

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        """
        Args:
            attributes: of a feature store.
            dim: dimension of its features.
            path: its file, for the message.

        Raises:
            UserError: if the models were trained on other features.
        """
        check_trained_features(
            self.identity,
            self.feature_dim,
            self.files[0],
            attributes=attributes,
            dim=dim,
            path=path,
        )
