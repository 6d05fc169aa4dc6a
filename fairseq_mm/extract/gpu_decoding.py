"""Decodes, resizes and crops JPEG files on a GPU, by nvJPEG.

Resizing follows Pillow: first the columns and then the rows are averaged with the weights of the
filter, and each step rounds to 8 bits. For equal decoded pixels, the result is Pillow's, except
that halves are rounded to the other side. On 100 images of 640 x 480 pixels, 0.5 % of the values of
bilinear resizing differ by 1 of 255, and the smallest cosine of features of mobilenet_v2 is 0.99998
(``torch.nn.functional.interpolate``: 13 %, and 0.9993). If ``squash`` reduces the height and
enlarges the width, Pillow 13 begins with the rows; this module does not.

The decoded pixels themselves differ between nvJPEG and libjpeg, which Pillow uses: by 2.2 of 255 on
average in images of noise. The feature store therefore records the decoder as the attribute
``decoder``.
"""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor

from fairseq_mm.errors import UserError, first_line
from fairseq_mm.extract.images import read_image
from fairseq_mm.extract.jpeg_files import JpegFile
from fairseq_mm.extract.preprocessing import Preprocessing, Span

# value of the store's attribute `decoder`
NVJPEG = "nvjpeg"
# limit of the pixels that are decoded at once: 0.4 GB, and four times as much in float32
MAX_PIXELS_AT_ONCE = 1 << 27
# weights of this many sizes of images stay on the GPU
MAX_SIZES = 64


def check_gpu_decoding(device: torch.device) -> None:
    """Raise UserError if JPEG files cannot be decoded on a device."""
    if device.type != "cuda":
        raise UserError(
            f"--decode-on gpu: needs a GPU of NVIDIA, but the device is {device}. Leave out "
            "--decode-on gpu, or choose --device cuda."
        )
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32), (200, 100, 50)).save(buffer, "JPEG", quality=95)
    content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    try:
        pixels = decode_jpegs([content], device)[0].float().mean((1, 2)).tolist()
    except Exception as error:  # torchvision raises errors of several classes
        raise UserError(
            f"--decode-on gpu: torchvision {torchvision.__version__} cannot decode JPEG files on "
            f"{device} ({first_line(error)}). Leave out --decode-on gpu."
        ) from None
    if not np.allclose(pixels, (200, 100, 50), atol=4):
        raise UserError(
            f"--decode-on gpu: torchvision {torchvision.__version__} decodes the colour 200, 100, "
            f"50 to {pixels} on {device}. Leave out --decode-on gpu."
        )


def decode_jpegs(contents: list[Tensor], device: torch.device) -> list[Tensor]:
    """Decode JPEG files to images ``[3, height, width]`` uint8 on the device.

    ``contents`` has the bytes of each file, ``[bytes]`` uint8 on the CPU. Raise RuntimeError if a
    file cannot be decoded.
    """
    # here, since a later torchvision may be without it
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(contents, mode=ImageReadMode.RGB, device=device)


