"""Which images or videos: folders, files, lists, tar archives and JSONL become ids, in order."""

import contextlib
import io
import os
import posixpath
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from fairseq_mm.data.input_files import MAX_FILE_BYTES, parse_object, read_id, read_lines
from fairseq_mm.errors import UserError

ID_FORMS = ("name", "stem", "path")
# of an image or a frame that is read, unless another limit is given
MAX_PIXELS = 64_000_000


class Kind(NamedTuple):
    """What is looked for.

    Attributes:
        noun: what one is called, in messages and in JSONL.
        suffixes: that folders and archives are searched for.
        field: of JSONL, with one path.
        fields: of JSONL, with several.
    """

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
    """Where one image (or video) lies.

    Attributes:
        key: its id in the feature store.
        path: the file, or the archive that has it.
        member: its name in the archive; empty for a file.
        offset: where its content begins in the archive.
        size: bytes of its content in the archive.
    """

    key: str
    path: str
    member: str = ""
    offset: int = 0
    size: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.path}:{self.member}" if self.member else self.path

    def size_and_time(self) -> tuple[int, int]:
        """Return bytes of the content, and when the file was changed, in nanoseconds.

        Raises:
            OSError: if the file is gone.
            UserError: if it is a folder, a device or a pipe, which have no size.
        """
        found = os.stat(self.path)
        if not stat.S_ISREG(found.st_mode):
            raise UserError("is a folder, a device or a pipe.")
        return self.size if self.member else found.st_size, found.st_mtime_ns

    def open(self) -> BinaryIO:
        """
        Raises:
            OSError: if the file cannot be read.
        """
        if not self.member:
            return _open_file(self.path)
        member = tarfile.TarInfo(self.member)
        member.offset_data, member.size = self.offset, self.size
        # a regular file, which has a content
        return tarfile.open(self.path, "r:").extractfile(member)  # type: ignore[return-value]


