"""A network of clips and its preprocessing as one thing: videos in, rows of features out."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch

from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.clip_decoding import Decoding, decode_video
from fairseq_mm.extract.clip_preprocessing import (
    ClipPreprocessing,
    describes_clips,
    with_clip_options,
)
from fairseq_mm.extract.extractor import REDUCED_PRECISIONS
from fairseq_mm.extract.identity import check_same_extractor, extractor_identity
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.video_backbones import build_video_backbone, default_clip_preprocessing
from fairseq_mm.extract.videos import AnyVideo, import_av
from fairseq_mm.extract.weights import recorded_weights

# what `frame_rate` says of videos whose frames were taken as they come
NATIVE = "native"


class VideoExtractor:
    """Turns videos into rows of features, one a clip, in evaluation mode and without gradients.

    Args:
        backbone: the network.
        preprocessing: from videos to its input.
        device: where the network runs.
        precision: ``fp32``, or ``fp16`` or ``bf16`` by autocast; rows are float32 in any case.

    Attributes:
        dim: D, channels of every row.
        identity: what a feature store records: that of ``identity.extractor_identity`` (its
            ``preprocessing`` says all of how clips are made), and ``frame_rate``, ``stride`` and
            ``frames_per_clip`` once more for people to read.
    """

    def __init__(
        self,
        backbone: Backbone,
        preprocessing: ClipPreprocessing,
        *,
        device: Union[str, torch.device] = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"--device {device}: PyTorch finds no CUDA device.")
        self.preprocessing = preprocessing
        self.precision = precision
        self.network = backbone.network.eval().to(self.device)
        self.identity: dict[str, object] = {
            **extractor_identity(
                extractor=backbone.model,
                weights=backbone.weights,
                layer=backbone.layer,
                grid=backbone.grid,
                preprocessing=preprocessing,
            ),
            "frame_rate": preprocessing.fps or NATIVE,
            "stride": preprocessing.stride,
            "frames_per_clip": preprocessing.frames,
        }
        self.dim = self.rows(np.zeros((1, *preprocessing.clip_shape), dtype=np.uint8)).shape[1]

    def rows(self, clips: np.ndarray) -> np.ndarray:
        """
        Args:
            clips: ``[B, frames, height, width, 3]`` uint8, preprocessed.

        Returns:
            rows: ``[B, D]`` float32.

        Raises:
            UserError: if the network cannot take clips of that size, or memory is short.
        """
        try:
            with torch.inference_mode(), self._autocast():
                inputs = torch.from_numpy(clips).to(self.device, non_blocking=True)
                inputs = self.preprocessing.normalized(inputs).contiguous()
                return self.network(inputs).float().cpu().numpy()
        except (RuntimeError, AssertionError, IndexError, ValueError) as error:
            frames, height, width = clips.shape[1:4]
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise UserError(
                f"{self.identity['extractor']}: cannot be run on {len(clips)} clips of {frames} "
                f"frames of {width} x {height} pixels: {reason}"
            ) from None

    def _autocast(self) -> contextlib.AbstractContextManager:
        dtype = REDUCED_PRECISIONS.get(self.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def extract(
        self,
        videos: Sequence[AnyVideo],
        *,
        batch_size: int = 8,
        keep_damaged: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> list[np.ndarray]:
        """Features of a few videos, decoded one after the other; clips of several share a batch.

        Args:
            videos: paths, contents, or entries of a list.
            batch_size: clips that the network gets at a time; it changes nothing but the speed.
            keep_damaged: take what can be decoded of a truncated or damaged video.
            max_pixels: larger frames are refused.

        Returns:
            features: for each video ``[clips, D]`` float32.

        Raises:
            UserError: naming the video that cannot be read.
        """
        import_av()
        owners: list[int] = []  # video of each row
        rows: list[np.ndarray] = []
        batch: list[np.ndarray] = []
        for owner, clip in self._clips(
            videos, Decoding(self.preprocessing, keep_damaged, max_pixels)
        ):
            owners.append(owner)
            batch.append(clip)
            if len(batch) == batch_size:
                rows.append(self.rows(np.stack(batch)))
                batch.clear()
        if batch:
            rows.append(self.rows(np.stack(batch)))
        features = np.concatenate(rows) if rows else np.zeros((0, self.dim), np.float32)
        of_row = np.asarray(owners, dtype=np.int64)
        return [features[of_row == number] for number in range(len(videos))]

    def _clips(
        self, videos: Iterable[AnyVideo], decoding: Decoding
    ) -> Iterator[tuple[int, np.ndarray]]:
        for number, video in enumerate(videos):
            for event in decode_video(video, decoding):
                if isinstance(event, np.ndarray):
                    yield number, event
                elif isinstance(event, str):
                    raise UserError(f"{_name(video, number)}: {event}")


def _name(video: AnyVideo, number: int) -> str:
    if isinstance(video, MediaFile):
        return video.name
    return f"video {number}" if isinstance(video, bytes) else os.fspath(video)


def build_video_extractor(
    model: str,
    *,
    weights: Optional[str] = None,
    seed: int = 0,
    device: Union[str, torch.device] = "cpu",
    precision: str = "fp32",
    **options: Any,
) -> VideoExtractor:
    """An extractor by names.

    Args:
        model: ``resnext101_3d`` or a video classifier of torchvision.
        weights: file, name of torchvision's or ``none``; None for torchvision's default ones.
        seed: of random weights.
        device: where the network runs.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        **options: of ``clip_preprocessing.with_clip_options``.

    Raises:
        UserError: see ``build_video_backbone``.
    """
    backbone = build_video_backbone(model, weights=weights, seed=seed)
    preprocessing = with_clip_options(default_clip_preprocessing(model, weights), **options)
    return VideoExtractor(backbone, preprocessing, device=device, precision=precision)


def build_video_extractor_from_identity(
    identity: Mapping[str, object],
    weights_file: Optional[str] = None,
    device: Union[str, torch.device] = "cpu",
) -> VideoExtractor:
    """The extractor that a feature store or a checkpoint records.

    Args:
        identity: attributes of the store.
        weights_file: the state dict file; needed if the store was made with one.
        device: where the network runs.

    Raises:
        UserError: if the identity is incomplete or that of images, or ``weights_file`` is missing
            or another file.
    """
    check_same_extractor(identity, identity, recorded_by="the checkpoint's features")
    model, recorded = str(identity["extractor"]), str(identity["weights"])
    if not describes_clips(identity["preprocessing"]):
        raise UserError(f"the features were made by {model}, which reads images, not videos.")
    weights, seed = recorded_weights(model, recorded, weights_file, sources=("torchvision",))
    backbone = build_video_backbone(model, weights=weights, seed=seed)
    preprocessing = ClipPreprocessing.from_json(str(identity["preprocessing"]))
    return VideoExtractor(backbone, preprocessing, device=device)
