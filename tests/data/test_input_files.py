"""What a text file may ask of memory and of the stack is bounded."""

import hashlib
import json
import tracemalloc

import pytest

from fairseq_mm.data import input_files
from fairseq_mm.data.input_files import (
    parse_json,
    parse_object,
    read_json,
    read_lines,
    read_objects,
)
from fairseq_mm.errors import UserError


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("text", ["3", '"a"', '{"a": [1, 2.5, null, "é"]}', '"\\ud83d\\ude00"'])
def test_json_is_what_the_standard_library_reads(text):
    assert parse_json(text, "x") == json.loads(text)


def test_nesting_is_bounded_and_width_is_not():
    wide = "[" + ", ".join(["[[]]"] * 500) + "]"
    assert len(parse_json(wide, "x")) == 500
    limit = input_files.MAX_DEPTH
    assert parse_json(nested(limit), "x")
    brackets = json.dumps({"a": "]" * 300, "b": [["["] * 300]})
    assert parse_json(brackets, "x") == json.loads(brackets)
    for depth in (limit + 1, 990, 100_000):
        for text in (nested(depth), '{"a": ' * depth + "1" + "}" * depth):
            with pytest.raises(UserError, match=r"^x: not JSON \(brackets in brackets too deep\)"):
                parse_json(text, "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 6000, r"not JSON \(an integer of 6000 digits\)"),
        ('{"a": -' + "1" * 400 + "}", r"not JSON \(an integer of 401 digits\)"),
        ('"\\ud800"', "text holds half a character"),
        ('{"\\udfff": 1}', "text holds half a character"),
        ("{", r"not JSON \(Expecting property name"),
        ("[" + "[]," * 30 + "[]]", r"not JSON \(more than 20 lists and objects\)"),
    ],
)
def test_what_is_refused_is_named(monkeypatch, text, message):
    monkeypatch.setattr(input_files, "MAX_CONTAINERS", 20)
    with pytest.raises(UserError, match=f"^x:3: {message}"):
        parse_json(text, "x:3")


def test_the_largest_integer_is_a_float_too():
    assert float(parse_json("9" * input_files.MAX_DIGITS, "x")) > 0


def test_a_line_must_be_an_object():
    assert parse_object('{"a": 1}', "x:1") == {"a": 1}
    with pytest.raises(UserError, match=r"^x:1: must be a JSON object, but is list instead\.$"):
        parse_object("[]", "x:1")


def test_lines_of_objects_say_where_they_stand(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n {"b": 2}')
    assert list(read_objects(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"b": 2})]


@pytest.mark.parametrize("read", [lambda path: list(read_lines(path)), read_json])
def test_endless_files_are_refused(monkeypatch, read):
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 1 << 16)
    monkeypatch.setattr(input_files, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(UserError, match=r"^/dev/zero:?1?: "):
        read("/dev/zero")


def test_files_that_cannot_be_read_are_named(tmp_path):
    for read in (read_json, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match=r"none: cannot be read \(No such file"):
            read(tmp_path / "none")
        with pytest.raises(UserError, match=r"cannot be read \(Is a directory"):
            read(tmp_path)
    (tmp_path / "x").write_bytes(b"1\n\xff")
    with pytest.raises(UserError, match=r"x:2: must be UTF-8 text, but is not \(invalid start"):
        list(read_lines(tmp_path / "x"))
    with pytest.raises(UserError, match=r"x: must be UTF-8 text, but is not \(invalid start"):
        read_json(tmp_path / "x")


def test_a_digest_that_was_started_is_that_of_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"text")
    reads = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda *args: reads.append(args) or sha256(*args))
    input_files.start_digest(path)
    input_files.start_digest(path)
    assert input_files.file_digest(path) == sha256(b"text").hexdigest()
    assert len(reads) == 1
    # a file that changes meanwhile is read again
    input_files.start_digest(path)
    path.write_bytes(b"another")
    assert input_files.file_digest(path) == sha256(b"another").hexdigest()
    input_files.start_digest(tmp_path / "none")
    with pytest.raises(OSError, match="No such file"):
        input_files.file_digest(tmp_path / "none")


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(["a"] * 400))
    tracemalloc.start()
    read_json(tmp_path / "a.json")
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
