"""Writer of the feature store: nothing is lost or done twice, wherever it is killed."""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from fairseq_mm.data import feature_store_writer
from fairseq_mm.data.feature_store import FeatureStore, Source
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError

DIM = 3
MADE = {"extractor": "resnet18", "grid": 0}
ITEMS = {f"pictüre {i}.jpg": np.full((1 + i % 4, DIM), i / 8, np.float32) for i in range(11)}


def open_writer(path, **changes):
    return FeatureStoreWriter(path, **{"dim": DIM, "attributes": MADE, **changes})


def write(path, items, finish=True, **changes):
    """Appends what is not there yet, as every resumable command does."""
    with open_writer(path, **changes) as writer:
        for key, rows in items.items():
            if key not in writer.done:
                writer.append(key, rows)
        if finish:
            writer.finish()


def members(path):
    with h5py.File(path) as file:
        return {name: file[name][:].tolist() for name in ("features", "offsets", "ids")}


class KilledError(BaseException):
    """Stands for a kill at that very point: no handler of ordinary errors sees it."""


def kill(*args, **kwargs):
    raise KilledError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "features.h5")


@pytest.fixture
def expected(tmp_path):
    """What an uninterrupted run writes."""
    path = str(tmp_path / "expected.h5")
    write(path, ITEMS)
    return members(path)


def test_the_store_has_the_rows_one_after_the_other(path):
    write(path, {"b": np.ones((2, DIM)), "a": np.zeros(DIM)})
    assert members(path) == {
        "features": [[1.0] * DIM, [1.0] * DIM, [0.0] * DIM],
        "offsets": [0, 2, 3],
        "ids": [b"b", b"a"],
    }
    with h5py.File(path) as file:
        assert file["features"].dtype == np.float16
        assert file["offsets"].dtype == np.int64
        assert file["features"].chunks is None
        assert file.attrs["format_version"] == 1
    assert os.listdir(os.path.dirname(path)) == ["features.h5"]


def test_a_partial_that_is_cut_at_any_byte_continues_with_the_same_result(path, expected):
    write(path, ITEMS, finish=False)
    whole = path + ".whole"
    shutil.move(path + ".partial", whole)
    sizes = {name: os.path.getsize(os.path.join(whole, name)) for name in ("rows", "journal")}
    generator = random.Random(1)
    cuts = [(sizes["rows"], size) for size in range(0, sizes["journal"], 7)]
    cuts += [(size, sizes["journal"]) for size in range(0, sizes["rows"], 11)]
    cuts += [tuple(generator.randrange(size + 1) for size in sizes.values()) for _ in range(30)]
    for rows, journal in cuts:
        shutil.copytree(whole, path + ".partial")
        os.truncate(path + ".partial/rows", rows)
        os.truncate(path + ".partial/journal", journal)
        with open_writer(path) as writer:
            assert len(writer.done) < len(ITEMS) or (rows, journal) == tuple(sizes.values())
        write(path, ITEMS)
        assert members(path) == expected, (rows, journal)
        os.remove(path)


@pytest.mark.parametrize(
    "tail",
    [b"0badc0de\t1\tnew\n", b"\0\0\0\0\0\n", b"0badc0de\t0\tnew\n", b"\xff\t1\tx\n", b"1\t\n"],
)
def test_journal_lines_without_their_rows_are_cut_off(path, expected, tail):
    keys = list(ITEMS)
    write(path, {key: ITEMS[key] for key in keys[:4]}, finish=False)
    with open(path + ".partial/journal", "ab") as file:
        file.write(tail)
    with open(path + ".partial/rows", "ab") as file:
        file.write(b"\1" * 2 * DIM)
    with open_writer(path) as writer:
        assert writer.done == set(keys[:4])
    write(path, ITEMS)
    assert members(path) == expected


def test_rows_that_a_power_failure_lost_are_done_again(path, expected):
    write(path, ITEMS, finish=False)
    with open(path + ".partial/rows", "r+b") as file:
        file.seek(6 * DIM)
        file.write(bytes(4 * DIM))
    with open_writer(path) as writer:
        assert len(writer.done) < 4
    write(path, ITEMS)
    assert members(path) == expected