class GpuDecoder:
    """Decoder of JPEG files, which also resizes and crops the images.

    Args:
        preprocessing: Preprocessing of the images.
        device: GPU. On a CPU, the same code runs with torchvision's decoder for CPUs.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device) -> None:
        self.preprocessing = preprocessing
        self.device = device
        self._stream = None
        if device.type == "cuda":
            # a high priority, since the network would delay the few kernels of resizing
            self._stream = torch.cuda.Stream(device, priority=-1)
        # one for each decoder, so that the weights leave the GPU with the decoder
        self._find_weights = functools.lru_cache(MAX_SIZES)(self._compute_weights)

    def decode(self, files: Sequence[JpegFile]) -> list[Union[Tensor, str]]:
        """Decode and preprocess JPEG files.

        A file that the GPU does not decode is decoded by Pillow.

        Returns:
            For each file, the image ``[height, width, 3]`` uint8 on the device; or, if the file
            cannot be read, the reason.
        """
        with self._decoding_stream():
            images: list[Union[Tensor, str]] = []
            for part in _split(files):
                images += self._decode_part(part)
        return images

    @contextlib.contextmanager
    def _decoding_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
            # torchvision decodes in a stream of its own, which does not wait for this one: memory
            # that is freed here must not be written before its readers are done
            self._stream.synchronize()

    def _decode_part(self, files: Sequence[JpegFile]) -> list[Union[Tensor, str]]:
        try:
            decoded = decode_jpegs([torch.from_numpy(x.content) for x in files], self.device)
            for file, image in zip(files, decoded):
                if image.shape != (3, file.height, file.width):
                    raise RuntimeError(f"an image has the shape {list(image.shape)}.")
        except RuntimeError:  # nvJPEG fails the whole batch for one damaged file
            if len(files) == 1:
                return [self._decode_by_pillow(files[0])]
            return [image for file in files for image in self._decode_part([file])]
        return [*self._preprocess(decoded)]

    def _decode_by_pillow(self, file: JpegFile) -> Union[Tensor, str]:
        try:
            # the reader has checked the number of pixels already
            image = read_image(file.content.tobytes(), max_pixels=file.width * file.height)
            pixels = self.preprocessing.apply(image)
        except UserError as error:
            return str(error)
        return torch.from_numpy(np.array(pixels)).to(self.device)

    def _preprocess(self, images: Sequence[Tensor]) -> list[Union[Tensor, str]]:
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            by_shape.setdefault(tuple(image.shape), []).append(i)
        preprocessed: list[Union[Tensor, str]] = [""] * len(images)
        for (_, height, width), members in by_shape.items():
            try:
                spans = self.preprocessing.locate(width, height)
            except UserError as error:
                batch: Sequence[Union[Tensor, str]] = [str(error)] * len(members)
            else:
                stacked = torch.stack([images[i] for i in members])
                batch = self.resize(stacked, *spans).permute(0, 2, 3, 1).unbind()
            for i, result in zip(members, batch):
                preprocessed[i] = result
        return preprocessed

    def resize(self, images: Tensor, columns: Span, rows: Span) -> Tensor:
        """Resize and crop images of one size.

        Args:
            images: ``[B, 3, height, width]`` uint8.
            columns: Horizontal resizing and cropping, from :meth:`.Preprocessing.locate`.
            rows: Vertical resizing and cropping.

        Returns:
            images: ``[B, 3, rows.kept, columns.kept]`` uint8.
        """
        first_column, last_column, column_weights = self._find_weights(columns)
        first_row, last_row, row_weights = self._find_weights(rows)
        x = images[:, :, first_row:last_row, first_column:last_column]
        if column_weights is not None:
            x = _round(x.float() @ column_weights.T)
        if row_weights is not None:
            x = _round(row_weights @ x.float())
        x = x.to(torch.uint8)
        margins = (*columns.margins, *rows.margins)
        return torch.nn.functional.pad(x, margins) if any(margins) else x

    def _compute_weights(self, span: Span) -> tuple[int, int, Optional[Tensor]]:
        """Return the range (start, stop) of the original pixels that one side of the crop depends
        on, and their weights ``[resized pixels, original pixels]`` float32.

        The weights are None if the side is not resized.
        """
        start, stop = max(span.offset, 0), min(span.offset + span.kept, span.resized)
        if span.resized == span.length:
            return span.first + start, span.first + stop, None
        weights = compute_weights(span, start, stop, self.preprocessing.interpolation)
        used = np.flatnonzero(weights.any(0))
        first, last = int(used[0]), int(used[-1]) + 1
        on_device = torch.from_numpy(weights[:, first:last].astype(np.float32)).to(self.device)
        return span.first + first, span.first + last, on_device


def _split(files: Sequence[JpegFile]) -> Iterator[Sequence[JpegFile]]:
    """Split files into groups of at most MAX_PIXELS_AT_ONCE pixels, or of a single file."""
    part: list[JpegFile] = []
    num_pixels = 0
    for file in files:
        num_pixels += file.width * file.height
        if part and num_pixels > MAX_PIXELS_AT_ONCE:
            yield part
            part, num_pixels = [], file.width * file.height
        part.append(file)
    if part:
        yield part


def _round(x: Tensor) -> Tensor:
    return x.add_(0.5).floor_().clamp_(0, 255)  # halves upwards, as in Pillow


def compute_weights(span: Span, start: int, stop: int, interpolation: str) -> np.ndarray:
    """Compute the weights by which original pixels are averaged to resized pixels.

    The filter is scaled to the smaller of the two images, so that reduction averages all pixels.

    Args:
        span: Numbers of original and resized pixels along one side.
        start: Index of the first resized pixel.
        stop: Index after the last resized pixel.
        interpolation: Name of the filter.

    Returns:
        weights: ``[stop - start, span.length]`` float64; the sum of each row is 1.
    """
    scale = span.length / span.resized
    if interpolation == "nearest":
        # a sum, since Pillow adds up the scale, and rounding decides between two neighbours
        sums = np.cumsum([0.5 * scale, *[scale] * (stop - 1)])[start:, None]
        return (np.arange(span.length) == np.floor(sums)).astype(np.float64)
    centers = (np.arange(start, stop) + 0.5)[:, None] * scale  # [resized, 1]
    distances = np.arange(span.length) + 0.5 - centers  # [resized, original]
    weights = FILTERS[interpolation](np.abs(distances / max(scale, 1)))
    return weights / weights.sum(1, keepdims=True)


def _bilinear(distances: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distances, 0)


def _bicubic(distances: np.ndarray) -> np.ndarray:
    a = -0.5  # Catmull-Rom
    near = ((a + 2) * distances - (a + 3)) * distances**2 + 1
    far = a * (((distances - 5) * distances + 8) * distances - 4)
    return np.where(distances < 1, near, np.where(distances < 2, far, 0))


def _lanczos(distances: np.ndarray) -> np.ndarray:
    return np.where(distances < 3, np.sinc(distances) * np.sinc(distances / 3), 0)


FILTERS: dict[str, Callable[[Any], Any]] = {
    "bilinear": _bilinear,
    "bicubic": _bicubic,
    "lanczos": _lanczos,
}
