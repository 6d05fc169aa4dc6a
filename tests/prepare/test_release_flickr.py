"""Flickr8k and Flickr30k in their official layouts; Flickr8k also as it really is."""

import json

import pytest
from written_folder import records

from fairseq_mm.cli.main import main
from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.captions import CaptionWriter
from fairseq_mm.prepare.releases.flickr8k import read_flickr8k
from fairseq_mm.prepare.releases.flickr30k import FLICKR30K_IMAGES, read_listed
from fairseq_mm.prepare.split_lists import read_karpathy
from fairseq_mm.prepare.writer import Vocabulary


def ids_of(corpus):
    return {split: [item.id for item in items] for split, items in corpus.splits.items()}


@pytest.fixture
def flickr8k(tmp_path):
    captions = [
        ("11_a.jpg", "A child ."), ("12_b.jpg", "A dog ."), ("13_c.jpg", "A cat ."),
        ("14_d.jpg", "A cow ."), ("2258277193_586949ec62.jpg.1", "people waiting"),
    ]  # fmt: skip
    (tmp_path / "Flickr8k.token.txt").write_text(
        "".join(f"{name}#{n}\t{text} {n}\n" for name, text in captions for n in (0, 1))
    )
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("13_c.jpg\n11_a.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("12_b.jpg\n15_e.jpg\n")
    return tmp_path


def test_flickr8k_splits_follow_the_lists_and_keep_their_order(flickr8k):
    corpus = read_flickr8k(flickr8k)
    assert ids_of(corpus) == {"train": ["13_c.jpg", "11_a.jpg"], "valid": ["12_b.jpg"]}
    assert corpus.splits["train"][0].texts["captions"] == ["A cat . 0", "A cat . 1"]
    assert corpus.notes == [f"test: skipped, {flickr8k / 'Flickr_8k.testImages.txt'} is not there"]


def test_flickr8k_exceptions_and_deviations_are_listed(flickr8k):
    corpus = read_flickr8k(flickr8k)
    assert corpus.exceptions == {
        "listed without captions": ["15_e.jpg"],
        "captions without a split": ["14_d.jpg", "2258277193_586949ec62.jpg.1"],
        "not an image's name": ["2258277193_586949ec62.jpg.1"],
    }
    assert corpus.deviations() == [
        "train: 2 images found, 6,000 expected (flickr8k, split official)",
        "valid: 1 images found, 1,000 expected (flickr8k, split official)",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("11_a.jpg A child", r"token.txt:11: must be `image#number<TAB>caption`, .* '11_a"),
        ("11_a.jpg#x\tA child", r"token.txt:11: must be `image#number<TAB>caption`"),
        ("11_a.jpg#1\tA child", r"token.txt:11: must be .* each number once for an image"),
    ],
)
def test_a_malformed_token_line_is_named(flickr8k, line, message):
    with open(flickr8k / "Flickr8k.token.txt", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=message):
        read_flickr8k(flickr8k)


def test_lists_that_contradict_themselves_are_refused(flickr8k):
    (flickr8k / "Flickr_8k.devImages.txt").write_text("12_b.jpg\n\n12_b.jpg\n")
    with pytest.raises(
        UserError, match=r"devImages.txt:3: image 12_b.jpg was given .*devImages.txt:1"
    ):
        read_flickr8k(flickr8k)
    (flickr8k / "Flickr_8k.devImages.txt").write_text("11_a.jpg\n")
    with pytest.raises(UserError, match=r"token.txt:1: image 11_a.jpg was given before"):
        read_flickr8k(flickr8k)
    (flickr8k / "Flickr_8k.devImages.txt").write_text("12_b\n")
    with pytest.raises(UserError, match=r"none of the 1 images listed for valid, such as 12_b\."):
        read_flickr8k(flickr8k)


def test_the_real_flickr8k_has_its_published_counts_and_vocabulary(shared_data, tmp_path):
    corpus = read_flickr8k(shared_data("flickr8k"))
    assert corpus.deviations() == []
    assert corpus.exceptions == {}
    for name in ("words", "whitespace"):
        tokenizer = CaptionTokenizer(name)
        writer = CaptionWriter(tokenizer, {"dict.txt": Vocabulary("captions", 5)})
        report = writer.write(corpus, tmp_path / name)
        counts = report["counts"]
        assert [counts["train"][what] for what in ("images", "captions")] == [6000, 30000]
        assert [counts["valid"][what] for what in ("images", "captions")] == [1000, 5000]
        # 2,538 with the end of the sentence and the unknown word
        assert report["dictionary_words"] == 2536


