"""Lists images or videos from folders, files, tar archives and JSONL."""

import contextlib
import io
import json
import os
import posixpath
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from fairseq_mm.data.input_files import read_id, read_objects
from fairseq_mm.errors import UserError, file_errors

ID_FORMS = ("name", "stem", "path")
# 64 megapixels take 192 MB in each decoding process
MAX_PIXELS = 64_000_000


class Kind(NamedTuple):
    """Images or videos: noun for messages, suffixes of files in folders and archives, fields of a
    JSONL line with one path and with several (also the plural noun)."""

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
    """Location of one image or video: id, path, and for members of an archive the name, the
    position and the number of bytes in the archive at this path."""

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
        """Return the size of the image or video in bytes, and the time of its, or its archive's,
        last change in ns."""
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
    """Return a dict in which each image of ``list_images(ids="path")`` has three keys: its path,
    name and stem (without those that several images share), as ids of a store may be."""
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
    """List the files below a folder with one of the suffixes; follow links, but visit no folder
    twice. Unreadable subfolders are appended to ``refused``, or are errors without this list."""
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
    """Return, by name, the members of an archive that would be regular files after unpacking."""
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
