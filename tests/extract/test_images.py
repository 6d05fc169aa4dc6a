"""Every kind of file becomes upright 8-bit RGB, or is refused with its reason."""

import contextlib
import io
import struct
import tarfile
import tempfile
import zlib

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import MediaFile, read_image


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@pytest.fixture
def colours() -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 255, (7, 5, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_every_kind_of_input_gives_the_same_pixels(colours, tmp_path):
    path, content = tmp_path / "a.png", encoded(colours, "PNG")
    path.write_bytes(content)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(path, "a.png")
    with tarfile.open(tmp_path / "a.tar") as archive:
        entry = archive.getmembers()[0]
    member = MediaFile("a", str(tmp_path / "a.tar"), "a.png", entry.offset_data, entry.size)
    written = io.BytesIO()
    written.write(content)  # its position is at the end
    pixels = np.asarray(colours)
    turned = np.ascontiguousarray(pixels.transpose(1, 0, 2)).transpose(1, 0, 2)
    with open(path, "rb") as file, tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(content)
        spooled.seek(0)
        stream = io.BufferedReader(OneWay(content))
        inputs = (path, str(path), content, colours, pixels, turned, member, written, file)
        for image in (*inputs, spooled, stream):
            read = read_image(image)
            assert read.mode == "RGB"
            np.testing.assert_array_equal(np.asarray(read), pixels)
        assert not file.closed


class OneWay(io.RawIOBase):
    """What cannot be sought in, as a pipe."""

    def __init__(self, content: bytes) -> None:
        self.rest = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        part, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def test_inputs_of_another_kind_are_refused(colours, tmp_path):
    pixels = np.asarray(colours)
    with open(tmp_path / "text", "w+") as text:
        for wrong in (pixels / 255, pixels[:, :, :2] / 255, pixels[None], 3, text):
            with pytest.raises(UserError, match=r"^cannot be read"):
                read_image(wrong)


@pytest.mark.parametrize(("orientation", "turn"), [(3, 2), (6, 3), (8, 1)])
def test_the_orientation_tag_is_applied(colours, orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = read_image(encoded(colours, "PNG", exif=exif))
    np.testing.assert_array_equal(np.asarray(read), np.rot90(np.asarray(colours), turn))


def test_cmyk_becomes_rgb_with_the_same_colours():
    red = Image.new("RGB", (8, 8), (250, 10, 10)).convert("CMYK")
    read = np.asarray(read_image(encoded(red, "JPEG", quality=100))).astype(int)
    assert np.abs(read - [250, 10, 10]).max() < 8


def test_transparency_lies_on_white():
    layer = Image.new("RGBA", (3, 2), (0, 0, 0, 0))
    layer.putpixel((1, 0), (10, 20, 30, 255))
    read = np.asarray(read_image(encoded(layer, "PNG")))
    assert read[0, 1].tolist() == [10, 20, 30]
    assert read[1, 2].tolist() == [255, 255, 255]


def test_a_palette_with_transparency_lies_on_white():
    image = Image.new("P", (4, 3), 1)
    image.putpalette([9, 8, 7, 200, 100, 50])
    image.putpixel((2, 1), 0)
    opaque = np.asarray(read_image(encoded(image, "PNG")))
    assert opaque[0, 0].tolist() == [200, 100, 50]
    assert opaque[1, 2].tolist() == [9, 8, 7]
    read = np.asarray(read_image(encoded(image, "PNG", transparency=0)))
    assert read[0, 0].tolist() == [200, 100, 50]
    assert read[1, 2].tolist() == [255, 255, 255]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_and_not_clipped(form):
    values = np.array([[0, 257, 32896], [61680, 25700, 51400]], dtype=np.uint16)
    read = np.asarray(read_image(encoded(Image.fromarray(values), form)))
    assert read[:, :, 0].tolist() == [[0, 1, 128], [240, 100, 200]]
    assert (read[:, :, 0] == read[:, :, 2]).all()


def test_floats_are_stretched_from_smallest_to_largest():
    values = np.array([[-1.0, 0.0], [0.5, 1.0]], dtype=np.float32)
    read = np.asarray(read_image(encoded(Image.fromarray(values), "TIFF")))
    assert read[:, :, 1].tolist() == [[0, 128], [191, 255]]
    values[0, 1] = np.nan
    with pytest.raises(UserError, match="pixels are NaN or infinite"):
        read_image(encoded(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_of_an_animation_the_first_frame_is_taken(form):
    first, second = Image.new("RGB", (6, 4), "red"), Image.new("RGB", (6, 4), "blue")
    options = {"lossless": True} if form == "WEBP" else {}
    content = encoded(first, form, save_all=True, append_images=[second], **options)
    assert np.asarray(read_image(content))[2, 3].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF"])
def test_a_truncated_file_is_refused(form):
    noise = np.random.default_rng(2).integers(0, 255, (60, 50, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), form)
    with pytest.raises(UserError, match=r"cannot be read .*(truncated|not process)"):
        read_image(content[: len(content) // 2])


def png_chunk(name, data, *, is_damaged=False):
    check = zlib.crc32(name + data) ^ is_damaged
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (png_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 21))), b""),
        (png_chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 21))), b""),
        (png_chunk(b"iTXt", b"x\0\1\0\0\0" + zlib.compress(bytes(1 << 21))), b""),
        (png_chunk(b"tEXt", b"x\0" + bytes(1 << 20)) * 70, b""),
        (b"", png_chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 21)))),
        (png_chunk(b"tEXt", b"x\0y", is_damaged=True), b""),
        (b"", png_chunk(b"tIME", b"x", is_damaged=True)),
        (png_chunk(b"gAMA", b"x"), png_chunk(b"abCd", b"x", is_damaged=True)),
    ],
)
def test_metadata_of_a_png_do_not_hide_its_pixels(colours, before, after):
    exif = Image.Exif()
    exif[0x0112] = 3
    content = encoded(colours, "PNG", exif=exif)
    content = content[:33] + before + content[33:-12] + after + content[-12:]
    expected = np.rot90(np.asarray(colours), 2)
    np.testing.assert_array_equal(np.asarray(read_image(content)), expected)
    with pytest.raises(UserError):  # pixels are not lost without a word
        read_image(content[: content.index(b"IDAT") + 40])


