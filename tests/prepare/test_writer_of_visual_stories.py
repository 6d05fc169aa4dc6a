"""Visual stories by split -> data folder: what stands in it, line by line."""

import pytest
from written_folder import binarised, keys, names_in, records, tokens

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.record_split import VISUAL_STORIES
from fairseq_mm.data.records import open_split
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.visual_stories import VisualStoryWriter
from fairseq_mm.prepare.writer import Vocabulary


def story(key, images, *sentences, album="A"):
    where = f"data.jsonl:{key}"
    return Example({"sentences": list(sentences)}, where, key, images.split(), album)


def example():
    """Two stories of one photo sequence, two more of its album and of another; one to validate."""
    train = [
        story("1", "p q r s t", "a dog", "it ran", "far", "far  off", "home ."),
        story("2", "p q r s t", "one dog", "a cat", "a", "b", "c"),
        story("3", "t q r s u", "a", "b", "a", "b", "a dog"),
        story("4", "v w x y z", "b", "a", "b", "a", "b", album="B"),
    ]
    valid = [story("5", "k l m n o", "a zebra", "a", "b", "a a", "b", album="C")]
    splits = {"train": train, "valid": valid}
    return Corpus(VISUAL_STORIES, "own", "as given", splits, ["data.jsonl"])


def write(corpus, output, *, skip_empty=False, overwrite=False, **options):
    if "dictionary" not in options:
        options = {"threshold": 1, **options}
    vocabularies = {"dict.txt": Vocabulary("stories", 10, **options)}
    settings = CaptionTokenizer("whitespace", keep_case=True, keep_punctuation=True).settings()
    made = VisualStoryWriter(str.split, vocabularies, settings=settings, skip_empty=skip_empty)
    return made.write(corpus, output, overwrite=overwrite)


def test_the_folder_holds_each_story_as_one_line(tmp_path):
    report = write(example(), tmp_path / "out")
    out = tmp_path / "out"
    assert names_in(out) == sorted(
        ["dict.txt", "prepare.json"]
        + [f"{split}.{end}" for split in ("train", "valid") for end in ("bin", "idx", "jsonl")]
    )
    assert (
        binarised(out, "train")
        == tokens(out, "train")
        == [
            "a dog <sent> it ran <sent> far <sent> far off <sent> home .",
            "one dog <sent> a cat <sent> a <sent> b <sent> c",
            "a <sent> b <sent> a <sent> b <sent> a dog",
            "b <sent> a <sent> b <sent> a <sent> b",
        ]
    )
    assert records(out, "train")[3] == {
        "id": "4", "album": "B", "images": [*"vwxyz"], "sentences": [*"babab"],
    }  # fmt: skip
    assert report["counts"]["train"] == {
        "stories": 4, "albums": 2, "image_sequences": 3, "images": 11, "words": 27,
        "unknown": 0,
    }  # fmt: skip


def test_references_are_all_stories_of_the_sequence_and_of_the_album(tmp_path):
    out = tmp_path / "out"
    write(example(), out)
    first = "a dog it ran far far  off home ."
    references = {
        "p\tq\tr\ts\tt": [first, "one dog a cat a b c"],
        "t\tq\tr\ts\tu": ["a b a b a dog"],
        "v\tw\tx\ty\tz": ["b a b a b"],
    }
    assert open_split(out, "train").references() == references
    album = [first, "one dog a cat a b c", "a b a b a dog"]
    expected = dict(zip(references, (album, album, ["b a b a b"])))
    assert open_split(out, "train").references("album") == expected


def test_images_of_kept_stories_that_are_missing_are_listed_in_their_place(tmp_path):
    corpus = example()
    missing = dict.fromkeys([*"skx", "nowhere"], "no such file")
    corpus.leave_out_missing(missing, policy="keep")
    report = write(corpus, tmp_path / "out")
    out = tmp_path / "out"
    assert open_split(out, "train").missing == {"s", "x"}
    assert open_split(out, "valid").missing == {"k"}
    assert keys(out, "train")[0] == "p\tq\tr\ts\tt"
    assert report["missing"] == dict.fromkeys("sxk", "no such file")
    corpus = example()
    corpus.leave_out_missing({"u": "no such file"}, policy="drop")
    report = write(corpus, out, overwrite=True)
    assert not open_split(out, "train").missing
    assert report["exceptions"]["train stories left out, images missing"] == ["3"]
    # told of the album all the same
    assert "a b a b a dog" in open_split(out, "train").references("album")["p\tq\tr\ts\tt"]


def test_stories_with_an_empty_sentence_are_refused_or_left_out(tmp_path):
    corpus = example()
    corpus.splits["train"].append(story("6", "p q r s t", "a", "b", " ", "a", "b"))
    with pytest.raises(UserError, match=r"data.jsonl:6: sentence 3 of story 6 has no word: ' '."):
        write(corpus, tmp_path / "out")
    report = write(corpus, tmp_path / "out", skip_empty=True)
    assert report["counts"]["train"]["stories"] == 4
    assert report["exceptions"] == {"train stories left out, a sentence has no word": ["6"]}
    references = open_split(tmp_path / "out", "train").references()
    assert references["p\tq\tr\ts\tt"][-1] == "a b a b"


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("a <sent> b", r"jsonl:7: sentence 2 of story 7 holds the separator of sentences <sent>"),
        ("a </s>", r"jsonl:7: sentence 2 of story 7 holds fairseq's control symbol </s>, which"),
    ],
)
def test_a_symbol_inside_a_sentence_is_refused(tmp_path, sentence, message):
    corpus = example()
    corpus.splits["valid"].append(story("7", "p q r s t", "a", sentence, "b", "a", "b"))
    with pytest.raises(UserError, match=message):
        write(corpus, tmp_path / "out", skip_empty=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["b", "."])
def test_a_threshold_that_the_separator_or_every_word_misses_is_refused(tmp_path, word):
    train = [story("1", "p q r s t", *[f"{word} {word}"] * 5)]
    if word == "b":
        train = [story("1", "p q r s t", *"abcde")]
    corpus = Corpus(VISUAL_STORIES, "own", "as given", {"train": train}, ["data.jsonl"])
    threshold = {"b": 2, ".": 5}[word]  # four separators, ten full stops
    message = f"no word or not even <sent> occurs {threshold} times or more in the training stori"
    with pytest.raises(UserError, match=message):
        write(corpus, tmp_path / "out", threshold=threshold)


def test_a_dictionary_can_be_given_if_it_has_the_separator(tmp_path):
    corpus = example()
    del corpus.splits["train"]
    with pytest.raises(UserError, match="no training stories; without them --dictionary must give"):
        write(corpus, tmp_path / "out")
    words = tmp_path / "words.txt"
    words.write_text("b 7\n")
    with pytest.raises(UserError, match=r"--dictionary .*words.txt: lacks <sent>, which stands"):
        write(corpus, tmp_path / "out", dictionary=words)
    words.write_text("b 7\n<sent> 1\n")
    report = write(corpus, tmp_path / "out", dictionary=words)
    assert (tmp_path / "out" / "dict.txt").read_text() == "b 7\n<sent> 1\n"
    assert report["counts"]["valid"]["unknown"] == 5
    assert report["options"]["threshold"] is None