def _open_file(path: Union[str, os.PathLike]) -> BinaryIO:
    """
    Raises:
        OSError: if the file cannot be read.
        UserError: if it is a device or a pipe, which would be waited for or read without end.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UserError("is a device or a pipe, but must be a file.")
    return open(path, "rb")


# a path, the content, a binary file or an entry of a list
AnyMedia = Union[str, os.PathLike, bytes, BinaryIO, MediaFile]


def open_media(media: AnyMedia) -> contextlib.AbstractContextManager[BinaryIO]:
    """The content of an image or a video as a binary file that can be read at any place.

    A file that the caller has opened is read from its beginning, and left open.

    Raises:
        OSError: if the file cannot be read.
        UserError: if it is none of the kinds of ``AnyMedia``.
    """
    if isinstance(media, bytes):
        return io.BytesIO(media)
    if isinstance(media, MediaFile):
        return media.open()
    if isinstance(media, (str, os.PathLike)):
        return _open_file(media)
    if not hasattr(media, "read") or not isinstance(media.read(0), bytes):
        raise UserError(
            f"must be a path, bytes or a file opened in binary mode, but is a "
            f"{type(media).__name__} instead."
        )
    seekable = getattr(media, "seekable", None)  # SpooledTemporaryFile has none before Python 3.11
    if seekable is None or not seekable():
        content = media.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UserError(f"must have at most {MAX_FILE_BYTES >> 20} MiB, but is larger.")
        return io.BytesIO(content)
    media.seek(0)
    return contextlib.nullcontext(media)


def media_name(media: object, number: int, noun: str) -> str:
    """For messages: its path, or its place in the arguments."""
    if isinstance(media, MediaFile):
        return media.name
    return os.fspath(media) if isinstance(media, (str, os.PathLike)) else f"{noun} {number}"


def list_images(
    inputs: Sequence[str],
    *,
    lists: Sequence[str] = (),
    root: Optional[str] = None,
    ids: str = "name",
    kind: Kind = IMAGES,
) -> list[MediaFile]:
    """All images (or videos) in the order of the inputs; folders and archives by the alphabet.

    Args:
        inputs: folders (searched with all their subfolders for the suffixes of images), image
            files, ``.tar`` archives, ``.jsonl`` files with ``image`` or ``images`` in each line.
        lists: text files with one path a line, or an id, a tab and a path.
        root: folder of relative paths in lists and JSONL; by default that of the list itself.
        ids: ``name`` (``dog.jpg``), ``stem`` (``dog``) or ``path`` (as seen from the folder, from
            the archive's top, or as it stands in the list). An id in a list goes before, as
            does ``id`` beside ``image``.
        kind: images or videos.

    Returns:
        images: each id once. An image that is named several times counts once.

    Raises:
        UserError: if an input is missing or not understood, two images have one id, or there is
            no image at all.
    """
    if ids not in ID_FORMS:
        raise UserError(f"`ids` must be one of {', '.join(ID_FORMS)}, but is {ids!r} instead.")
    images: dict[str, MediaFile] = {}
    found = (image for path in inputs for image in _of_input(path, root, ids, kind))
    listed = (image for path in lists for image in _of_list(path, root, ids))
    for source in (found, listed):
        for image in source:
            _check_key(image)
            other = images.setdefault(image.key, image)
            if other != image and not _is_same_file(other, image):
                raise UserError(
                    f"the id {image.key!r} stands for two {kind.noun}s: {other.name} and "
                    f"{image.name}. Choose --ids path, or give ids in a list (--list)."
                )
    if not images:
        where = ", ".join([*inputs, *lists])
        suffixes = " ".join(sorted(kind.suffixes))
        raise UserError(f"{where}: no {kind.noun}s found (suffixes: {suffixes}).")
    return list(images.values())


def by_any_key(images: Iterable[MediaFile]) -> dict[str, MediaFile]:
    """Images by path, name and stem.

    A store's keys are one of these, as the user chose when extracting; a name that several images
    have stands for none of them.

    Args:
        images: with their paths as keys.
    """
    paths = {image.key: image for image in images}
    found = dict(paths)
    for form in (lambda key: Path(key).name, lambda key: Path(key).stem):
        named = Counter(map(form, paths))
        for key in paths:
            if named[form(key)] == 1:
                found.setdefault(form(key), paths[key])
    return found


def select_shard(images: Sequence[MediaFile], shard: int, num_shards: int) -> list[MediaFile]:
    """Part ``shard`` (from 1) of ``num_shards`` contiguous parts, which may be empty."""
    if not 1 <= shard <= num_shards:
        raise UserError(f"--shard must be 1/N to N/N, but is {shard}/{num_shards} instead.")
    N = len(images)
    return list(images[N * (shard - 1) // num_shards : N * shard // num_shards])


def _is_same_file(one: MediaFile, other: MediaFile) -> bool:
    return one.member == other.member and os.path.realpath(one.path) == os.path.realpath(other.path)


def _check_key(image: MediaFile) -> None:
    """What the feature store would refuse, hours later."""
    key = image.key
    is_utf8 = key.encode("utf-8", "replace").decode() == key
    if not is_utf8 or "\t" in key or key.splitlines() != [key]:
        raise UserError(
            f"{image.name!a}: the id {key!a} must be UTF-8 text of one line without "
            f"tabs. Rename the file, or give an id in a list (--list)."
        )


def _key(path: str, ids: str) -> str:
    pure = PurePosixPath(Path(path).as_posix())
    return {"name": pure.name, "stem": pure.stem, "path": str(pure)}[ids]


def _of_input(path: str, root: Optional[str], ids: str, kind: Kind) -> Iterator[MediaFile]:
    if os.path.isdir(path):
        for file in _walk(path, kind.suffixes, seen=set()):
            yield MediaFile(_key(os.path.relpath(file, path), ids), file)
        return
    if not os.path.exists(path):
        raise UserError(f"{path}: no such file or folder.")
    lower = path.lower()
    if lower.endswith((".jsonl", ".json")):
        yield from _of_jsonl(path, root, ids, kind)
    elif lower.endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        yield from _of_tar(path, ids, kind)
    elif lower.endswith((".txt", ".tsv", ".lst")):
        raise UserError(f"{path}: is no {kind.noun}. For a list of {kind.noun}s: --list {path}")
    else:
        yield MediaFile(_key(path, ids), path)


def _walk(folder: str, suffixes: frozenset[str], *, seen: set[str]) -> Iterator[str]:
    """Files of those suffixes below ``folder``; links are followed, but never in a circle."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        entries = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}.") from None
    for name in entries:
        if name.startswith("."):  # thumbnails, and the ._ files of macOS
            continue
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            yield from _walk(path, suffixes, seen=seen)
        elif os.path.splitext(name)[1].lower() in suffixes:
            yield path


