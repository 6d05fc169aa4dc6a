"""Items by split -> data folder: what stands in it, and that a failure leaves nothing."""

import pytest
from written_folder import binarised, keys, names_in, records

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.record_split import CAPTIONS
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionWriter, captioned_image
from fairseq_mm.prepare.corpus import Corpus
from fairseq_mm.prepare.writer import Vocabulary


def corpus(**splits):
    return Corpus(
        CAPTIONS,
        "own",
        "as given",
        {
            split: [
                captioned_image(f"{split}{number}.jpg", captions, f"data.jsonl:{number}")
                for number, captions in enumerate(items, 1)
            ]
            for split, items in splits.items()
        },
        ["data.jsonl"],
    )


def write(items, output, *, skip_empty=False, overwrite=False, **options):
    if "dictionary" not in options:
        options = {"threshold": 1, **options}
    vocabularies = {"dict.txt": Vocabulary("captions", 5, **options)}
    settings = CaptionTokenizer("whitespace", keep_case=True, keep_punctuation=True).settings()
    made = CaptionWriter(str.split, vocabularies, settings=settings, skip_empty=skip_empty)
    return made.write(items, output, overwrite=overwrite)


def example():
    return corpus(
        train=[["a red cat", "a cat"], ["a blue dog", "a dog runs", "one dog"]],
        valid=[["a green cat", "a cat runs"]],
    )


def test_the_folder_holds_records_and_their_binarised_text(tmp_path):
    write(example(), tmp_path / "out")
    assert names_in(tmp_path / "out") == sorted(
        ["dict.txt", "prepare.json"]
        + [f"{split}.{end}" for split in ("train", "valid") for end in ("bin", "idx", "jsonl")]
    )
    assert records(tmp_path / "out", "train") == [
        {"id": "train1.jpg", "captions": ["a red cat", "a cat"]},
        {"id": "train2.jpg", "captions": ["a blue dog", "a dog runs", "one dog"]},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_the_number_of_words_can_be_limited(tmp_path):
    write(example(), tmp_path / "out", max_words=2)
    assert (tmp_path / "out" / "dict.txt").read_text().split()[::2] == ["a", "dog"]


def test_overwriting_replaces_prepared_files_and_no_others(tmp_path):
    out = tmp_path / "out"
    write(example(), out)
    (out / "features.h5").write_text("took hours")
    (out / "text").mkdir()
    for name in ("text/train.txt", "train.visual_ids", "missing_images.txt"):
        (out / name).write_text("of version 0.2")
    write(corpus(train=[["a bird"]]), out, overwrite=True)
    assert (out / "features.h5").read_text() == "took hours"
    assert not list(out.glob("valid*"))
    assert binarised(out, "train") == ["a bird"]


def test_somebody_elses_file_among_the_texts_survives(tmp_path):
    out = tmp_path / "out"
    write(example(), out)
    (out / "text").mkdir()
    (out / "text" / "raw.txt").write_text("not ours")
    (out / "text" / "train.txt").write_text("of version 0.2")
    write(corpus(train=[["a bird"]]), out, overwrite=True)
    assert [path.name for path in (out / "text").iterdir()] == ["raw.txt"]


def test_data_of_another_kind_is_not_overwritten(tmp_path):
    out = tmp_path / "out"
    write(example(), out)
    (out / "prepare.json").write_text('{"kind": "prompts"}')
    with pytest.raises(UserError, match=r"out: holds prepared prompts, and captions would stand"):
        write(example(), out, overwrite=True)


def test_an_output_that_is_a_file_or_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written"):
        write(example(), tmp_path / "file")
    with pytest.raises(UserError, match=r"deeper: cannot be written \(.*Not a directory"):
        write(example(), tmp_path / "file" / "deeper")


def test_an_empty_caption_is_refused_by_line_or_left_out_and_counted(tmp_path):
    items = corpus(train=[["a cat", " "], ["a dog"]], valid=[["\t"], ["a dog", ""]])
    with pytest.raises(UserError, match=r"data.jsonl:1: caption 2 of train1.jpg has no word: ' '"):
        write(items, tmp_path / "out")
    report = write(items, tmp_path / "out", skip_empty=True)
    assert report["counts"]["train"]["empty_captions_skipped"] == 1
    assert report["counts"]["valid"]["empty_captions_skipped"] == 2
    assert report["exceptions"] == {"valid images without a caption": ["valid1.jpg"]}
    assert keys(tmp_path / "out", "valid") == ["valid2.jpg"]


SKIP = {"skip_empty": True}


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        ({"train": [["a cat"], []]}, {}, r"data.jsonl:2: image train2.jpg has no caption"),
        ({"train": [["a </s> cat"]]}, {}, r"data.jsonl:1: caption 1 .*control symbol </s>"),
        ({"train": [["a cat"]]}, {"threshold": 9}, "no word occurs 9 times or more in the train"),
        ({"train": [[""]], "valid": [["a cat"]]}, SKIP, "data.jsonl: no images are left for train"),
        ({"train": [["a cat"]], "valid": [[""]]}, SKIP, "data.jsonl: no images are left for valid"),
    ],
)
def test_captions_that_cannot_be_prepared_are_refused(tmp_path, splits, options, message):
    with pytest.raises(UserError, match=message):
        write(corpus(**splits), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_read_is_not_replaced(tmp_path):
    data = example()
    data.files = [str(tmp_path / "train.jsonl")]
    with pytest.raises(UserError, match=r"--output .*: would replace train.jsonl, which is read"):
        write(data, tmp_path, overwrite=True)
