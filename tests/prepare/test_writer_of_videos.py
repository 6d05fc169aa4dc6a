"""The data folder has what the task reads, whatever the tokens are, and appears when complete."""

import json

import pytest
import toy_subwords
from written_folder import binarised, keys, records, tokens

from fairseq_mm.data.record_split import VIDEOS
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import is_not_available
from fairseq_mm.errors import UserError
from fairseq_mm.prepare.corpus import Corpus, Example
from fairseq_mm.prepare.videos import VideoWriter
from fairseq_mm.prepare.writer import Vocabulary

TEXTS = {
    "train": [
        ("v1", "we tune the guitar , zither and lyre", "tune the  guitar"),
        ("v2", "transcript not available", "the guitar"),
        ("v3", "the guitar the guitar", "the lute"),
    ],
    "test": [("v4", "Zo the\nzither , zo the <unk> guitar", "zo tune the harp")],
}


@pytest.fixture
def corpus():
    videos = {
        split: [
            Example(
                {"transcript": [a], "summary": [b]},
                f"t:{i}",
                key,
                [key],
                places={"summary": f"d:{i}"},
            )
            for i, (key, a, b) in enumerate(rows, 1)
        ]
        for split, rows in TEXTS.items()
    }
    return Corpus(VIDEOS, "own", "as given", videos, ["data.jsonl"])


@pytest.fixture
def write(corpus, tmp_path):
    def call(subwords=None, *, skip_empty=False, overwrite=False, **options):
        made = VideoWriter(
            str.lower,
            Vocabulary("text", 1, **options),
            subwords or Subwords(),
            settings={"tokenizer": "lower"},
            skip_empty=skip_empty,
        )
        return made.write(corpus, tmp_path / "out", overwrite=overwrite)

    return call


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_words_become_a_folder(write, tmp_path):
    report = write()
    out = tmp_path / "out"
    assert records(out, "train") == [
        {"id": key, "transcript": transcript, "summary": summary}
        for key, transcript, summary in TEXTS["train"]
    ]
    assert tokens(out, "test", "tran") == ["zo the zither , zo the <unk> guitar"]
    assert json.loads((out / "subwords.json").read_text()) == {"kind": "none"}
    assert (out / "dict.tran.txt").read_text() == (out / "dict.desc.txt").read_text()
    assert lines(out / "dict.tran.txt")[:3] == ["the 6", "guitar 5", "tune 2"]
    assert binarised(out, "test", "tran") == ["<unk> the zither , <unk> the <unk> guitar"]
    assert binarised(out, "test", "desc") == ["<unk> tune the <unk>"]
    assert report["counts"]["train"] == {
        "videos": 3,
        "transcripts_not_available": 1,
        "transcript_tokens": 8 + 3 + 4,
        "summary_tokens": 3 + 2 + 2,
        "transcripts_cut": 0,
        "summaries_cut": 0,
        "unknown_transcript_tokens": 0,
        "unknown_summary_tokens": 0,
    }
    assert report["counts"]["test"]["unknown_transcript_tokens"] == 3
    assert report["dictionary_words"] == len(lines(out / "dict.tran.txt")) == 12
    assert report["kind"] == "videos"
    assert report.items() <= json.loads((out / "prepare.json").read_text()).items()


def test_unknown_words_are_numbered_by_video(write, tmp_path):
    report = write(Subwords(indexed_oov=2), threshold=2)
    out = tmp_path / "out"
    # known: the guitar tune
    assert tokens(out, "train", "tran") == [
        "<unk-0> tune the guitar <unk-1> <unk> <unk> <unk>",
        "<unk-0> <unk-1> <unk>",
        "the guitar the guitar",
    ]
    unknowns = [record["unknowns"] for record in records(out, "train")]
    assert unknowns == [["we", ","], ["transcript", "not"], []]
    assert tokens(out, "test", "tran") == ["<unk-0> the <unk-1> <unk> <unk-0> the <unk> guitar"]
    assert tokens(out, "test", "desc") == ["<unk-0> tune the <unk>"]
    assert records(out, "test")[0]["unknowns"] == ["zo", "zither"]
    assert lines(out / "dict.tran.txt") == lines(out / "dict.desc.txt")
    assert lines(out / "dict.tran.txt") == ["the 6", "guitar 5", "tune 2", "<unk-0> 0", "<unk-1> 0"]
    assert binarised(out, "test", "tran") == tokens(out, "test", "tran")
    assert report["counts"]["test"]["numbered_in_transcripts"] == 3
    assert report["counts"]["test"]["numbered_in_summaries"] == 1
    assert report["counts"]["test"]["unknown_transcript_tokens"] == 2
    assert Subwords.load(out).indexed_oov == 2


