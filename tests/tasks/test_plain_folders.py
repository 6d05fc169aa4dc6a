"""Validation by generated text in folders of fairseq-preprocess, which have no references."""

import json
import logging
from types import SimpleNamespace

import pytest
from toy_data import make_captions_folder, make_videos_folder, make_visual_stories_folder

from fairseq_mm.cli.doctor import set_up

FOLDERS = {
    "multimodal_captioning": (make_captions_folder, "valid.bin", 3),
    "visual_storytelling": (make_visual_stories_folder, "valid.bin", 2),
    "video_summarization": (make_videos_folder, "valid.tran-desc.desc.bin", 1),
}


def references_of(task, data, caplog):
    caplog.clear()
    task = set_up(task, str(data), None)
    task.cfg.eval_gen = True
    with caplog.at_level(logging.WARNING):
        for epoch in (1, 2):  # said once
            task.load_dataset("valid", combine=False, epoch=epoch)
    said = [record.message for record in caplog.records if "no such file" in record.message]
    return task.generated_text_scores["valid"].references, said


@pytest.mark.parametrize("task", FOLDERS)
def test_all_lines_of_an_item_are_its_references(task, tmp_path, caplog):
    make, binarised, count = FOLDERS[task]
    data = make(tmp_path / "data")
    written, said = references_of(task, data, caplog)
    assert not said
    path = data / "valid.references.jsonl"
    path.unlink()
    references, said = references_of(task, data, caplog)
    assert references == written  # the toy words are all in the dictionary
    assert {len(texts) for texts in references.values()} == {count}
    message = f"{path}: no such file; the references are the lines of {data / binarised}."
    assert said == [message]


def test_summaries_without_ids_are_numbered_and_have_the_words_of_oov_tokens(tmp_path, caplog):
    data = make_videos_folder(tmp_path / "data", with_features=False, indexed_oov=2)
    entries = (data / "valid.references.jsonl").read_text().splitlines()
    for path in (*data.glob("*.visual_ids"), *data.glob("*.references.jsonl")):
        path.unlink()
    task = set_up("video_summarization", str(data), None)
    reads_text = SimpleNamespace(reads_video=False, max_positions=lambda: (99, 99))
    task.models.append(reads_text)
    task.cfg.eval_gen = True
    task.load_dataset("valid", combine=False, epoch=1)
    found = task.generated_text_scores["valid"].references
    expected = [json.loads(entry)["references"] for entry in entries]
    assert list(found) == [str(i) for i in range(5)]
    assert list(found.values()) == expected
