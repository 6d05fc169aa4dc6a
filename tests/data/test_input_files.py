"""Text files of users: what is read, and how errors name their place."""

import hashlib
import json

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


@pytest.mark.parametrize("text", ["3", '"a"', '{"a": [1, 2.5, null, "é"]}', '"\\ud83d\\ude00"'])
def test_json_is_what_the_standard_library_reads(text):
    assert parse_json(text, "x") == json.loads(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9" * 6000, r"not JSON \(Exceeds the limit"),
        ("[" * 100_000, r"not JSON \(brackets in brackets too deep\)"),
        ('"\\ud800"', ".*text holds half a character"),
        ('{"\\udfff": 1}', ".*text holds half a character"),
        ("{", r"not JSON \(Expecting property name"),
    ],
)
def test_what_is_refused_is_named(text, message):
    with pytest.raises(UserError, match=f"^x:3: {message}"):
        parse_json(text, "x:3")


def test_a_line_must_be_an_object():
    assert parse_object('{"a": 1}', "x:1") == {"a": 1}
    with pytest.raises(UserError, match=r"^x:1: must be a JSON object, but is list instead\.$"):
        parse_object("[]", "x:1")


def test_lines_of_objects_say_where_they_stand(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n {"b": 2}')
    assert list(read_objects(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"b": 2})]


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