def start(program, path):
    return subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("point", ["replace", "remove", "rmtree"])
def test_a_kill_while_finishing_loses_nothing(path, expected, monkeypatch, point):
    write(path, ITEMS, finish=False)
    with open_writer(path) as writer, monkeypatch.context() as patch:
        patch.setattr(shutil if point == "rmtree" else os, point, kill)
        with pytest.raises(KilledError):
            writer.finish()
    if point == "replace":
        write(path, ITEMS)
    assert members(path) == expected
    with pytest.raises(UserError, match="exists already"):
        write(path, ITEMS)
    if point == "rmtree":  # the journal is gone: nothing of the run is taken for the next one
        write(path, {"new": np.ones(DIM)}, overwrite=True)
        assert FeatureStore(path).ids == ["new"]
        assert not os.path.exists(path + ".partial")


def test_a_finished_store_is_replaced_only_when_asked_and_only_in_the_end(path):
    write(path, {"old": np.ones(DIM)})
    with pytest.raises(UserError, match=r"features.h5: exists already. Delete it, or replace it"):
        open_writer(path)
    assert not os.path.exists(path + ".partial")
    with open_writer(path, overwrite=True) as writer:
        writer.append("new", np.ones(DIM))
        assert FeatureStore(path).ids == ["old"]
        writer.finish()
    assert FeatureStore(path).ids == ["new"]


def test_two_runs_write_the_same_bytes_but_for_the_time(path, tmp_path):
    other = str(tmp_path / "other.h5")
    keys = list(ITEMS)
    write(path, {key: ITEMS[key] for key in keys[:5]}, finish=False)
    write(other, ITEMS, finish=False)
    begun = '"created": "2020-01-01T00:00:00+00:00"'
    for partial in (path, other):
        header = Path(partial + ".partial/header.json")
        header.write_text(re.sub('"created": ".*?"', begun, header.read_text()))
        write(partial, ITEMS)
    assert Path(path).read_bytes() == Path(other).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 4}, "was begun with dim = 3, but is to be continued with 4"),
        ({"dtype": "float32"}, "begun with dtype = 'float16', but .* with 'float32'"),
        (
            {"attributes": {**MADE, "extractor": "vgg16"}},
            "begun with attribute extractor = 'resnet18', but .* with 'vgg16'. Delete it to begin",
        ),
        ({"attributes": {"extractor": "resnet18"}}, "attribute grid = 0, but .* with None"),
        ({"attributes": {**MADE, "layer": "fc"}}, "attribute layer = None, but .* with 'fc'"),
    ],
)
def test_a_partial_of_other_settings_is_refused(path, changes, message):
    write(path, ITEMS, finish=False)
    with pytest.raises(UserError, match=f"features.h5.partial: .*{message}"):
        open_writer(path, **changes)
    write(path, ITEMS)


@pytest.mark.parametrize("killed", [True, False])
def test_a_partial_without_items_is_in_nobody_s_way(path, killed):
    with open_writer(path) as writer:
        writer._is_open = not killed
    assert os.path.exists(path + ".partial") == killed
    write(path, {"x": np.ones(4)}, dim=4, dtype="float32", attributes={})
    assert FeatureStore(path).dim == 4