def _of_tar(path: str, ids: str, kind: Kind) -> Iterator[MediaFile]:
    try:
        with tarfile.open(path, "r:") as archive:  # "r:": only uncompressed
            members = _members_by_name(archive)
    except tarfile.ReadError:
        raise UserError(
            f"{path}: is no uncompressed tar archive, or is cut short. {kind.noun.capitalize()}s "
            f"gain nothing from compression: repack it as .tar, or unpack it and give the folder."
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}.") from None
    for name, member in sorted(members.items()):
        file = PurePosixPath(name)
        # as in folders: no hidden file, and no file in a hidden folder
        is_hidden = any(part.startswith(".") and part != ".." for part in file.parts)
        if file.suffix.lower() not in kind.suffixes or is_hidden:
            continue
        if member.sparse is not None:
            raise UserError(f"{path}: {name} is stored with holes. Pack it without --sparse.")
        yield MediaFile(_key(name, ids), path, name, member.offset_data, member.size)


def _members_by_name(archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """The files that unpacking leaves: the last member of a name takes the place of the others.

    A hard link is the file that its target was at that point; links to other names are followed,
    as in folders.
    """
    files: dict[str, tarfile.TarInfo] = {}
    links: dict[str, str] = {}
    for member in archive:
        name = posixpath.normpath(member.name)
        target = files.get(posixpath.normpath(member.linkname)) if member.islnk() else member
        files.pop(name, None)
        links.pop(name, None)
        if target is not None and target.isreg():
            files[name] = target
        elif member.issym():
            links[name] = posixpath.normpath(
                posixpath.join(posixpath.dirname(name), member.linkname)
            )
    found = dict(files)
    for name in links:
        end, seen = name, set()
        while end in links and end not in seen:
            seen.add(end)
            end = links[end]
        if end in files:
            found[name] = files[end]
    return found


def _located(file: str, listed_in: str, root: Optional[str]) -> str:
    return os.path.join(os.path.dirname(listed_in) if root is None else root, file)


def _of_list(path: str, root: Optional[str], ids: str) -> Iterator[MediaFile]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) > 2 or not all(field.strip() for field in fields):
            raise UserError(
                f"{path}:{number}: must be a path, or an id, a tab and a path, but is {line!r}."
            )
        file = fields[-1].strip()
        key = fields[0].strip() if len(fields) == 2 else _key(file, ids)
        yield MediaFile(key, _located(file, path, root))


def _of_jsonl(path: str, root: Optional[str], ids: str, kind: Kind) -> Iterator[MediaFile]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        entry: dict[str, Any] = {}
        try:
            entry = parse_object(line, "")
            images = entry[kind.fields] if kind.fields in entry else [entry[kind.field]]
        except (UserError, KeyError):
            images = None
        if not isinstance(images, list) or not all(
            image and isinstance(image, str) for image in images
        ):
            raise UserError(
                f'{path}:{number}: must be an object with "{kind.field}" (a path) or '
                f'"{kind.fields}" (several), but is {line[:80]!r}.'
            )
        key = read_id(entry, f"{path}:{number}", what="an image" if kind is IMAGES else "a video")
        if kind.fields in entry:
            key = None  # the id of the story that has these images
        for image in images:
            yield MediaFile(key or _key(image, ids), _located(image, path, root))
