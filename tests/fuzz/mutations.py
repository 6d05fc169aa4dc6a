"""Damage of input files: the same bytes for the same generator of random numbers."""

import gzip
import io
import json
import random
import re
import struct
import zipfile
from typing import Any, Callable

NUMBERS = [0, 1, -1, 2, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32, -(2**31), 2**63 - 1, 2**63, 2**64]
FLOATS = [0.0, -0.0, 0.5, -1e-30, 1e308, 1e400, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", " ", "a", "\t", "a\tb", "a\nb", "\u2028", "\x00", "é" * 300, "x" * 70_000, "-1", "1e9"]
TEXTS += [
    "../../etc/passwd",
    "/dev/zero",
    "[]",
    "None",
    "</s>",
    "<unk>",
    "<unk-3>",
    "=1+1",
    "[ WP ]",
]
# what JSON holds where something else is expected; each is a text of JSON
VALUES = ["null", "true", "false", "[]", "{}", "[[]]", '[""]', '{"a": 1}', "[null]", "[1, 2]"]
VALUES += [*map(json.dumps, [*NUMBERS, *FLOATS, *TEXTS]), '"\\ud800"', '"\\udc00x"', "1" * 6000]
VALUES += ["-" + "9" * 400, "1." + "0" * 5000, "1e999999", "[" * 3000 + "]" * 3000, "NaN"]
VALUES += ['{"a":' * 2000 + "1" + "}" * 2000, "[" * 150 + "]" * 150, "[" * 200_000]
# of a checkpoint, where something else is expected
OPTIONS: list[Any] = [None, True, 0, -1, 10**12, 2**70, 0.5, float("nan"), "", "x", [], [1], {}]
OPTIONS += [{"a": 1}, (1, 2), "9" * 6000, "[(1, 2)] * 3", "eval('1')", [[[]]], "__import__('os')"]
PIECES = [
    b"\x00",
    b"\xff",
    b"\n",
    b"\r\n",
    b"\r",
    b"\t",
    b" ",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b'"',
]
PIECES += [b"\xc3\x28", b"{", b"]", b"-1", b"9" * 6000, b"nan", b"\x1a", b"\xe2\x80\xa8", b"\x0b"]


def mutate(content: bytes, name: str, generator: random.Random) -> bytes:
    """A damaged copy of a file.

    Args:
        content: of the file.
        name: of the file, whose ending says what can be damaged.
        generator: of random numbers.
    """
    kinds: list[Callable[[bytes, random.Random], bytes]] = [_damage_bytes]
    kinds += next((more for ending, more in _KINDS.items() if name.endswith(ending)), [])
    if b"\0" not in content[:200]:
        kinds += [_damage_lines, _damage_words]
    damage = generator.choice(kinds)
    try:
        damaged = damage(content, generator)
    except (ValueError, LookupError, TypeError, zipfile.BadZipFile, OSError):
        damaged = content  # of another layout than its ending says
    while damaged == content:
        damaged = _damage_bytes(content, generator)
    return damaged


def _damage_bytes(content: bytes, generator: random.Random) -> bytes:
    found = bytearray(content)
    kind = generator.randrange(9)
    if kind == 0:
        return bytes(found[: generator.randrange(len(found) + 1)])
    if kind == 1:
        return content.replace(b"\n", b"\r\n")
    if kind == 2:
        return generator.choice(PIECES) + content
    for _ in range(generator.choice((1, 1, 2, 5, 40))):
        # headers and what stands at the end say how the rest is read
        end = len(found) if generator.random() < 0.6 else min(len(found), 128)
        at = generator.randrange(end + 1)
        if kind in (3, 4):
            found[at : at + 1] = bytes([generator.randrange(256)])
        elif kind == 5:
            found[at:at] = generator.choice(PIECES)
        elif kind == 6:
            del found[at : at + generator.choice((1, 1, 4, 50))]
        elif kind == 7:
            number = generator.choice(NUMBERS) % 2**64
            packed = struct.pack("<Q", number)[: generator.choice((1, 2, 4, 8))]
            found[at : at + len(packed)] = packed
        else:
            piece = found[at : at + generator.choice((1, 8, 60))]
            found[at:at] = piece * generator.choice((1, 2, 20))
    return bytes(found)


def _damage_lines(content: bytes, generator: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = generator.randrange(len(lines))
    kind = generator.randrange(7)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[at])
    elif kind == 2:
        lines[at] = b"\n"
    elif kind == 3:
        lines[at] = generator.choice(TEXTS).encode() + b"\n"
    elif kind == 4:
        generator.shuffle(lines)
    elif kind == 5:
        lines[at] = lines[at].rstrip(b"\n")
    else:
        return b"" if generator.random() < 0.3 else content + lines[at] * 500
    return b"".join(lines)


def _damage_words(content: bytes, generator: random.Random) -> bytes:
    """Puts another text in the place of a word, as bytes that may be no UTF-8."""
    words = re.split(rb"([^\s,;:\"]+)", content)
    if len(words) < 3:
        return content
    at = generator.randrange(1, len(words), 2)
    replacements = [text.encode() for text in TEXTS] + PIECES + [str(x).encode() for x in NUMBERS]
    words[at] = generator.choice(replacements)
    return b"".join(words)


def _damage_json(content: bytes, generator: random.Random) -> bytes:
    """Puts another value in the place of one; of JSONL, in one of the lines."""
    text = content.decode()
    lines = [text]
    at = 0
    try:
        json.loads(text)
    except ValueError:
        lines = text.splitlines(keepends=True)
        at = generator.randrange(len(lines))
    value = json.loads(lines[at])
    lines[at] = json_with_other_value(value, generator) + ("\n" if len(lines) > 1 else "")
    return "".join(lines).encode()


def json_with_other_value(value: Any, generator: random.Random) -> str:
    """JSON of ``value``, in which something at any depth is another value, or gone, or twice."""
    root = [value]
    places: list[tuple[Any, Any]] = [(root, 0)]
    for holder, key in places:
        inner = holder[key]
        if isinstance(inner, dict):
            places += [(inner, name) for name in inner]
        elif isinstance(inner, list):
            places += [(inner, i) for i in range(min(len(inner), 20))]
    holder, key = generator.choice(places)
    kind = generator.randrange(8)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[generator.choice(["", "id", "é", "a\tb", 7])] = holder.pop(key)
    elif kind == 2 and isinstance(holder[key], list):
        holder[key] = holder[key] * generator.choice((0, 2, 40))
    elif kind == 3:
        holder[key] = [holder[key]]
    else:
        mark = "in the place of a value"
        holder[key] = mark
        replaced = generator.choice(VALUES)
        return json.dumps(root[0]).replace(json.dumps(mark), replaced)
    return json.dumps(root[0] if root else None)


def _damage_array(content: bytes, generator: random.Random) -> bytes:
    """Another header of an ``.npy`` file."""
    end = content.index(b"\n", 10)
    header = content[10:end].decode().rstrip()
    change = generator.choice(
        [
            (r"\([\d, ]*\)", generator.choice(_SHAPES)),
            (r"'descr': '[^']*'", f"'descr': {generator.choice(_TYPES)}"),
            ("False", generator.choice(["True", "None", "[]", "1"])),
            ("'shape'", generator.choice(["'shapes'", "shape", "'descr'"])),
            ("}", generator.choice(["", "}}", "} #", ", 'a': " + "(" * 300 + "}"])),
        ]
    )
    header = re.sub(change[0], change[1].replace("\\", "\\\\"), header, count=1)
    padded = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return content[:8] + struct.pack("<H", len(padded) % 65536) + padded + content[end + 1 :]


_SHAPES = [
    "(6, 0)",
    "(0,)",
    "(0, 5)",
    "()",
    "(5,)",
    "(2, 5, 1)",
    "(2, -5)",
    "(1 << 60, 5)",
    "[2, 5]",
]
_SHAPES += ["(4611686018427387904, 5)", "(2.0, 5)", "None", "(2, 5, 1, 1)", "(10,)", "('a', 5)"]
_TYPES = ["'|O'", "'<f8'", "'>f4'", "'<f2'", "'<i4'", "'|S5'", "'<U3'", "'<c8'", "'<M8[s]'", "'f'"]
_TYPES += ["[('a', '<f4')]", "7", "'|V4'", "'|b1'", "''", "'<f400'", "[('a', '<f4', (1000000,))]"]


def _damage_index(content: bytes, generator: random.Random) -> bytes:
    """Sizes and pointers of an ``.idx`` file, and its header."""
    found = bytearray(content)
    kind = generator.randrange(3)
    if kind == 0:
        at = generator.choice((9, 17, 18, 25, 26))
        found[at:at] = generator.choice((b"\x00", b"\x01", b"\xff", b"\r"))
    elif kind == 1:
        at = 9 + generator.choice((0, 8, 9))
        found[at : at + 1] = bytes([generator.randrange(256)])
    else:
        at = 26 + 4 * generator.randrange(max(1, (len(found) - 26) // 4))
        found[at : at + 4] = struct.pack("<I", generator.choice(NUMBERS) % 2**32)
    return bytes(found)


def _damage_archive(content: bytes, generator: random.Random) -> bytes:
    """A file of a zip archive is damaged, left out, renamed or there twice; the others stay."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(target, "w") as archive:
        names = source.namelist()
        chosen = generator.choice(names)
        kind = generator.randrange(6)
        for name in names:
            piece = source.read(name)
            if name == chosen and kind == 0:
                continue
            if name == chosen and kind == 1:
                archive.writestr(f"{name}x", piece)
                continue
            if name == chosen and kind > 2:
                damage = _damage_array if name.endswith(".npy") and kind > 3 else _damage_bytes
                piece = damage(piece, generator)
            method = zipfile.ZIP_DEFLATED if kind == 2 else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), piece, method)
    return target.getvalue()


def _damage_gzip(content: bytes, generator: random.Random) -> bytes:
    return gzip.compress(_damage_bytes(gzip.decompress(content), generator), mtime=0)


def _damage_checkpoint(content: bytes, generator: random.Random) -> bytes:
    """An option, an entry or what is carried of the data is of another type or gone."""
    import torch

    state = torch.load(io.BytesIO(content), weights_only=False)
    carried = "data_version._extra_state"
    weights = state.get("model")
    kind = generator.randrange(4)
    if kind < 2 and isinstance(weights, dict) and carried in weights:
        provenance = json.loads(bytes(weights[carried].tolist()))
        changed = json_with_other_value(provenance, generator).encode()
        weights[carried] = torch.tensor(list(changed), dtype=torch.int32)
    elif kind == 2 and isinstance(weights, dict):
        name = generator.choice(list(weights))
        other = [None, 1, "a", [], torch.zeros(0), torch.zeros(3, 3), torch.zeros(2).long()]
        if isinstance(weights[name], torch.Tensor):
            other += [weights[name].double(), weights[name].to(torch.complex64)]
            other += [weights[name][..., None], torch.full_like(weights[name], 120)]
        weights[name] = generator.choice(other)
    else:
        places: list[tuple[Any, Any]] = [(state, key) for key in state if key != "model"]
        for holder, key in places:
            inner = vars(holder[key]) if hasattr(holder[key], "__dict__") else holder[key]
            if isinstance(inner, dict):
                places += [(inner, name) for name in inner]
        # the options of the task and the model are what loading looks at
        looked_at = [place for place in places if "arch" in place[0] or "data" in place[0]]
        holder, key = generator.choice(looked_at or places)
        holder[key] = generator.choice(OPTIONS)
    target = io.BytesIO()
    torch.save(state, target)
    return target.getvalue()


def _damage_store(content: bytes, generator: random.Random) -> bytes:
    """Attributes, members and rows of an HDF5 file, changed by a program that knows its format."""
    import h5py
    import numpy as np

    target = io.BytesIO(content)
    with h5py.File(target, "r+") as file:
        kind = generator.randrange(5)
        member = generator.choice(["features", "offsets", "ids"])
        if kind == 0:
            name = generator.choice([*file.attrs, "extractor", "grid"])
            file.attrs[name] = generator.choice(
                ["", "x", 0, -1, 2.5, [1, 2], b"\xff\xfe", h5py.Empty("f"), True, "[" * 3000]
            )
        elif kind == 1:
            rows = file["features"]
            rows[generator.randrange(len(rows))] = generator.choice([np.nan, np.inf, -np.inf, 1e30])
        elif kind == 2:
            del file[member]
            if generator.random() < 0.7:
                file[member] = generator.choice(
                    [1, "a", [0], [[0.0]], [[]], [1.5, 2.5], np.zeros((3, 0)), np.zeros((2, 2, 2))]
                )
        elif kind == 3:
            rows = file["features"][:]
            shape = generator.choice([None, (1, 1), True])
            del file["features"]
            file.create_dataset("features", data=rows, chunks=shape, compression="gzip")
        else:
            offsets = file["offsets"]
            offsets[generator.randrange(len(offsets))] = generator.choice([0, -1, 2**40, 1])
    return target.getvalue()


def _without_checksum(content: bytes, generator: random.Random) -> bytes:
    """A store of an older version, of which a byte is damaged: libhdf5 reads what stands there."""
    return _damage_bytes(content[:-64], generator)


_KINDS: dict[str, list[Callable[[bytes, random.Random], bytes]]] = {
    ".json": [_damage_json] * 6,
    ".jsonl": [_damage_json] * 6,
    ".npy": [_damage_array] * 3,
    ".npz": [_damage_archive] * 3,
    ".idx": [_damage_index] * 2,
    ".gz": [_damage_gzip],
    "checkpoint_best.pt": [_damage_checkpoint] * 5 + [_damage_archive],
    ".tar": [_damage_archive] * 2,
    ".pt": [_damage_archive] * 2,
    ".h5": [_damage_store] * 3,
    # which is read in a process of its own
    ".old.h5": [_damage_store, _without_checksum, _without_checksum],
}
_KINDS = dict(sorted(_KINDS.items(), key=lambda entry: -len(entry[0])))
