"""A transcript becomes the tokens that the training data would have had of it."""

import pytest
from toy_subwords import SENTENCES, write_gpt2, write_sentencepiece

from fairseq_mm.data.subwords import Subwords
from fairseq_mm.inference.transcript_encoder import TranscriptEncoder
from fairseq_mm.tasks.video_summarization import VideoSummarizationTask


def encoder_of(subwords, words, **state):
    task = VideoSummarizationTask.from_provenance(words, {}, 0, subwords=subwords.to_state())
    task.load_state_dict(state)
    return TranscriptEncoder(task, "best.pt")


def subwords_of(kind, folder):
    if kind == "gpt2":
        encoder, merges = write_gpt2(folder)
        return Subwords.from_paths(kind, {"encoder.json": encoder, "vocab.bpe": merges})
    return Subwords.from_paths(kind, {"sentencepiece.model": write_sentencepiece(folder / "s.m")})


@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_text_is_taken_as_it_is_where_there_are_pieces(kind, tmp_path):
    subwords = subwords_of(kind, tmp_path)
    pieces = subwords.encode(SENTENCES[0])
    encoder = encoder_of(subwords, sorted(set(pieces)))
    assert encoder.tokenizer == "none"
    transcript = encoder.encode(f"  {SENTENCES[0]}\n")
    dictionary = encoder.task.source_dictionary
    expected = [*(dictionary.index(piece) for piece in pieces), dictionary.eos()]
    assert transcript.tokens.tolist() == expected
    assert encoder.task.readable.text_of(dictionary.string(transcript.tokens)) == SENTENCES[0]
    assert transcript[2:] == ([], len(pieces), 0, True)


@pytest.mark.parametrize(
    ("ends", "words", "begins"), [("end", 3, False), ("both", 2, True), ("none", 4, False)]
)
def test_ends_are_those_of_the_training(ends, words, begins):
    state = {"source_ends": ends, "max_source_positions": 4}
    encoder = encoder_of(Subwords(), list("abcdef"), **state)
    assert encoder.limit == words
    dictionary = encoder.task.source_dictionary
    transcript = encoder.encode("a b c d e")
    assert (transcript.num_tokens, transcript.num_cut) == (5, 5 - words)
    expected = [dictionary.index(word) for word in "abcde"[:words]]
    expected = [dictionary.bos()] * begins + expected + [dictionary.eos()] * (ends != "none")
    assert transcript.tokens.tolist() == expected


def test_a_transcript_may_say_that_there_is_none():
    encoder = encoder_of(Subwords(), ["a", "dog"])
    for text in (None, "Transcript not available."):
        assert not encoder.encode(text).is_available  # though the model knows none of its words
    assert encoder.encode(None).text == "transcript not available"