@pytest.mark.parametrize("form", ["EPS", "ICO", "ICNS"])
def test_formats_that_need_a_program_or_hide_their_size_are_refused(form):
    content = encoded(Image.new("RGB", (32, 32)), form)
    with pytest.raises(UserError, match=r"is not an image, or its format is not supported"):
        read_image(content)


def test_what_is_no_image_is_refused(tmp_path):
    for content, reason in (
        (b"just some text that nobody would call an image", "is not an image"),
        (b"", "is not an image"),
        (tmp_path / "absent.jpg", "No such file or directory"),
        (tmp_path, "is a folder"),
    ):
        with pytest.raises(UserError, match=reason):
            read_image(content)


def test_noise_behind_a_valid_head_never_raises_anything_else(colours):
    heads = [encoded(colours, form)[:40] for form in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP")]
    generator = np.random.default_rng(3)
    for head in heads * 10:
        with contextlib.suppress(UserError):
            read_image(head + generator.bytes(200))


def test_a_large_jpeg_is_decoded_at_reduced_scale_and_close_to_the_full_image():
    x, y = np.meshgrid(np.arange(400), np.arange(240))
    pixels = np.stack([x / 2, y, 255 - x / 2], axis=2).astype(np.uint8)
    content = encoded(Image.fromarray(pixels), "JPEG", quality=95)
    full, half = read_image(content), read_image(content, max_pixels=400 * 240 // 2)
    assert full.size == (400, 240)
    assert half.size == (200, 120)
    assert read_image(content, max_pixels=100 * 60).size == (100, 60)
    assert read_image(content, max_pixels=100 * 60 - 1).size == (50, 30)
    difference = np.asarray(full.resize((200, 120))).astype(int) - np.asarray(half)
    assert np.abs(difference).mean() < 2


def test_a_large_image_that_cannot_be_reduced_is_refused():
    grey = Image.new("L", (300, 200))
    message = r"has 300 x 200 pixels, more than the 1,000 .* \(--max-pixels 60000 allows it\)\."
    with pytest.raises(UserError, match=message):
        read_image(encoded(grey, "PNG"), max_pixels=1000)
    progressive = encoded(grey, "JPEG", progressive=True)
    assert read_image(progressive, max_pixels=300 * 200 // 4).size == (150, 100)
    with pytest.raises(UserError, match="more than the 40,000 that are decoded"):
        read_image(progressive, max_pixels=10_000)


def test_a_decompression_bomb_is_refused_and_not_decoded():
    def chunk(kind: bytes, content: bytes) -> bytes:
        import zlib

        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(UserError, match="has 60000 x 60000 pixels"):
        read_image(bomb)
    assert before == Image.MAX_IMAGE_PIXELS


def test_heic_is_read_where_pillow_heif_is_installed(colours):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    smooth = Image.new("RGB", (64, 48), (30, 160, 90))
    read = read_image(encoded(smooth, "HEIF", quality=90))
    assert read.size == (64, 48)
    assert np.abs(np.asarray(read).astype(int) - [30, 160, 90]).max() < 10
