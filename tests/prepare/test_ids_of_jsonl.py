"""The field `id` means the same to `prepare` and `extract`, and both check it alike."""

import json

import pytest

from fairseq_mm.data import record_split
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import IMAGES, VIDEOS, list_images
from fairseq_mm.prepare.captions import TEXTS
from fairseq_mm.prepare.jsonl import read_jsonl

LINES = {
    "video": {"video": "a.mp4", "transcript": "so we cut", "summary": "cut it"},
    "image": {"image": "a.jpg", "captions": ["A dog runs ."]},
    "text": {"captions": ["A dog runs ."]},
    "story": {"images": [f"{i}.jpg" for i in range(5)], "sentences": list("abcde")},
    "prompt": {"prompt": "[WP] Now.", "story": "It began."},
}
KINDS = {
    "video": record_split.VIDEOS,
    "image": record_split.CAPTIONS,
    "text": TEXTS,
    "story": record_split.VISUAL_STORIES,
    "prompt": record_split.PROMPTS,
}
BAD_IDS = [True, 7, ["x"], {}, "", " ", "x ", "a\tb", "a\nb", "a\u2028b", "a\0b", "a\r"]


@pytest.fixture
def write(tmp_path):
    def write_lines(*entries):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        return path

    return write_lines


def prepare(kind, path):
    return read_jsonl(KINDS[kind], {None: [path]}).splits["train"]


def extract(kind, path):
    return list_images([str(path)], kind=VIDEOS if kind == "video" else IMAGES)


@pytest.mark.parametrize("key", BAD_IDS)
@pytest.mark.parametrize("kind", LINES)
def test_an_id_that_lists_cannot_hold_is_refused_alike(write, kind, key):
    path = write({**LINES[kind], "id": key})
    messages = []
    for read in (prepare, *([extract] if kind in ("video", "image", "story") else [])):
        with pytest.raises(UserError) as error:
            read(kind, path)
        messages.append(str(error.value).replace("a story", "an image"))
    assert messages[0].startswith(f"{path}:1: ")
    assert "id" in messages[0].split("must be text")[0]
    assert len(set(messages)) == 1


@pytest.mark.parametrize(("kind", "name"), [("video", "a.mp4"), ("image", "a.jpg")])
@pytest.mark.parametrize(("given", "expected"), [({"id": "x/1"}, "x/1"), ({"id": None}, None)])
def test_the_id_is_the_key_in_the_feature_store(write, kind, name, given, expected):
    path = write({**LINES[kind], **given})
    (example,) = prepare(kind, path)
    (file,) = extract(kind, path)
    assert example.id == file.key == (expected or name)
    assert example.visual == [file.key]


def test_the_id_of_a_story_is_not_that_of_its_images(write):
    files = extract("story", write({**LINES["story"], "id": "s1"}))
    assert [file.key for file in files] == [f"{i}.jpg" for i in range(5)]
