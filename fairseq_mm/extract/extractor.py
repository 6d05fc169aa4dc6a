"""Extractors of features: networks, with their preprocessing, that turn images or videos into
vectors."""

import contextlib
import difflib
import fnmatch
import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.errors import UserError, first_line, import_extra
from fairseq_mm.extract.backbones import (
    POOLED,
    Backbone,
    build_clip_backbone,
    build_image_backbone,
    cut_after,
    list_clip_models,
    list_image_models,
)
from fairseq_mm.extract.clip_preprocessing import (
    ClipPreprocessing,
    with_clip_options,
)
from fairseq_mm.extract.media import MAX_PIXELS, AnyImage, AnyMedia, media_name, read_image
from fairseq_mm.extract.preprocessing import Preprocessing, with_options
from fairseq_mm.extract.readers import ClipReader, ImageReader, Reader
from fairseq_mm.extract.timm_backbones import GRID_LAYER, POOLED_LAYER, build_timm
from fairseq_mm.extract.timm_backbones import PREFIX as TIMM
from fairseq_mm.extract.weights import (
    check_is_recorded,
    check_same_network,
    has_name_and_digest,
    recorded_weights,
)

REDUCED_PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
# a network with more parameters is not traced
MAX_TRACED_PARAMETERS = 100_000_000
# value of `frame_rate` if every frame of the videos is read once
NATIVE = "native"


class Family(NamedTuple):
    """Family of networks that the function ``build`` can build. They read ``images`` or ``videos``;
    ``has`` returns True for the name of a network of the family."""

    reads: str
    has: Callable[[str], bool]
    options: tuple[str, ...]
    build: Callable[..., Backbone]


# first the one that is known by its prefix: listing the names of the others imports torchvision
FAMILIES = (
    Family("images", lambda model: model.startswith(TIMM), ("grid",), build_timm),
    Family(
        "images",
        lambda model: model in list_image_models(),
        ("grid", "layer"),
        build_image_backbone,
    ),
    Family(
        "videos",
        lambda model: model in list_clip_models(),
        ("frames", "stride", "fps"),
        build_clip_backbone,
    ),
)


def find_family(model: str) -> Family:
    for family in FAMILIES:
        if family.has(model):
            return family
    import torchvision  # here, because backbones.py imports it without slow modules

    names = [*list_image_models(), *list_clip_models()]
    near = difflib.get_close_matches(model, names, n=4, cutoff=0.5) or ["resnet50", "vgg16"]
    raise UserError(
        f"--model {model}: torchvision {torchvision.__version__} has no such model. Near: "
        f"{', '.join(near)}. (Networks of timm: {TIMM}NAME.)"
    )


def list_models(pattern: str) -> list[str]:
    """Return the names of models that match a shell pattern, such as ``timm:vit_small*``, or that
    contain ``pattern`` if it has no wildcard."""
    names = []
    if pattern.startswith(TIMM):
        timm = import_extra("timm", extra="timm", purpose=f"--list-models {pattern}")
        published = timm.list_pretrained()
        names = [TIMM + name for name in dict.fromkeys([*timm.list_models(), *published])]
    else:
        names = [*list_image_models(), *list_clip_models()]
    if not set(pattern) & set("*?["):
        library, colon, part = pattern.rpartition(":")
        pattern = f"{library}{colon}*{part}*"
    return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))


class FirstClips(NamedTuple):
    """Features ``[clips, D]`` float32 of the first clips of a video; ``is_cut`` is True if the
    video has further clips; ``images`` are middle frames ``[height, width, 3]`` uint8 of clips."""

    rows: np.ndarray
    is_cut: bool
    images: list[np.ndarray]


