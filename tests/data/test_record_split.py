"""Records of all kinds are read by line, and folders without records give the same values."""

import json
import re

import pytest
from toy_data import (
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
)
from toy_story_models import make_story_folder

from fairseq_mm.data.records import ImportedSplit, open_split, split_names
from fairseq_mm.errors import UserError

IMAGES = ["a", "b", "c", "d", "e"]
SENTENCES = ["We go .", "It rains .", "It is wet .", "We eat .", "We sleep ."]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_split(folder, *records, options=None):
    write_jsonl(folder / "train.jsonl", records)
    if options:
        (folder / "prepare.json").write_text(json.dumps({"options": options}))
    return open_split(folder, "train")


def test_captions_are_lines_and_images_are_items(tmp_path):
    split = make_split(
        tmp_path,
        {"id": "x", "captions": ["A dog .", "Dogs"], "tags": ["DT NN", "NN"]},
        {"id": "y", "captions": ["A cat"], "tokens": ["a_cat"], "references": ["one", "two"]},
        {"id": "x", "captions": ["A dog's"]},
        options={"tokenizer": "words"},
    )
    assert len(split) == 4
    assert split.keys == ["x", "x", "y", "x"]
    assert split.first.tolist() == [True, False, True, False]
    assert split.texts == ["A dog .", "Dogs", "A cat", "A dog's"]
    assert split.tokens() == [["a", "dog"], ["dogs"], ["a_cat"], ["a", "dog", "'s"]]
    assert split.field("tags") == ["DT NN", "NN", None, None]
    assert split.references() == {"x": ["A dog .", "Dogs", "A dog's"], "y": ["one", "two"]}


def test_captions_without_images_have_no_keys(tmp_path):
    split = make_split(tmp_path, {"captions": ["A dog"]}, {"captions": ["A cat", "Cats"]})
    assert split.keys is None
    assert split.items == ["0", "1", "2"]
    assert split.first.all()
    assert split.references() == {"0": ["A dog"], "1": ["A cat"], "2": ["Cats"]}


def test_story_that_is_a_reference_only_is_no_line(tmp_path):
    story = {"images": IMAGES, "sentences": SENTENCES, "album": "1", "id": "s"}
    other = {**story, "images": IMAGES[::-1], "sentences": ["Home", "", "", "", ""]}
    split = make_split(
        tmp_path,
        story,
        {**other, "reference_only": True},
        {**story, "missing": ["b"]},
        options={"tokenizer": "whitespace", "keep_case": True, "keep_punctuation": True},
    )
    key, text = "\t".join(IMAGES), " ".join(SENTENCES)
    assert split.keys == [key, key]
    assert split.first.tolist() == [True, False]
    assert split.tokens()[0][:5] == ["We", "go", ".", "<sent>", "It"]
    assert split.missing == {"b"}
    assert split.field("album") == ["1", "1"]
    assert split.references() == {key: [text, text]}
    assert split.references("album") == {key: [text, "Home", text]}


def test_pairs_have_two_sides(tmp_path):
    split = make_split(
        tmp_path,
        {"prompt": "[WP] Go!", "story": "I go .\nAgain"},
        options={"tokenizer": "story", "story_words": 4},
    )
    assert split.tokens("wp_source") == [["[", "WP", "]", "Go", "!"]]
    assert split.tokens() == [["I", "go", ".", "<newline>"]]
    assert split.texts == ["I go .\nAgain"]


def test_unknown_words_of_a_video_are_numbered(tmp_path):
    (tmp_path / "dict.desc.txt").write_text("we 3\n<unk-0> 0\n")
    video = {"id": "v", "transcript": "We knead dough", "summary": "knead bread"}
    split = make_split(tmp_path, {**video, "unknowns": ["knead"]}, options={"tokenizer": "lower"})
    (tmp_path / "subwords.json").write_text('{"kind": "none", "numbered_unknowns": 1}')
    assert split.tokens("tran") == [["we", "<unk-0>", "<unk>"]]
    assert split.tokens("desc") == [["<unk-0>", "<unk>"]]
    assert split.decode("we <unk-0>", 0) == "we knead"


