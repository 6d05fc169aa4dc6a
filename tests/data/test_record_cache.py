"""Binarised text is that of the records, whatever happens to the files of a data folder."""

import json
import multiprocessing
import os
import random
import shutil

import pytest
from toy_data import make_dictionary

from fairseq_mm.data import record_split
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.record_cache import load_texts, write_cache
from fairseq_mm.data.record_split import is_cache_current, record_digests
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError

NAME = "train"
RECORDS = {
    "captions": lambda say: {"id": say(), "captions": [say(), say()]},
    "stories": lambda say: {
        "images": [say() for _ in range(5)],
        "sentences": [say() for _ in range(5)],
    },
    "prompts": lambda say: {"prompt": say(), "story": say()},
    "videos": lambda say: {"id": say(), "transcript": say(), "summary": say(), "unknowns": [say()]},
}
SIDES = {"prompts": ("wp_source", "wp_target"), "videos": ("tran", "desc")}


def make_folder(folder, kind, seed):
    """A folder of records with cache, as ``prepare`` makes it; its text depends on the seed."""
    folder.mkdir()
    generator = random.Random(seed)
    dictionary = make_dictionary(separator=True, reverse=seed % 2 == 0)
    for side in SIDES.get(kind, ("",)):
        dictionary.save(str(folder / f"dict.{side}{'.' if side else ''}txt"))
    words = dictionary.symbols[dictionary.nspecial : -1]
    records = [
        RECORDS[kind](lambda: " ".join(generator.choices(words, k=generator.randint(2, 6))))
        for _ in range(6)
    ]
    (folder / f"{NAME}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in records))
    tokenizer = "none" if kind == "videos" else "whitespace"
    options = {"tokenizer": tokenizer, "keep_punctuation": True}
    (folder / "prepare.json").write_text(json.dumps({"options": options}))
    if kind == "prompts":
        for name, side in (("prompts", "wp_source"), ("stories", "wp_target")):
            (folder / name).mkdir()
            shutil.copy(folder / f"dict.{side}.txt", folder / name / "dict.txt")
    write_cache(folder, NAME)
    record_digests(folder, [NAME])
    return folder


def check_text(folder):
    """Load a split, and compare its tokens with the records as they are now."""
    split = open_split(folder, NAME)
    dictionaries = [load_dictionary(split.dictionary_path(side)) for side in split.sides or (None,)]
    texts = load_texts(split, dictionaries)
    for side, text, dictionary in zip(split.sides or (None,), texts, dictionaries):
        expected = [
            [dictionary.index(word) for word in words] + [dictionary.eos()]
            for words in split.tokens(side)
        ]
        assert [line.tolist() for line in text] == expected


def mutate(folder, other, generator):
    """Change a file as a user, a disk or a copy of another folder's file does."""
    path = generator.choice(sorted(x for x in folder.rglob("*") if x.is_file()))
    content = bytearray(path.read_bytes())
    kind = generator.choice(["flip", "cut", "remove", "swap", "lines"])
    if kind == "swap":
        shutil.copy(other / path.relative_to(folder), path)
    elif kind == "remove":
        path.unlink()
    elif kind == "lines":
        lines = bytes(content).splitlines(keepends=True)
        generator.shuffle(lines)
        path.write_bytes(b"".join(lines))
    elif content:
        place = generator.randrange(len(content))
        if kind == "flip":
            content[place] ^= 1 << generator.randrange(8)
        path.write_bytes(bytes(content if kind == "flip" else content[:place]))


@pytest.mark.parametrize("kind", RECORDS)
def test_no_mutation_of_a_folder_gives_the_text_of_other_records(tmp_path, kind):
    original = make_folder(tmp_path / "original", kind, 1)
    other = make_folder(tmp_path / "other", kind, 2)
    generator, refused = random.Random(5), 0
    for number in range(67):
        folder = shutil.copytree(original, tmp_path / str(number))
        for _ in range(generator.randint(1, 2)):
            mutate(folder, other, generator)
        try:
            check_text(folder)
        except UserError:
            refused += 1
        shutil.rmtree(folder)
    assert refused < 40


def test_edited_records_are_binarised_as_fairseq_preprocess_would_say(tmp_path, caplog):
    folder = make_folder(tmp_path / "data", "prompts", 1)
    assert is_cache_current(folder, NAME)
    text = (folder / f"{NAME}.jsonl").read_text()
    (folder / f"{NAME}.jsonl").write_text(text + '{"prompt": "dog", "story": "cat unheard-of"}\n')
    assert not is_cache_current(folder, NAME)
    with caplog.at_level("INFO"):
        check_text(folder)
        check_text(folder)
    assert sum("binarising it" in record.message for record in caplog.records) == 1
    report = json.loads((folder / "prepare.json").read_text())
    assert is_cache_current(folder, NAME)
    assert report["options"]["tokenizer"] == "whitespace"
    for end in ("bin", "idx"):
        copy = folder / "stories" / f"{NAME}.{end}"
        pair = folder / f"{NAME}.wp_source-wp_target.wp_target.{end}"
        assert copy.read_bytes() == pair.read_bytes()


@pytest.mark.parametrize("text", ["", "a </s> dog"])
def test_record_that_cannot_be_binarised_is_named(tmp_path, text):
    folder = make_folder(tmp_path / "data", "captions", 1)
    with open(folder / f"{NAME}.jsonl", "a") as file:
        file.write(json.dumps({"id": "x", "captions": ["a dog", text]}) + "\n")
    with pytest.raises(UserError, match=rf"{NAME}\.jsonl:7: has "):
        check_text(folder)


def run_until(folder, number):
    """Binarise, and end as after a kill at the ``number``-th file that is moved into place."""
    replace = os.replace
    left = [number]

    def die(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        replace(*arguments)

    os.replace = die
    check_text(folder)
    os._exit(0)


def test_killed_and_concurrent_processes_leave_the_text_of_the_records(tmp_path):
    fork = multiprocessing.get_context("fork")
    other = make_folder(tmp_path / "other", "captions", 2)
    killed = 0
    for number in range(6):
        folder = make_folder(tmp_path / str(number), "captions", 1)
        shutil.copy(other / f"{NAME}.jsonl", folder)
        process = fork.Process(target=run_until, args=(folder, number))
        process.start()
        process.join()
        killed += process.exitcode == 9
        readers = [fork.Process(target=check_text, args=(folder,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert [reader.exitcode for reader in readers] == [0, 0, 0]
        assert not list(folder.glob("*.partial"))
    assert killed == 3  # .bin, .idx and prepare.json


def test_files_of_recorded_sizes_and_times_are_not_read(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "data", "captions", 1)
    read = []
    compute = record_split.file_digest
    monkeypatch.setitem(record_split._DESCRIBE, "digests", lambda x: read.append(x) or compute(x))
    check_text(folder)
    assert not read
    os.utime(folder / f"{NAME}.jsonl")  # as of a folder that was copied
    check_text(folder)
    assert read
