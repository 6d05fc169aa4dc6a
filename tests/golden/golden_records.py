"""What commands leave, as records: id -> fields, with nothing in them that changes by itself."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

DIGITS = 4
TOLERANCE = 2e-4
Records = dict[str, dict[str, Any]]
# of cards and the like: versions, paths, hashes of code, times
VOLATILE = ("card", "signature", "created", "package", "version", "command", "seconds")


def normalised(value: Any, root: Path) -> Any:
    """Plain values: floats of four digits, and paths below ``root`` without it."""
    if isinstance(value, Mapping):
        return {str(key): normalised(content, root) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [normalised(content, root) for content in value]
    if isinstance(value, np.ndarray):
        return normalised(value.tolist(), root)
    if isinstance(value, (np.floating, np.integer)):
        return normalised(value.item(), root)
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0 if math.isfinite(value) else str(value)
    if isinstance(value, (str, Path)):
        return str(value).replace(f"{root}/", "")
    return value


def differences(expected: Any, found: Any, *, tolerance: float = TOLERANCE) -> Optional[str]:
    """
    Returns:
        None if both are the same, floats up to the tolerance, else where they differ.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if key not in expected or key not in found:
                side = "expected" if key in expected else "found"
                content = expected.get(key, found.get(key))
                return f"{key}: only in what was {side}: {content!r}"
            different = differences(expected[key], found[key], tolerance=tolerance)
            if different:
                return f"{key}: {different}"
        return None
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found)):
            different = differences(*pair, tolerance=tolerance)
            if different:
                return f"{number}: {different}"
        return None
    numbers = [isinstance(x, (int, float)) and not isinstance(x, bool) for x in (expected, found)]
    if all(numbers) and (isinstance(expected, float) or isinstance(found, float)):
        if abs(expected - found) <= tolerance * max(1.0, abs(expected)):
            return None
    elif expected == found and type(expected) is type(found):
        return None
    return f"expected {expected!r}, found {found!r}"


def failures(entry: Any, expected: Optional[Records], found: Optional[Records]) -> Iterator[str]:
    """
    Args:
        entry: with the names of the system and of what was run.
        expected: None where nothing is kept.
        found: None where it was not run, or failed.

    Yields:
        for each record that differs system, invocation, id, and what was expected and found.
    """
    head = f"{entry.system}, {entry.name}"
    if expected is None or found is None:
        yield f"{head}: {'no output is kept' if expected is None else 'gives nothing'}"
        return
    for key in [*expected, *(key for key in found if key not in expected)]:
        if key not in found:
            yield f"{head}, {key}: expected {expected[key]!r}, found no such record"
        elif key not in expected:
            yield f"{head}, {key}: expected no such record, found {found[key]!r}"
        else:
            different = differences(expected[key], found[key])
            if different:
                yield f"{head}, {key}: {different}"


def of_generate(lines: Iterable[str], *, with_positions: bool = False) -> Records:
    """Hypotheses of fairseq-generate's output, by line of the split."""
    records: Records = {}
    for line in lines:
        mark, _, rest = line.partition("-")
        if mark not in ("H", "P"):
            continue
        number, *columns = rest.split("\t")
        if mark == "H":
            records[number] = {"text": columns[1], "score": float(columns[0])}
        elif with_positions:
            records[number]["positions"] = [float(score) for score in columns[0].split()]
    return dict(sorted(records.items(), key=lambda pair: int(pair[0])))


def of_jsonl(path: Path, *, fields: Mapping[str, str], key: str = "id") -> Records:
    """
    Args:
        path: of a file with an object a line.
        fields: name in the record -> name in the object; those that are not there are left out.
        key: name of the id in the object; without it, lines are numbered.
    """
    records: Records = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        entry = json.loads(line)
        name = Path(str(entry.get(key, number))).name
        name = f"{name}#{number}" if name in records else name
        records[name] = {ours: entry[theirs] for ours, theirs in fields.items() if theirs in entry}
    return records


def of_json(path: Path, *, drop: Iterable[str] = ()) -> Records:
    """The figures of a JSON file, one record a key of the top level."""
    content = _without(json.loads(path.read_text(encoding="utf-8")), {*VOLATILE, *drop})
    return {
        key: value if isinstance(value, dict) else {"value": value}
        for key, value in content.items()
    }


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(x, names) for key, x in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(x, names) for x in value]
    return value


def of_lines(lines: Iterable[str]) -> Records:
    """Printed lines as they stand, white space apart."""
    return {str(i): {"line": " ".join(line.split())} for i, line in enumerate(lines)}


def of_store(path: Path, *, with_rows: bool = True) -> Records:
    """Each item of a feature store: its shape, and its rows or a digest of them."""
    from fairseq_mm.data.feature_store import FeatureStore

    store = FeatureStore(str(path))
    records: Records = {}
    for key in store.ids:
        rows = np.array(store.read(key), dtype=np.float64)
        records[str(key)] = {"shape": list(rows.shape)}
        if with_rows:
            records[str(key)]["rows"] = rows.tolist()
        else:
            records[str(key)]["sum"] = float(rows.sum())
    return records


def of_folder(folder: Path, *, leave_out: Iterable[str] = ()) -> Records:
    """Each file below a folder: the digest of its content, of stores that of what they hold."""
    records: Records = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if any(path.match(pattern) for pattern in leave_out):
            continue
        content = json.dumps(of_store(path)).encode() if path.suffix == ".h5" else path.read_bytes()
        records[name] = {"sha256": hashlib.sha256(content).hexdigest()[:16]}
    return records
