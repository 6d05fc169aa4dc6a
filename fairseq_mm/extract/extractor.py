"""A backbone and its preprocessing as one thing: images or videos in, feature vectors out."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch

from fairseq_mm.compat import convolution_memory_format, float32_by_default
from fairseq_mm.errors import UserError
from fairseq_mm.extract.backbones import Backbone
from fairseq_mm.extract.clip_preprocessing import (
    ClipPreprocessing,
    describes_clips,
    with_clip_options,
)
from fairseq_mm.extract.identity import check_same_extractor
from fairseq_mm.extract.images import MAX_PIXELS, AnyImage, read_image
from fairseq_mm.extract.media_list import AnyMedia, media_name
from fairseq_mm.extract.networks import build_backbone, find_family, refuse_options
from fairseq_mm.extract.preprocessing import Preprocessing, with_options
from fairseq_mm.extract.readers import ClipReader, ImageReader, Reader
from fairseq_mm.extract.weights import recorded_weights

REDUCED_PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
# what `frame_rate` says of videos whose frames were taken as they come
NATIVE = "native"


class FirstClips(NamedTuple):
    """
    Attributes:
        rows: ``[clips, D]`` float32, features of the clips.
        is_cut: the video has more of them.
        images: ``[height, width, 3]`` uint8, the middle frames of clips far from each other, as
            the network gets them.
    """

    rows: np.ndarray
    is_cut: bool
    images: list[np.ndarray]


class Extractor:
    """Turns images, or clips of videos, into feature vectors: always in evaluation mode and
    without gradients.

    Args:
        backbone: the network.
        preprocessing: from images or videos to its input.
        device: where the network runs; ``auto`` for a GPU where there is one.
        precision: ``fp32``, or ``fp16`` or ``bf16`` by autocast; rows are float32 in any case.

    Attributes:
        reads_videos: its inputs are clips, not images.
        dim: D, channels of every row.
        identity: what a feature store records: ``IDENTITY``, and of videos ``frame_rate``,
            ``stride`` and ``frames_per_clip`` for people to read.

    Raises:
        UserError: if the device is not there, or the network cannot take inputs of that size.
    """

    @float32_by_default()
    def __init__(
        self,
        backbone: Backbone,
        preprocessing: Preprocessing,
        *,
        device: Union[str, torch.device] = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.device = _device(device)
        self.preprocessing = preprocessing
        self.precision = precision
        self.reads_videos = isinstance(preprocessing, ClipPreprocessing)
        # convolutions of 8-bit images as they lie in memory: 1.1 to 2 times as fast on a CPU
        self.memory_format = (
            torch.contiguous_format if self.reads_videos else convolution_memory_format()
        )
        network = backbone.network.eval().to(self.device)
        self.network = network.to(memory_format=self.memory_format)
        self.identity: dict[str, object] = {
            "extractor": backbone.model,
            "weights": backbone.weights,
            "layer": backbone.layer,
            "grid": int(backbone.grid),
            "preprocessing": preprocessing.to_json(),
        }
        if isinstance(preprocessing, ClipPreprocessing):
            self.identity["frame_rate"] = preprocessing.fps or NATIVE
            self.identity["stride"] = preprocessing.stride
            self.identity["frames_per_clip"] = preprocessing.frames
        blank = np.zeros((1, *preprocessing.input_shape), dtype=np.uint8)
        self.dim = int(self.rows(blank).shape[2])

    @property
    def default_batch_size(self) -> int:
        """Inputs that the network gets at a time, where nobody says how many."""
        if self.device.type == "cpu":
            return 8
        return 64 if self.reads_videos else 128

    def reader(self, *, max_pixels: int = MAX_PIXELS, keep_damaged: bool = False) -> Reader:
        """What decodes a file into inputs of the network.

        Args:
            max_pixels: larger JPEGs are decoded at reduced scale, other images and frames refused.
            keep_damaged: take what can be decoded of truncated and damaged videos.

        Raises:
            UserError: if ``keep_damaged`` is asked for of images, or PyAV is missing.
        """
        if isinstance(self.preprocessing, ClipPreprocessing):
            return ClipReader(self.preprocessing, keep_damaged, max_pixels)
        refuse_options(str(self.identity["extractor"]), "videos", {"--keep-damaged": keep_damaged})
        return ImageReader(self.preprocessing, max_pixels)

    @float32_by_default()
    def rows(self, inputs: np.ndarray) -> np.ndarray:
        """
        Args:
            inputs: ``[B, height, width, 3]`` or ``[B, frames, height, width, 3]`` uint8,
                preprocessed.

        Returns:
            rows: ``[B, rows, D]`` float32; of a clip one.

        Raises:
            UserError: if the network cannot take inputs of that size, or memory is short.
        """
        try:
            with torch.inference_mode(), self._autocast():
                x = torch.from_numpy(inputs)
                if self.device.type == "cuda":
                    x = x.pin_memory()  # or the copy would wait for the batch before
                x = x.to(self.device, non_blocking=True)
                x = self.preprocessing.normalized(x).contiguous(memory_format=self.memory_format)
                rows = self.network(x).float().cpu().numpy()
                return rows if rows.ndim == 3 else rows[:, None]
        except (RuntimeError, AssertionError, IndexError, ValueError) as error:
            *frames, height, width, _ = inputs.shape[1:]
            what = f"clips of {frames[0]} frames" if frames else "images"
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise UserError(
                f"{self.identity['extractor']}, layer {self.identity['layer']}: cannot be run on "
                f"{len(inputs)} {what} of {width} x {height} pixels: {reason}"
            ) from None

    def _autocast(self) -> contextlib.AbstractContextManager:
        dtype = REDUCED_PRECISIONS.get(self.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def rows_of_each(self, inputs: Sequence[Optional[np.ndarray]]) -> list[Optional[np.ndarray]]:
        """Like ``rows`` for inputs of different sizes; those of one size share a batch.

        Args:
            inputs: None for a place of the batch that stays black, where all sizes are the same,
                and is left out elsewhere.

        Returns:
            rows: of each input ``[rows, D]`` float32, or None.
        """
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, one in enumerate(inputs):
            if one is not None:
                by_shape.setdefault(one.shape, []).append(i)
        features: list[Optional[np.ndarray]] = [None] * len(inputs)
        for shape, members in by_shape.items():
            places = range(len(inputs)) if self.preprocessing.fixed_shape else members
            batch = np.zeros((len(places), *shape), dtype=np.uint8)
            for place, i in enumerate(places):
                one = inputs[i]
                if one is not None:
                    batch[place] = one
            for i, rows in zip(places, self.rows(batch)):
                features[i] = None if inputs[i] is None else rows
        return features

    def pixels(self, image: AnyImage, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
        """One decoded and preprocessed image ``[height, width, 3]`` uint8, see ``rows``."""
        return self.preprocessing.apply(read_image(image, max_pixels=max_pixels))

    def extract(
        self, files: Sequence[AnyImage], *, batch_size: Optional[int] = None, **options: Any
    ) -> list[np.ndarray]:
        """Features of a few images or videos, decoded one after the other; clips of several videos
        share a batch.

        Args:
            files: paths, bytes, binary files or entries of a list; and open images or arrays, see
                :func:`.read_image`.
            batch_size: inputs that the network gets at a time; it changes nothing but the speed.
            **options: of :meth:`reader`.

        Returns:
            features: for each image ``[rows, D]`` float32, for each video ``[clips, D]``.

        Raises:
            UserError: naming the file that cannot be read.
        """
        reader = self.reader(**options)
        owners: list[int] = []  # file of each input

        def inputs() -> Iterator[np.ndarray]:
            for number, media in enumerate(files):
                try:
                    for one in reader.inputs(media):
                        owners.append(number)
                        yield one
                except UserError as error:
                    name = media_name(media, number, reader.kind.noun)
                    raise UserError(f"{name}: {error}") from None

        rows: list[list[np.ndarray]] = [[] for _ in files]
        for owner, of_input in zip(owners, list(self._batched(inputs(), batch_size))):
            rows[owner].append(of_input)
        return [np.concatenate(of_file) for of_file in rows]

    def _batched(
        self, inputs: Iterable[np.ndarray], batch_size: Optional[int]
    ) -> Iterator[np.ndarray]:
        source = iter(inputs)
        while batch := list(itertools.islice(source, batch_size or self.default_batch_size)):
            yield from (rows for rows in self.rows_of_each(batch) if rows is not None)

    def first_clips(
        self,
        video: AnyMedia,
        limit: int,
        *,
        batch_size: Optional[int] = None,
        num_images: int = 0,
        **options: Any,
    ) -> FirstClips:
        """What a model that reads so many clips sees of a video; nothing behind them is decoded,
        however long the video is.

        Args:
            video: a path, bytes, a binary file, or an entry of a list.
            limit: maximum number of clips.
            batch_size: clips that the network gets at a time; it changes nothing but the speed.
            num_images: middle frames to keep.
            **options: of :meth:`reader`.

        Raises:
            UserError: the reason why the video cannot be read, without its name.
        """
        images: list[np.ndarray] = []
        with contextlib.closing(self.reader(**options).inputs(video)) as clips:

            def first() -> Iterator[np.ndarray]:
                for clip in itertools.islice(clips, limit):
                    if num_images:
                        images.append(clip[len(clip) // 2])
                    yield clip

            rows = list(self._batched(first(), batch_size))
            is_cut = next(clips, None) is not None
        indices = np.linspace(0, len(rows) - 1, min(num_images, len(rows))).round().astype(int)
        return FirstClips(np.concatenate(rows), is_cut, [images[i] for i in indices])


def _device(name: Union[str, torch.device]) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        raise UserError(f"--device must be auto, cpu, cuda or cuda:N, but is {str(name)!r}.")
    if device.type == "cuda" and not has_cuda:
        raise UserError(f"--device {name}: PyTorch finds no CUDA device.")
    return device


def build_extractor(
    model: str,
    *,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
    device: Union[str, torch.device] = "cpu",
    precision: str = "fp32",
    frames: Optional[int] = None,
    stride: Optional[int] = None,
    fps: Optional[float] = None,
    **options: Any,
) -> Extractor:
    """An extractor by names.

    Args:
        model: of torchvision (images or videos), ``resnext101_3d``, or
            ``open_clip:NAME[/PRETRAINED]``.
        weights: file, name or ``none``; None for torchvision's default ones.
        layer: node of a torchvision network; None for the model's default.
        grid: one row a position.
        seed: of random weights.
        device: where the network runs; ``auto`` for a GPU where there is one.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        frames: of a clip.
        stride: frames from the beginning of a clip to that of the next.
        fps: frames a second that videos are resampled to.
        **options: of ``preprocessing.with_options``.

    Raises:
        UserError: if the model does not exist, or an option is not for its kind; see also
            ``build_backbone``.
    """
    if find_family(model).reads == "images":
        clips = {"--frames-per-clip": frames, "--stride": stride, "--fps": fps}
        refuse_options(model, "videos", clips)
    backbone = build_backbone(model, weights=weights, layer=layer, grid=grid, seed=seed)
    default = backbone.preprocessing
    if isinstance(default, ClipPreprocessing):
        default = with_clip_options(default, frames=frames, stride=stride, fps=fps, **options)
    else:
        default = with_options(default, **options)
    return Extractor(backbone, default, device=device, precision=precision)


def build_extractor_from_identity(
    identity: Mapping[str, object],
    weights_file: Optional[str] = None,
    device: Union[str, torch.device] = "cpu",
    *,
    reads: str = "images",
) -> Extractor:
    """The extractor that a feature store or a checkpoint records.

    Args:
        identity: attributes of the store.
        weights_file: the state dict file; needed if the store was made with one.
        device: where the network runs.
        reads: ``images`` or ``videos``, what it is expected to read.

    Raises:
        UserError: if the identity is incomplete or that of the other kind, or ``weights_file`` is
            missing or another file.
    """
    check_same_extractor(identity, identity, recorded_by="the checkpoint's features")
    model, preprocessing = str(identity["extractor"]), str(identity["preprocessing"])
    is_video = describes_clips(preprocessing)
    found = "videos" if is_video else "images"
    if found != reads:
        raise UserError(f"the features were made by {model}, which reads {found}, not {reads}.")
    weights, seed = recorded_weights(model, str(identity["weights"]), weights_file)
    given = {"grid": bool(identity["grid"]), "layer": str(identity["layer"])}
    # families without a choice record the name of their only layer, too
    choices: Any = {name: given[name] for name in find_family(model).choices}
    backbone = build_backbone(model, weights=weights, seed=seed, **choices)
    kind = ClipPreprocessing if is_video else Preprocessing
    return Extractor(backbone, kind.from_json(preprocessing), device=device)