class BatchFeatures:
    """Features of a batch that a GPU may still be computing. ``events`` are pairs of CUDA events
    that measure the time, ``seconds_network``, which is complete after :meth:`get`."""

    def __init__(self, num_inputs: int) -> None:
        self.seconds_network = 0.0
        self._rows: list[Optional[np.ndarray]] = [None] * num_inputs
        self.events: list[tuple[Any, Any]] = []

    def add(self, indices: Sequence[int], rows: Sequence[np.ndarray]) -> None:
        for i, input_rows in zip(indices, rows):
            self._rows[i] = input_rows

    def get(self) -> list[Optional[np.ndarray]]:
        """Wait for the device, and return the features ``[N, D]`` float32 of each image or clip."""
        for start, end in self.events:
            end.synchronize()
            self.seconds_network += start.elapsed_time(end) / 1000
        self.events = []
        return self._rows


class Extractor:
    """Network with preprocessing that turns images, or clips of videos, into feature vectors.

    Args:
        backbone: Network, run in evaluation mode and without gradients.
        preprocessing: Preprocessing of the images or videos.
        device: Device of the network; ``auto`` for a GPU if there is one.
        precision: ``fp32``, or ``fp16`` or ``bf16`` by autocast. The features are always float32.

    Attributes:
        reads_videos: True if the inputs are clips of videos, False if they are images.
        identity: Attributes for a feature store that identify the extractor. For videos, they
            include ``frame_rate``, ``stride`` and ``frames_per_clip``, which repeat options of the
            preprocessing in a readable form.
    """

    def __init__(
        self,
        backbone: Backbone,
        preprocessing: Preprocessing,
        *,
        device: Union[str, torch.device] = "cpu",
        precision: str = "fp32",
    ) -> None:
        self.device = find_device(device)
        self.preprocessing = preprocessing
        self.precision = precision
        self.reads_videos = isinstance(preprocessing, ClipPreprocessing)
        # channels last, as decoded images are in memory: 1.1 to 2 times as fast on a CPU
        self.memory_format = torch.contiguous_format if self.reads_videos else torch.channels_last
        network = backbone.network.eval().to(self.device)
        self.network = network.to(memory_format=self.memory_format)
        self._traced: Any = None
        self.identity: dict[str, object] = {
            "extractor": backbone.model,
            "weights": backbone.weights,
            "layer": backbone.layer,
            "grid": int(backbone.grid),
            "preprocessing": preprocessing.to_json(),
        }
        # networks of this package and of torchvision have none of these
        of_library = {
            "weights_digest": backbone.digest,
            "library": backbone.library,
        }
        self.identity.update((name, value) for name, value in of_library.items() if value)
        if isinstance(preprocessing, ClipPreprocessing):
            self.identity["frame_rate"] = preprocessing.fps or NATIVE
            self.identity["stride"] = preprocessing.stride
            self.identity["frames_per_clip"] = preprocessing.frames

    @functools.cached_property
    def dim(self) -> int:
        """Feature dimension, found by running the network once."""
        blank = np.zeros((1, *self.preprocessing.input_shape), dtype=np.uint8)
        return int(self.rows(blank).shape[2])

    @property
    def default_batch_size(self) -> int:
        if self.device.type == "cpu":
            return 8
        return 64 if self.reads_videos else 128

    def reader(self, *, max_pixels: int = MAX_PIXELS) -> Reader:
        """Build a reader, which decodes a file into images or clips for the network."""
        if isinstance(self.preprocessing, ClipPreprocessing):
            return ClipReader(self.preprocessing, max_pixels)
        return ImageReader(self.preprocessing, max_pixels)

    def rows(self, inputs: np.ndarray) -> np.ndarray:
        """Compute the features of a batch.

        Args:
            inputs: Preprocessed images ``[B, height, width, 3]`` or clips
                ``[B, frames, height, width, 3]``, uint8.

        Returns:
            rows: N feature vectors of each image or clip, ``[B, N, D]`` float32; N is 1 for clips.
        """
        with self._errors_of(inputs):
            return self._compute(self._to_device(inputs)).cpu().numpy()

    def trace_network(self) -> bool:
        """Trace the network, which makes it faster on a CPU; return True if this was possible.

        Tracing takes the time of 40 to 60 images, and saves 12 (``resnet152``) to 22 %
        (``mobilenet_v2``) of the time after decoding, so that it pays after 270 to 340 images. The
        features then differ by roundings. The network stays as it is on a GPU, in half precision,
        for videos and for images of different sizes; if it has more than 100 million parameters, of
        which PyTorch would keep a second copy; and if a traced network computes other features.
        """
        size = sum(weight.numel() for weight in self.network.parameters())
        if (
            self.device.type != "cpu"
            or self.precision != "fp32"
            or self.reads_videos
            or not self.preprocessing.fixed_shape
            or size > MAX_TRACED_PARAMETERS
        ):
            return False
        generator = torch.Generator().manual_seed(0)
        height, width, channels = self.preprocessing.input_shape
        shape = self.default_batch_size, channels, height, width
        full = torch.randn(shape, generator=generator)
        # A traced network can have the size of its example in it, so a second size is tried.
        examples = [x.contiguous(memory_format=self.memory_format) for x in (full, full[:3])]
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                traced = torch.jit.trace(self.network, examples[0], check_trace=False)
                traced = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
                expected = [self.network(x) for x in examples]
                # twice, because the first calls of a traced network optimize it
                is_equal = all(
                    (found := traced(x)).shape == features.shape
                    and bool((found - features).abs().max() <= 1e-4 * features.abs().max())
                    for x, features in 2 * [*zip(examples, expected)]
                )
            # networks that cannot be traced raise errors of many classes
            except Exception:
                return False
        if is_equal:
            self._traced = traced
        return is_equal

    def _to_device(self, inputs: np.ndarray) -> Tensor:
        x = torch.from_numpy(inputs)
        if self.device.type == "cuda":
            x = x.pin_memory()  # only copies of pinned memory overlap with computation
        return x.to(self.device, non_blocking=True)

    def _compute(self, inputs: Tensor) -> Tensor:
        dtype = REDUCED_PRECISIONS.get(self.precision)
        reduces = torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
        with torch.inference_mode(), reduces:
            # normalised on the device, since uint8 has a quarter of the bytes to copy
            x = self.preprocessing.normalized(inputs).contiguous(memory_format=self.memory_format)
            network = self.network if self._traced is None else self._traced
            rows: Tensor = network(x).float()
            return rows if rows.dim() == 3 else rows[:, None]

    @contextlib.contextmanager
    def _errors_of(self, inputs: Union[np.ndarray, Tensor]) -> Iterator[None]:
        """Turn errors of the network inside the context to UserErrors."""
        try:
            yield
        except UserError:  # of a network that has no grid; a UserError is a ValueError
            raise
        # networks raise these errors on inputs that are too small; PyTorch's error for a lack of
        # memory is a RuntimeError, too
        except (RuntimeError, AssertionError, IndexError, ValueError) as error:
            *frames, height, width, _ = inputs.shape[1:]
            what = f"clips of {frames[0]} frames" if frames else "images"
            raise UserError(
                f"{self.identity['extractor']}, layer {self.identity['layer']}: cannot be run on "
                f"{len(inputs)} {what} of {width} x {height} pixels: {first_line(error)}"
            ) from None

    def rows_of_each(self, inputs: Sequence[Optional[np.ndarray]]) -> list[Optional[np.ndarray]]:
        """Compute the features of images or clips that may differ in size, one batch for each size.

        Args:
            inputs: Preprocessed images or clips, uint8; or None for an input that needs no
                features. If the preprocessing gives all inputs the same size, None is replaced by
                a black input, so that the batch size stays the same.

        Returns:
            For each input, the features ``[N, D]`` float32; None for an input that is None.
        """
        return self.start_batch(inputs).get()

    def start_batch(self, inputs: Sequence[Optional[np.ndarray]]) -> BatchFeatures:
        """Start :meth:`rows_of_each` without waiting for a GPU."""
        batch = BatchFeatures(len(inputs))
        with torch.inference_mode():
            by_shape: dict[tuple[int, ...], list[int]] = {}
            for i, one in enumerate(inputs):
                if one is not None:
                    by_shape.setdefault(tuple(one.shape), []).append(i)
            for shape, members in by_shape.items():
                # black inputs keep the size of the batch, on which the last bits of features depend
                places = range(len(inputs)) if self.preprocessing.fixed_shape else members
                pixels = np.zeros((len(places), *shape), dtype=np.uint8)
                for place, i in enumerate(places):
                    one = inputs[i]
                    if one is not None:
                        pixels[place] = one
                needed = [(i, inputs[i] is not None) for i in places]
                self._start_network(self._to_device(pixels), batch, needed)
        return batch

    def _start_network(
        self, inputs: Tensor, batch: BatchFeatures, places: Sequence[tuple[int, bool]]
    ) -> None:
        """Start the network; ``places`` has each input's index, and True if it is needed."""
        began = time.perf_counter()
        with self._errors_of(inputs):
            if self.device.type == "cuda":
                stream = torch.cuda.current_stream(self.device)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(stream)
                on_device = self._compute(inputs)
                rows = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
                rows.copy_(on_device, non_blocking=True)
                end.record(stream)
                batch.events.append((start, end))
            else:
                rows = self._compute(inputs).cpu()
                batch.seconds_network += time.perf_counter() - began
        needed = [(i, row) for (i, is_needed), row in zip(places, rows.numpy()) if is_needed]
        batch.add([i for i, _ in needed], [row for _, row in needed])

    def pixels(self, image: AnyImage, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
        """Read (see :func:`.read_image`) and preprocess an image: ``[height, width, 3]`` uint8."""
        return self.preprocessing.apply(read_image(image, max_pixels=max_pixels))

    def extract(
        self, files: Sequence[AnyImage], *, batch_size: Optional[int] = None, **options: Any
    ) -> list[np.ndarray]:
        """Compute the features of a few images or videos, decoded one after the other.

        Args:
            files: Paths, bytes, binary files or :class:`.MediaFile` objects; also open images or
                arrays, see :func:`.read_image`.
            batch_size: Number of images or clips in a batch.
            **options: Options of :meth:`reader`.

        Returns:
            The features of each file: ``[N, D]`` float32 of an image, ``[clips, D]`` of a video.
        """
        reader = self.reader(**options)
        owners: list[int] = []  # index of the file that each input belongs to

        def inputs() -> Iterator[np.ndarray]:
            for number, media in enumerate(files):
                for one in reader.inputs(media, media_name(media, number, reader.kind.noun)):
                    owners.append(number)
                    yield one

        rows: list[list[np.ndarray]] = [[] for _ in files]
        # the list first: `owners` is filled while it is computed
        for owner, input_rows in zip(owners, list(self._compute_batches(inputs(), batch_size))):
            rows[owner].append(input_rows)
        return [np.concatenate(file_rows) for file_rows in rows]

    def _compute_batches(
        self, inputs: Iterable[np.ndarray], batch_size: Optional[int]
    ) -> Iterator[np.ndarray]:
        source = iter(inputs)
        while inputs_of_batch := list(
            itertools.islice(source, batch_size or self.default_batch_size)
        ):
            yield from self.rows_of_each(inputs_of_batch)  # type: ignore[misc]

    def first_clips(
        self,
        video: AnyMedia,
        limit: int,
        *,
        batch_size: Optional[int] = None,
        num_images: int = 0,
        **options: Any,
    ) -> FirstClips:
        """Compute the features of the first ``limit`` clips of a video, and decode only these.

        The middle frames of ``num_images`` of the clips, evenly spaced, are returned, too.
        """
        images: list[np.ndarray] = []
        # an iterator that is left in the middle would keep the video open
        with contextlib.closing(self.reader(**options).inputs(video)) as clips:

            def first() -> Iterator[np.ndarray]:
                for clip in itertools.islice(clips, limit):
                    if num_images:
                        images.append(clip[len(clip) // 2])
                    yield clip

            rows = list(self._compute_batches(first(), batch_size))
            # one clip more is decoded: the length in the head of a file may be wrong or missing
            is_cut = next(clips, None) is not None
        indices = np.linspace(0, len(rows) - 1, min(num_images, len(rows))).round().astype(int)
        return FirstClips(np.concatenate(rows), is_cut, [images[i] for i in indices])


def find_device(name: Union[str, torch.device]) -> torch.device:
    """Return the device ``name``; ``auto`` is a GPU if there is one, else the CPU."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    device = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
    # tensors on PyTorch's device `meta` have no values
    if device is None or device.type == "meta" or (device.type == "cuda" and not has_cuda):
        raise UserError(
            f"--device must be auto, cpu, or a cuda or cuda:N that PyTorch finds, but is {name!s}."
        )
    return device


def build_backbone(
    model: str,
    *,
    weights: Optional[str] = None,
    layer: Optional[str] = None,
    grid: bool = False,
    seed: int = 0,
) -> Backbone:
    """Build a network of any family.

    Args:
        model: Name of a model of torchvision (for images or videos), ``resnext101_3d``,
            or ``timm:NAME``.
        weights: State dict file, name of published weights (downloaded once), or ``none`` for
            random weights. None for the default weights of torchvision and timm.
        layer: Name of a layer of a torchvision network for images; None for the model's default
            layer.
        grid: Return one feature vector per position of a grid.
        seed: Seed of random weights.
    """
    layers: dict[str, Any] = {"layer": layer, "grid": grid}
    family = check_options(model, layers)
    choices = {name: x for name, x in layers.items() if name in family.options}
    return family.build(model, weights=weights, seed=seed, **choices)


def check_layer(model: str, layer: str) -> None:
    """Raise UserError if a network does not have the layer; networks of other packages pass."""
    import torchvision

    known: tuple[str, ...] = ()
    if model.startswith(TIMM):
        known = (POOLED_LAYER, GRID_LAYER)
    elif model in list_clip_models():
        known = (POOLED,)
    elif model in list_image_models():
        with torch.device("meta"):  # without weights in memory
            cut_after(vars(torchvision.models)[model](weights=None), model, layer)
    if known and layer not in known:
        raise UserError(f"--layer {layer}: must be {' or '.join(known)} for {model}.")


def check_options(model: str, options: Mapping[str, object]) -> Family:
    """Return the family of a network. Raise UserError for options that the family does not have."""
    family = find_family(model)
    for name, value in options.items():
        if value and name not in family.options:
            name = {"frames": "frames-per-clip"}.get(name, name)
            raise UserError(f"--{name}: is no option of {model}, which reads {family.reads}.")
    return family


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
    """Build an extractor from the name of a network.

    :func:`.build_backbone` explains ``model``, ``weights``, ``layer``, ``grid`` and ``seed``.
    :class:`Extractor` explains ``device`` and ``precision``.
    :class:`.ClipPreprocessing` explains ``frames``, ``stride`` and ``fps``, which are for videos
    only. ``options`` are keyword arguments of :func:`.with_options`, such as ``size``.
    """
    check_options(model, {"frames": frames, "stride": stride, "fps": fps})
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
    """Build the extractor that a feature store or a checkpoint records.

    ``weights_file`` is required if ``identity`` has the SHA-256 of a file; it may also replace
    published weights whose digest is recorded. ``reads`` is ``images`` or ``videos``.
    """
    check_is_recorded(identity, "the checkpoint's features")
    model, preprocessing = str(identity["extractor"]), str(identity["preprocessing"])
    family = find_family(model)
    if family.reads != reads:
        raise UserError(
            f"the features were made by {model}, which reads {family.reads}, not {reads}."
        )
    recorded = str(identity["weights"])
    weights, seed = recorded_weights(model, recorded, weights_file)
    options: dict[str, Any] = {"grid": bool(identity["grid"]), "layer": str(identity["layer"])}
    # not build_backbone: families with a single layer refuse these options, although the identity
    # has the layer's name
    choices = {name: x for name, x in options.items() if name in family.options}
    backbone = family.build(model, weights=weights, seed=seed, **choices)
    if weights_file is not None and has_name_and_digest(identity):  # the digest is compared
        backbone = backbone._replace(weights=recorded)
    check_same_network(
        identity, backbone.weights, backbone.digest, backbone.layer, backbone.library
    )
    cls = Preprocessing if reads == "images" else ClipPreprocessing
    return Extractor(backbone, cls.from_json(preprocessing), device=device)
