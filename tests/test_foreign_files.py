"""Readers of files from elsewhere: any content is read, or refused with a UserError."""

import io
import json

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.numpy_files import load_numpy
from fairseq_mm.data.word_vectors import read_word_vectors
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import read_hypotheses
from fairseq_mm.prepare.jsonl import read_transcript

quick = settings(derandomize=True, database=None, deadline=None, max_examples=60)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=4), parts),
    max_leaves=6,
)


def mixed(*pieces):
    """Contents of files: bytes, text, and the pieces of a format in any order and number."""
    piece = st.sampled_from(pieces) | st.text(max_size=8) | st.integers().map(str)
    parts = st.lists(piece, max_size=12).map("".join).map(lambda x: x.encode(errors="ignore"))
    return parts | st.binary(max_size=60) | st.builds(bytes.__add__, parts, st.binary(max_size=4))


def outcome(read, *args, **options):
    """Return what ``read`` returns; None if it refuses its input in one line."""
    try:
        return read(*args, **options)
    except UserError as error:
        message = str(error)
    assert "\n" not in message
    return None


def write(tmp_path_factory, name, content):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    return path


@quick
@given(mixed('{"id": "a"', "}\n", "[", ', "caption": "a dog"', "null", "\\ud800", '{"id": 1}\n'))
@example(b"[" * 100_000)
@example(b'{"a": ' + b"9" * 5000 + b"}")
def test_json_lines(tmp_path_factory, content):
    path = write(tmp_path_factory, "a.jsonl", content)
    entries = outcome(lambda: list(read_objects(path)))
    assert entries is None or all(isinstance(entry, dict) for _, entry in entries)


@quick
@given(st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES), max_size=4))
def test_json_lines_that_python_writes_are_read(tmp_path_factory, entries):
    content = "".join(json.dumps(entry) + "\n" for entry in entries)
    read = outcome(lambda: list(read_objects(write(tmp_path_factory, "b", content.encode()))))
    if read is not None:
        assert repr([entry for _, entry in read]) == repr(entries)


CUES = ("1\n", "00:00:01,000 --> 00:00:02,000\n", "\n", "WEBVTT\n", "<v Anna>", "a dog runs\n", "&")


@quick
@given(mixed(*CUES), st.sampled_from(["a.srt", "a.vtt", "a.txt"]))
def test_subtitles(tmp_path_factory, content, name):
    text = outcome(read_transcript, write(tmp_path_factory, name, content))
    assert text is None or ("\n" not in text and "-->" not in text) or name == "a.txt"


@quick
@given(st.lists(st.sampled_from(["a dog", "runs fast", "it is red"]), min_size=1, max_size=5))
def test_the_words_of_subtitles_are_kept(tmp_path_factory, cues):
    timed = (f"{i + 1}\n00:00:0{i},000 --> 00:00:0{i},500\n{cue}\n" for i, cue in enumerate(cues))
    path = write(tmp_path_factory, "c.srt", "\n".join(timed).encode())
    assert set(read_transcript(path).split()) == set(" ".join(cues).split())


LINES = ("S-0\ta b\n", "H-0\t-0.5\ta dog\n", "H-1\tx\ta\n", "D-0\t-0.5\ta dog\n", "P-0\t-1\n", "\t")
LOG = "| INFO | fairseq_cli.generate | {'gen_subset': 'test', 'nbest': 2}\n"


@quick
@given(mixed(*LINES, LOG, '{"id": "a", "hypothesis": "a dog"}\n', '[{"image_id": 1', "}]", "a\tb"))
def test_generated_texts(tmp_path_factory, content):
    path = str(write(tmp_path_factory, "texts", content))
    read = outcome(read_hypotheses, path, item_ids=["a", "b"], visual_ids=["a", "b", "a"])
    assert read is None or all(isinstance(text, str) for text in read.texts.values())


@quick
@given(mixed("2 3\n", "dog 1 2 3\n", "red 0.5 nan 1e400\n", "1", " ", "\n", "dog 1 2\n"))
def test_word_vectors(tmp_path_factory, content):
    path = str(write(tmp_path_factory, "vectors.txt", content))
    outcome(read_word_vectors, path, ["dog", "red"], dim=3)


@quick
@given(mixed("dog 3\n", "dog", " ", "#fairseq:overwrite\n", "-1\n", "<unk> 2\n", "\u2028 1\n"))
def test_vocabularies(tmp_path_factory, content):
    dictionary = outcome(load_dictionary, str(write(tmp_path_factory, "dict.txt", content)))
    assert dictionary is None or len(dictionary) == len({*dictionary.symbols})


def npy(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


HEADER = st.sampled_from(["{'descr': '<f4'", ", 'fortran_order': False", ", 'shape': (2, 3)", "}"])
WORDS = st.sampled_from(["'|O'", "(10**9, 10**9)", "__import__('os').system('touch x')", "\n", ","])


@quick
@given(st.lists(HEADER | WORDS, max_size=8).map("".join), st.binary(max_size=30))
@example("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", bytes(24))
@example("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000), }\n", b"")
def test_headers_of_numpy(tmp_path_factory, header, content):
    content = npy(header.encode()) + content
    array = outcome(load_numpy, write(tmp_path_factory, "a.npy", content))
    assert array is None or not array.dtype.hasobject


@quick
@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_byte_of_an_array(tmp_path_factory, place, byte):
    stream = io.BytesIO()
    np.save(stream, np.ones((2, 3), np.float32))
    content = bytearray(stream.getvalue())
    content[place % len(content)] = byte
    outcome(load_numpy, write(tmp_path_factory, "a.npy", bytes(content)))
