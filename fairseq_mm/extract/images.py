"""Decodes image files to 8-bit RGB, in bounded memory.

Images are decoded by Pillow. In addition, :func:`read_image`

- refuses formats that photos do not have: Pillow runs another program to read EPS, and decodes the
  image within ICO, ICNS and IPTC files before its size can be checked;
- applies the orientation tag (phones store upright images rotated);
- puts transparent images on white (the colours of transparent pixels are arbitrary);
- scales 16-bit grey values to 8 bits (Pillow would clip them to white), and 32-bit integers and
  floats from the smallest to the largest value;
- reads the first image of animated files and of files with several pages;
- decodes JPEGs of more than ``max_pixels`` pixels at 1/2, 1/4 or 1/8 of their size, which takes
  less memory, and refuses other images of more than ``max_pixels`` pixels. Smaller images are
  decoded in full, so that their features do not depend on this limit;
- ignores colour profiles, as torchvision does.

This module imports neither torch nor fairseq, since it runs in the decoding processes.
"""

import contextlib
import io
import warnings
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Union

import numpy as np
from PIL import Image, ImageOps

from fairseq_mm.errors import UserError, file_errors, import_extra
from fairseq_mm.extract.media_list import MAX_PIXELS, AnyMedia, open_media

AnyImage = Union[AnyMedia, Image.Image, np.ndarray]

# names in Pillow of the formats that folders and archives are searched for, see media_list.IMAGES
FORMATS = (
    *("JPEG", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "MPO", "PPM", "AVIF", "HEIF"),
    *("JPEG2000", "PCX", "TGA"),
)
# first bytes of PNG files, and of JPEG files
PNG = b"\x89PNG\r\n\x1a\n"
_COMMON_FORMATS = (b"\xff\xd8\xff", PNG)
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
# libjpeg keeps all coefficients of a progressive file, two bytes each, whatever the reduction
PROGRESSIVE_FACTOR = 4


def read_image(image: AnyImage, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode one image, and return it upright in mode RGB.

    Args:
        image: Path, bytes, binary file, :class:`.MediaFile`, open ``PIL.Image``, or array
            ``[height, width, 3]`` uint8 in the order R, G, B.
        max_pixels: Largest number of pixels. Larger JPEGs are decoded at a reduced scale, other
            larger images are refused.
    """
    with file_errors():
        if isinstance(image, np.ndarray):
            return _to_rgb(Image.fromarray(image))
        if isinstance(image, Image.Image):
            return _to_rgb(_rotate_upright(image))
        with allow_any_size(), open_media(image) as stream:
            return _decode(stream, max_pixels)


@contextlib.contextmanager
def allow_any_size() -> Iterator[None]:
    """Lift Pillow's limit of image sizes, and hide warnings, inside the context."""
    # Pillow refuses large images when they are opened, before a reduced scale can be requested
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        # warnings about broken tags would break a progress bar
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _decode(stream: BinaryIO, max_pixels: int) -> Image.Image:
    head = stream.read(16)
    stream.seek(0)
    # without the plugin, Pillow would call the file no image: the brand says which extra reads it
    if head[4:8] == b"ftyp" and head[8:12] in HEIF_BRANDS:
        import_extra("pillow_heif", extra="heif", purpose="an HEIC image").register_heif_opener()
    # importing the plugins of all formats takes 30 ms
    (Image.preinit if head.startswith(_COMMON_FORMATS) else Image.init)()
    # AVIF and HEIF are in some installations only
    formats = [name for name in FORMATS if name in Image.OPEN]

    def load(stream: BinaryIO) -> Image.Image:
        try:
            image = Image.open(stream, formats=formats)
        except Image.UnidentifiedImageError:
            raise UserError("is not an image, or its format is not supported.") from None
        with image:
            _limit_size(image, max_pixels)
            image.load()  # Image.open reads the head only, and the stream is closed afterwards
            return _to_rgb(_rotate_upright(image))

    try:
        return load(stream)
    except (ValueError, SyntaxError, OSError):
        if not head.startswith(PNG):
            raise
        # Pillow refuses images whose metadata are large or damaged
        return load(_drop_png_metadata(stream))


def _drop_png_metadata(stream: BinaryIO) -> BinaryIO:
    """Return a PNG with the chunks that the pixels and the orientation of the image depend on."""
    stream.seek(0)
    content = stream.read()
    kept, start = [PNG], len(PNG)
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        name, data = content[start + 4 : start + 8], content[start + 8 : end - 4]
        is_whole = zlib.crc32(name + data).to_bytes(4, "big") == content[end - 4 : end]
        has_orientation = name == b"eXIf" or data.startswith(b"XML:com.adobe.xmp\0\0")
        # a capital letter begins the names of chunks that every reader needs
        if name[:1].isupper() or name == b"tRNS" or (is_whole and has_orientation):
            kept.append(content[start:end])
        start = end
    return io.BytesIO(b"".join(kept))


def _limit_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height <= max_pixels:
        return
    limit = max_pixels
    if image.format in ("JPEG", "MPO"):
        if not image.info.get("progressive") or width * height <= max_pixels * PROGRESSIVE_FACTOR:
            factor = next((n for n in (2, 4, 8) if width * height <= max_pixels * n * n), 8)
            # libjpeg chooses its smallest scale that is not below this size
            image.draft(None, (-(-width // factor), -(-height // factor)))
            if image.size[0] * image.size[1] <= max_pixels:
                return
        else:
            limit = max_pixels * PROGRESSIVE_FACTOR
    raise UserError(
        f"has {width} x {height} pixels, more than the {limit:,} that are decoded "
        f"(--max-pixels {width * height} allows it)."
    )


def _rotate_upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken tag says nothing about the orientation
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    # PNG and GIF can declare one colour transparent, without an alpha channel
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _grey_to_8_bits(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _grey_to_8_bits(image: Image.Image) -> Image.Image:
    # float32 could not hold all 32-bit integers
    values = np.asarray(image).astype(np.float64)  # [height, width]
    # Pillow opens 16-bit PNG and PGM as I;16 or, in older versions, as I
    if image.mode.startswith("I;16") or image.format in ("PNG", "PPM"):
        low, high = 0.0, 65535.0
    else:
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(values).all():
            raise ValueError("pixels are NaN or infinite")
    # an image of one value has no range to divide by
    grey = np.rint((values - low) * (255 / max(high - low, 1e-30)))
    return Image.fromarray(grey.astype(np.uint8))