HOLDS = """
import sys
sys.argv[0] = "fairseq-mm"
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
writer = FeatureStoreWriter(sys.argv[1], dim=3, attributes={"extractor": "resnet18", "grid": 0})
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_until_the_first_dies(path):
    process = start(HOLDS, path)
    assert process.stdout.readline() == b"open\n"
    with pytest.raises(UserError, match=r"partial: another process is writing to it"):
        open_writer(path)
    process.kill()
    process.communicate()
    with open_writer(path), pytest.raises(UserError, match="another process is writing"):
        open_writer(path)
    write(path, ITEMS)


def test_a_forked_worker_that_outlives_the_writer_does_not_keep_the_lock(path):
    writer = open_writer(path)
    wakes, wake = os.pipe()
    worker = os.fork()
    if not worker:
        os.read(wakes, 1)
        os._exit(0)
    try:
        writer.close()
        open_writer(path).close()
    finally:
        os.write(wake, b"x")
        os.waitpid(worker, 0)


def test_a_file_system_without_locks_is_written_with_a_warning(path, monkeypatch, caplog):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    write(path, ITEMS)
    assert "features.h5.partial: this file system has no locks" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones((2, 4)), r"'k' must be \[rows, 3\] with one row or more, but are \[2, 4\]"),
        (np.ones((0, DIM)), r"but are \[0, 3\]"),
        (np.ones((1, 1, DIM)), r"but are \[1, 1, 3\]"),
        (np.array([[1, np.nan, 1]]), "h5: the features of 'k' have NaN or infinite values"),
        (np.array([[1, np.inf, 1]]), "the features of 'k' have NaN or infinite values"),
        (np.array([[1, -7e4, 1]]), "the features of 'k' have NaN or infinite values"),
    ],
)
def test_rows_that_cannot_be_stored_are_refused_by_id(path, rows, message):
    with open_writer(path) as writer:
        with pytest.raises(UserError, match=message):
            writer.append("k", rows)
        writer.append("k", np.ones(DIM))
        writer.finish()
    assert members(path)["features"] == [[1.0] * DIM]


@pytest.mark.parametrize("key", ["", "a\tb", "a\n", "a\x85b", "a\0", "twice"])
def test_keys_that_cannot_stand_in_a_line_are_refused(path, key):
    with open_writer(path) as writer:
        writer.append("twice", np.ones(DIM))
        with pytest.raises(UserError, match="an id must be one line without tabs, and new, but is"):
            writer.append(key, np.ones(DIM))


def test_a_full_disk_is_one_line_and_leaves_a_partial_that_continues(path, expected, monkeypatch):
    real_write = os.write

    def write_a_little(handle, content):
        if len(content) < 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(handle, content[:9])

    keys = list(ITEMS)
    write(path, {key: ITEMS[key] for key in keys[:3]}, finish=False)
    with open_writer(path) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(feature_store_writer.os, "write", write_a_little)
            with pytest.raises(UserError, match=r"partial: cannot be written .No space left"):
                writer.append(keys[3], ITEMS[keys[3]])
        with pytest.raises(ValueError, match="the writer is closed"):
            writer.append(keys[3], ITEMS[keys[3]])
        with pytest.raises(ValueError, match="the writer is closed"):
            writer.finish()
    write(path, ITEMS)
    assert members(path) == expected


SOURCES = [None, Source(7, 10**18 + 3, b"d" * 32), Source(0, -5, bytes(32))]


@pytest.mark.parametrize("stops_after", [0, 1, 2, 3])
def test_sources_stand_in_the_store_after_an_interruption(path, stops_after):
    given = list(zip("abc", SOURCES))
    with open_writer(path) as writer:
        for key, source in given[:stops_after]:
            writer.append(key, np.ones(DIM), source)
    with open_writer(path) as writer:
        assert [writer.get_source(key) for key, _ in given[:stops_after]] == SOURCES[:stops_after]
        for key, source in given[stops_after:]:
            writer.append(key, np.ones(DIM), source)
        writer.finish()
    store = FeatureStore(path)
    assert [store.get_source(key) for key in "abc"] == SOURCES


def test_a_torn_source_is_cut_off(path):
    with open_writer(path) as writer:
        for key in "ab":
            writer.append(key, np.ones(DIM), SOURCES[1])
    journal = Path(path + ".partial/journal")
    whole = journal.read_bytes()
    for cut in range(1, 40):
        journal.write_bytes(whole[:-cut])
        with open_writer(path) as writer:
            assert writer.done == {"a"}
            writer.append("b", np.ones(DIM), SOURCES[1])
        assert journal.read_bytes() == whole


def test_a_writer_that_is_cleared_begins_anew(path):
    write(path, ITEMS, finish=False)
    with open_writer(path) as writer:
        writer.clear()
        assert not writer.done
        writer.append("new", np.ones(DIM), SOURCES[1])
        writer.finish()
    assert FeatureStore(path).ids == ["new"]
    assert FeatureStore(path).check_content() == FeatureStore(path).digest
    with open_writer(path, overwrite=True) as writer:
        writer.append("a", np.ones(DIM))
        writer.clear()
    assert not os.path.exists(path + ".partial")
