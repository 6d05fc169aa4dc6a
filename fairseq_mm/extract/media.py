"""Lists images or videos from folders, files, tar archives and JSONL, opens them, and decodes
images to 8-bit RGB in bounded memory.

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
import json
import os
import posixpath
import stat
import tarfile
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Optional, Union

import numpy as np
from PIL import Image, ImageOps

from fairseq_mm.data.input_files import read_id, read_objects
from fairseq_mm.errors import UserError, file_errors, import_extra

ID_FORMS = ("name", "stem", "path")
# 64 megapixels take 192 MB in each decoding process
MAX_PIXELS = 64_000_000
# names in Pillow of the formats that folders and archives are searched for, see IMAGES
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


class Kind(NamedTuple):
    """Kind of media, images or videos: noun for messages, suffixes of files, and JSON fields for
    one path (``field``) and for several (``fields``, also the plural noun)."""

    noun: str
    suffixes: frozenset[str]
    field: str
    fields: str


def _suffixes(names: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in names.split())


IMAGES = Kind(
    "image",
    _suffixes(
        "apng avif bmp dib gif heic heif hif j2k jfif jp2 jpe jpeg jpg jpx "
        "pbm pcx pgm png pnm ppm tga tif tiff webp"
    ),
    "image",
    "images",
)
VIDEOS = Kind(
    "video",
    _suffixes(
        "3g2 3gp asf avi divx dv f4v flv gif ivf m2ts m2v m4v mkv mov mp4 mpe "
        "mpeg mpg mts mxf ogm ogv qt rm rmvb ts vob webm wmv y4m"
    ),
    "video",
    "videos",
)


class MediaFile(NamedTuple):
    """Location of one image or video: id and path. The member of an archive has the archive's path,
    and the member's name, position and number of bytes."""

    key: str
    path: str
    member: str = ""
    offset: int = 0
    size: int = 0

    @property
    def name(self) -> str:
        """Name of the file in messages: its path, or the path of the archive and the name in it."""
        return f"{self.path}:{self.member}" if self.member else self.path

    def size_and_time(self) -> tuple[int, int]:
        """Return the size of the image or video in bytes, and the time of its (or its archive's)
        last change in nanoseconds."""
        status = _stat_file(self.path)
        return self.size if self.member else status.st_size, status.st_mtime_ns

    def open(self) -> Any:
        """Open the image or video for reading. Raise OSError if the file cannot be read."""
        _stat_file(self.path)
        if not self.member:
            return open(self.path, "rb")
        # made by hand: tarfile would search a name in all headers before it, for every member anew
        member = tarfile.TarInfo(self.member)
        member.offset_data, member.size = self.offset, self.size
        # None only for members that are no regular files, which no list has
        return tarfile.open(self.path, "r:").extractfile(member)


def _stat_file(path: Union[str, os.PathLike]) -> os.stat_result:
    status = os.stat(path)
    # a device or a pipe may block or never end
    if not stat.S_ISREG(status.st_mode):
        raise UserError("is a folder, a device or a pipe.")
    return status


AnyMedia = Union[str, os.PathLike, bytes, BinaryIO, MediaFile]
AnyImage = Union[AnyMedia, Image.Image, np.ndarray]