@pytest.fixture
def karpathy_file(tmp_path):
    images = [
        {"imgid": n, "filename": f"{1000 + n}.jpg", "split": split, "sentids": [2 * n, 2 * n + 1],
         "sentences": [{"tokens": ["a", "dog", str(k)], "raw": f"A dog {n} {k}. ", "imgid": n,
                        "sentid": 2 * n + k} for k in (0, 1)]}
        for n, split in enumerate(["test", "train", "val", "train"])
    ]  # fmt: skip
    path = tmp_path / "dataset_flickr30k.json"
    path.write_text(json.dumps({"images": images, "dataset": "flickr30k"}))
    return path


def test_flickr30k_follows_karpathys_file(karpathy_file):
    corpus = read_karpathy(karpathy_file, name="flickr30k", published=FLICKR30K_IMAGES)
    assert corpus.division == "karpathy"
    assert ids_of(corpus) == {
        "train": ["1001.jpg", "1003.jpg"], "valid": ["1002.jpg"], "test": ["1000.jpg"],
    }  # fmt: skip
    assert corpus.splits["valid"][0].texts["captions"] == ["A dog 2 0.", "A dog 2 1."]
    assert corpus.deviations()[0] == (
        "train: 2 images found, 29,000 expected (flickr30k, split karpathy)"
    )


def test_flickr30k_takes_the_captions_of_the_table_and_its_broken_line(tmp_path):
    table = tmp_path / "results.csv"
    lines = [f"100{n}.jpg| {k}| Cat | {n} {k} ." for n in range(4) for k in (0, 1)]
    lines += ["1003.jpg| 4   A dog runs across the grass ."]
    table.write_text("\n".join(["image_name| comment_number| comment", *lines]) + "\n")
    (tmp_path / "train.txt").write_text("1001\n1003\n")
    lists = {"train": tmp_path / "train.txt"}
    corpus = read_listed(table, lists)
    assert corpus.splits["train"][1].texts["captions"] == [
        "Cat | 3 0 .", "Cat | 3 1 .", "A dog runs across the grass .",
    ]  # fmt: skip
    assert corpus.exceptions["line without its second bar"] == ["1003.jpg"]
    table.write_text("1000.jpg, 0, A dog .\n")
    with pytest.raises(UserError, match=r"results.csv:1: must be `image\| number\| caption`"):
        read_listed(table, lists)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"dataset.json: not JSON \(Expecting property name"),
        ('{"images": [], "dataset": "coco"}', "must hold flickr30k, but holds coco instead"),
        ('{"images": [7]}', "not laid out as the release's file .TypeError"),
        (
            '{"images": [{"split": "dev", "filename": "1.jpg", "sentences": []}]}',
            "not laid out as the release's file .KeyError: 'dev'",
        ),
        (
            '{"images": [{"split": "val", "filename": "1.jpg", "sentences": [{"raw": ["a"]}]}]}',
            "not laid out as the release's file .AttributeError: 'list' object",
        ),
    ],
)
def test_a_malformed_karpathy_file_is_refused(tmp_path, content, message):
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_karpathy(tmp_path / "dataset.json", name="flickr30k", published={})


@pytest.mark.parametrize("name", ["flickr8k", "flickr30k"])
def test_kaggles_file_is_drawn_from(tmp_path, capsys, name):
    file = tmp_path / "captions.txt"
    lines = [
        "image,caption",
        '1.jpg,"A dog , a ""cat"" ."',
        "1.jpg,A dog, a man .",
        "2.jpg,A man .",
    ]
    file.write_text("\n".join([*lines, "3.jpg,Two men ."]) + "\n")
    arguments = ["--threshold", "1", "--valid-size", "1", "--output", str(tmp_path / "out")]
    assert main(["prepare", name, str(file), *arguments]) == 0
    found = [x for split in ("train", "valid") for x in records(tmp_path / "out", split)]
    assert {record["id"]: record["captions"] for record in found} == {
        "1.jpg": ['A dog , a "cat" .', "A dog, a man ."],
        "2.jpg": ["A man ."],
        "3.jpg": ["Two men ."],
    }
    for text, where in (("image,caption\n1.jpg\n", "2: "), ("caption,image\nA dog,1.jpg\n", "1: ")):
        file.write_text(text)
        assert main(["prepare", name, str(file), "--output", str(tmp_path / "other")]) == 2
        assert (
            f"captions.txt:{where}must be `image,caption`, each number once"
            in capsys.readouterr().err
        )