def test_words_are_numbered_by_an_existing_dictionary_too(write, corpus, tmp_path):
    given = tmp_path / "dict.txt"
    given.write_text("guitar 9\nthe 3\ntune 2\nand 1\n<unk-0> 0\n<unk-1> 0\n")
    del corpus.splits["train"]
    with pytest.raises(UserError, match=r"dict\.txt: has <unk-1>, but --indexed-oov is 1"):
        write(Subwords(indexed_oov=1), dictionary=given)
    with pytest.raises(UserError, match=r"has <unk-0>, but --indexed-oov is 0"):
        write(dictionary=given)
    write(Subwords(indexed_oov=2), dictionary=given)
    assert (tmp_path / "out" / "dict.desc.txt").read_text() == given.read_text()
    given.write_text("guitar 9\nthe 3\ntune 2\nand 1\n")
    write(Subwords(indexed_oov=1), dictionary=given, overwrite=True)
    assert lines(tmp_path / "out" / "dict.desc.txt") == [*lines(given), "<unk-0> 0"]


@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_pieces_become_a_folder_that_says_how(write, tmp_path, kind):
    encoder, merges = toy_subwords.write_gpt2(tmp_path)
    model = toy_subwords.write_sentencepiece(tmp_path / "m.model")
    paths = {
        "gpt2": {"encoder.json": encoder, "vocab.bpe": merges},
        "sentencepiece": {"sentencepiece.model": model},
    }[kind]
    given = Subwords.from_paths(kind, paths)
    report = write(given)
    out = tmp_path / "out"
    subwords = Subwords.load(out)
    assert subwords.fingerprint == given.fingerprint == report["options"]["subwords_fingerprint"]
    assert tokens(out, "train", "desc")[0] == " ".join(subwords.encode("tune the guitar"))
    assert binarised(out, "train", "desc") == tokens(out, "train", "desc")
    assert subwords.decode(tokens(out, "train", "tran")[0]) == TEXTS["train"][0][1]
    write(overwrite=True)
    assert not (out / "vocab.bpe").exists()
    assert not (out / "sentencepiece.model").exists()


def test_a_dictionary_is_taken_for_both_sides(write, corpus, tmp_path):
    given = tmp_path / "dict.txt"
    given.write_text("zo 1\nthe 1\ntune 1\nguitar 1\nzither 1\n")
    report = write(dictionary=given)
    assert (tmp_path / "out" / "dict.tran.txt").read_text() == given.read_text()
    assert (tmp_path / "out" / "dict.desc.txt").read_text() == given.read_text()
    assert report["options"]["threshold"] is None
    given.write_text("464 1\n262 1\n")
    with pytest.raises(UserError, match=r"dict\.txt: 15 of 15 tokens of the train split's transc"):
        write(dictionary=given, overwrite=True)
    del corpus.splits["train"]
    with pytest.raises(UserError, match=r"data\.jsonl: no training videos; without them --dict"):
        write(overwrite=True)


def test_texts_that_will_be_cut_are_counted(write, corpus):
    video = corpus.splits["train"][0]
    for words, cut in ((511, 0), (512, 1)):
        video.texts["transcript"] = ["the " * words]
        video.texts["summary"] = ["the " * (words - 448)]
        counts = write(overwrite=True)["counts"]["train"]
        assert (counts["transcripts_cut"], counts["summaries_cut"]) == (cut, cut)


def test_empty_texts_are_left_out_when_asked_for(write, corpus, tmp_path):
    corpus.splits["train"][1].texts["summary"] = [" "]
    report = write(skip_empty=True)
    assert keys(tmp_path / "out", "train") == ["v1", "v3"]
    assert report["exceptions"] == {"train videos left out, a text has no word": ["v2"]}
    corpus.splits["test"][0].texts["transcript"] = [""]
    with pytest.raises(UserError, match=r"data\.jsonl: no videos are left for test"):
        write(skip_empty=True, overwrite=True)


def test_how2_says_that_a_transcript_is_missing():
    assert is_not_available(" Transcript not  available .\n")
    assert not is_not_available("transcript not available today")