def open_media(media: AnyMedia) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open an image or a video as a binary file with random access; a file that the caller has
    opened is read from its beginning, and left open."""
    if isinstance(media, bytes):
        return io.BytesIO(media)
    if isinstance(media, MediaFile):
        return media.open()
    if isinstance(media, (str, os.PathLike)):
        _stat_file(media)
        return open(media, "rb")
    seekable = getattr(media, "seekable", None)  # SpooledTemporaryFile lacks it before Python 3.11
    if seekable is None or not seekable():
        return io.BytesIO(media.read())
    media.seek(0)
    return contextlib.nullcontext(media)


def media_name(media: object, number: int, noun: str) -> str:
    """Return a name for messages: the path, or "image 3" for bytes and open files."""
    if isinstance(media, MediaFile):
        return media.name
    return os.fspath(media) if isinstance(media, (str, os.PathLike)) else f"{noun} {number}"


def list_images(
    inputs: Sequence[str],
    *,
    ids: str = "name",
    kind: Kind = IMAGES,
) -> list[MediaFile]:
    """List images or videos in the order of the inputs; sort the content of folders and archives.

    A file that several inputs name under the same id is listed once.

    Args:
        inputs: Folders (searched with all subfolders), single files, ``.tar`` archives, or
            ``.jsonl`` files with ``image`` or ``images`` (``video``, ``videos``) in each line.
        ids: Form of the ids: ``name`` (``dog.jpg``), ``stem`` (``dog``) or ``path`` (relative to
            the folder or the archive, or as it is written in a JSONL file). An id in a line with
            ``image`` or ``video`` takes precedence.
        kind: Images or videos.
    """
    images: dict[str, MediaFile] = {}
    listed: list[MediaFile] = []
    for path in inputs:
        with file_errors(path, kinds=(OSError, ValueError)):
            listed += _list_input(path, ids, kind)
    for image in listed:
        _check_key(image)
        other = images.setdefault(image.key, image)
        # links, or a folder and its subfolder among the inputs, can name one file twice
        if other != image and (
            other.member != image.member
            or os.path.realpath(other.path) != os.path.realpath(image.path)
        ):
            raise UserError(
                f"the id {image.key!r} stands for two {kind.noun}s: {other.name} and "
                f"{image.name}. Choose --ids path, or give ids in a .jsonl."
            )
    if not images:
        suffixes = " ".join(sorted(kind.suffixes))
        raise UserError(
            f"no {kind.noun}s found in {', '.join(inputs) or 'no inputs'} (suffixes: {suffixes})."
        )
    return list(images.values())


def list_folder(folder: str) -> tuple[list[MediaFile], list[tuple[str, str]]]:
    """List the images below a folder; ids are paths relative to it.

    Returns:
        files: The files in the order of their paths.
        refused: Path and reason of each subfolder that cannot be read, and of each file whose name
            cannot be an id.
    """
    files: list[MediaFile] = []
    refused: list[tuple[str, str]] = []
    with file_errors(folder, kinds=OSError):
        for path in _walk(folder, IMAGES.suffixes, seen=set(), refused=refused):
            file = MediaFile(_make_key(os.path.relpath(path, folder), "path"), path)
            try:
                _check_key(file)
                files.append(file)
            except UserError:
                refused.append((path, "its name must be UTF-8 text of one line without tabs."))
    return files, refused


def by_any_key(images: Iterable[MediaFile]) -> dict[str, MediaFile]:
    """Return a dict in which images of ``list_images(ids="path")`` are found by path, name and
    stem, because a store's ids may be any of the three. A name or stem of several images is left
    out."""
    paths = {image.key: image for image in images}
    by_key = dict(paths)
    for form in (lambda key: Path(key).name, lambda key: Path(key).stem):
        counts = Counter(map(form, paths))
        for key in paths:
            if counts[form(key)] == 1:
                by_key.setdefault(form(key), paths[key])
    return by_key


def _check_key(image: MediaFile) -> None:
    # the feature store would refuse such an id, but after hours of extraction
    key = image.key
    is_utf8 = key.encode("utf-8", "replace").decode() == key
    if not is_utf8 or "\t" in key or key.splitlines() != [key]:
        raise UserError(
            f"{image.name!a}: the id {key!a} must be UTF-8 text of one line without "
            f"tabs. Rename the file, or give an id in a .jsonl."
        )


def _make_key(path: str, ids: str) -> str:
    pure = PurePosixPath(Path(path).as_posix())
    return {"name": pure.name, "stem": pure.stem, "path": str(pure)}[ids]


def _list_input(path: str, ids: str, kind: Kind) -> Iterator[MediaFile]:
    if os.path.isdir(path):
        for file in _walk(path, kind.suffixes, seen=set()):
            yield MediaFile(_make_key(os.path.relpath(file, path), ids), file)
        return
    os.stat(path)
    lower = path.lower()
    if lower.endswith((".jsonl", ".json")):
        yield from _read_jsonl(path, ids, kind)
    elif lower.endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        yield from _list_archive(path, ids, kind)
    else:
        yield MediaFile(_make_key(path, ids), path)


def _walk(
    folder: str,
    suffixes: frozenset[str],
    *,
    seen: set[str],
    refused: Optional[list[tuple[str, str]]] = None,
) -> Iterator[str]:
    """Yield the files below a folder with one of the suffixes; follow links, but visit no folder
    twice. Append unreadable subfolders to ``refused``; if it is None, raise OSError."""
    is_first = not seen
    real = os.path.realpath(folder)
    # a link to a folder around it would be followed for ever
    if real in seen:
        return
    seen.add(real)
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        if refused is None or is_first:
            raise OSError(error.errno, f"{error.strerror}: {folder}") from None
        refused.append((folder, f"{error.strerror}."))
        return
    for name in entries:
        if name.startswith("."):  # thumbnails, and the ._ files of macOS
            continue
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _walk(path, suffixes, seen=seen, refused=refused)
        elif os.path.splitext(name)[1].lower() in suffixes:
            yield path


def _list_archive(path: str, ids: str, kind: Kind) -> Iterator[MediaFile]:
    try:
        # "r:" refuses compressed archives, which have no random access
        with tarfile.open(path, "r:") as archive:
            members = _members_by_name(archive)
    except tarfile.ReadError:
        raise ValueError(
            f"is no uncompressed tar archive, or is cut short. {kind.noun.capitalize()}s gain "
            "nothing from compression: repack it as .tar, or unpack it and give the folder"
        ) from None
    for name, member in sorted(members.items()):
        file = PurePosixPath(name)
        # as in folders: no hidden file, and no file in a hidden folder
        is_hidden = any(part.startswith(".") and part != ".." for part in file.parts)
        if file.suffix.lower() not in kind.suffixes or is_hidden:
            continue
        yield MediaFile(_make_key(name, ids), path, name, member.offset_data, member.size)


def _members_by_name(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Return a dict from name to member of an archive: regular files, and links by their names."""
    files: dict[str, tarfile.TarInfo] = {}
    links: dict[str, str] = {}
    for member in archive:
        name = posixpath.normpath(member.name)
        # a hard link is the file that its target was at this point of the archive
        target = files.get(posixpath.normpath(member.linkname)) if member.islnk() else member
        # the last member of a name replaces the others
        files.pop(name, None)
        links.pop(name, None)
        if target is not None and target.isreg():
            files[name] = target
        elif member.issym():
            links[name] = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), member.linkname)
            )
    # symbolic links last: their targets may be replaced, or follow in the archive
    members = dict(files)
    for name in links:
        end, seen = name, set()  # links may form a circle
        while end in links and end not in seen:
            seen.add(end)
            end = links[end]
        if end in files:
            members[name] = files[end]
    return members


def _read_jsonl(path: str, ids: str, kind: Kind) -> Iterator[MediaFile]:
    folder = os.path.dirname(path)
    for where, entry in read_objects(path):
        images = entry[kind.fields] if kind.fields in entry else [entry.get(kind.field)]
        if not isinstance(images, list) or not all(x and isinstance(x, str) for x in images):
            raise UserError(
                f'{where}: must have "{kind.field}" (a path) or "{kind.fields}" (several), but is '
                f"{json.dumps(entry)[:80]}."
            )
        key = read_id(entry, where, what="an image" if kind is IMAGES else "a video")
        if kind.fields in entry:
            key = None  # the id names the story, not one of its images
        for image in images:
            yield MediaFile(key or _make_key(image, ids), os.path.join(folder, image))


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
    """Return a PNG that has only the chunks that determine pixels and orientation of the image."""
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