@pytest.mark.parametrize(
    "make",
    [make_captions_folder, make_visual_stories_folder, make_story_folder, make_videos_folder],
)
def test_imported_folder_has_the_values_of_its_records(tmp_path, make):
    make(tmp_path / "old")
    for name in split_names(tmp_path / "old"):
        old = ImportedSplit(tmp_path / "old", name)
        new_folder = tmp_path / "new"
        new_folder.mkdir(exist_ok=True)
        write_jsonl(new_folder / f"{name}.jsonl", old.iterate_records())
        new = open_split(new_folder, name)
        assert (new.kind, new.sides, len(new)) == (old.kind, old.sides, len(old))
        assert (new.keys, new.texts, new.missing) == (old.keys, old.texts, old.missing)
        assert [new.tokens(x) for x in new.sides or [None]] == [
            old.tokens(x) for x in old.sides or [None]
        ]
        for of in ("item", "album"):
            assert list(new.references(of).items()) == list(old.references(of).items())
        for field in ("id", "album", "transcript", "unknowns"):
            assert new.field(field) == old.field(field)


def test_imported_folder_needs_only_binarised_text(tmp_path):
    full = ImportedSplit(make_captions_folder(tmp_path), "valid")
    texts, references = full.texts, full.references()
    (tmp_path / "valid.references.jsonl").unlink()
    plain = ImportedSplit(tmp_path, "valid")
    assert (plain.texts, plain.references()) == (texts, references)
    assert "the references are the lines of" in plain.note
    (tmp_path / "valid.visual_ids").unlink()
    assert list(open_split(tmp_path, "valid").references()) == list(map(str, range(len(texts))))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":2: not JSON"),
        ("[]", ":2: must be a JSON object"),
        ('{"id": "x"}', ":2: must have the field `captions`"),
        ('{"captions": "x"}', ":2: `captions` must be a list of texts"),
        ('{"captions": ["x"], "id": 3}', ":2: `id` must be text"),
        ('{"captions": ["x"], "tags": []}', ":2: `tags` must be a list of 1 texts"),
        ('{"captions": ["x"], "tokens": "x"}', ":2: `tokens` must be a list of 1 texts"),
        ('{"captions": ["x"], "references": []}', ":2: `references` must be a list of texts"),
        ('{"captions": ["x"], "reference_only": "no"}', ":2: `reference_only` must be true or"),
        ('{"captions": ["x"]}', ": all records must have an `id`"),
    ],
)
def test_wrong_record_is_named_by_file_and_line(tmp_path, line, message):
    path = tmp_path / "train.jsonl"
    path.write_text('{"id": "a", "captions": ["x"]}\n' + line + "\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(path) + message)}"):
        _ = open_split(tmp_path, "train").keys


def test_text_without_a_word_and_a_split_of_another_kind_are_refused(tmp_path):
    path, report = tmp_path / "test.jsonl", tmp_path / "prepare.json"
    report.write_text('{"options": {"tokenizer": "whitespace"}}')
    path.write_text('{"prompt": "a", "story": "b"}\n{"prompt": "a", "story": " "}\n')
    with pytest.raises(UserError, match=rf"^{path}:2: has no word in its text"):
        open_split(tmp_path, "test").tokens()
    with pytest.raises(UserError, match=rf"^{path}: must not be a split of prompts here"):
        open_split(tmp_path, "test", ())
    report.write_text('{"options": ["tokenizer"]}')
    with pytest.raises(UserError, match=rf"^{report}: cannot be read"):
        open_split(tmp_path, "test").tokens()


def test_reference_only_is_no_line_of_any_kind(tmp_path):
    path = tmp_path / "test.jsonl"
    records = [
        {"id": "1", "captions": ["a", "b"]},
        {"id": "1", "captions": ["c"], "reference_only": True},
    ]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    split = open_split(tmp_path, "test")
    assert split.texts == ["a", "b"]
    assert split.references() == {"1": ["a", "b", "c"]}


def test_unknown_split_is_refused_by_the_names_of_others(tmp_path):
    make_captions_folder(tmp_path)
    with pytest.raises(UserError, match=r"has no split 'test', but train, valid\.$"):
        open_split(tmp_path, "test")
