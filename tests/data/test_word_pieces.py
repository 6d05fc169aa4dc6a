"""Pieces of both kinds of subwords as the words that they make."""

import numpy as np
from toy_subwords import SENTENCES, write_gpt2, write_sentencepiece

from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.word_pieces import by_word, join_pieces


def gpt2(folder):
    encoder, merges = write_gpt2(folder)
    return Subwords.from_paths("gpt2", {"encoder.json": encoder, "vocab.bpe": merges})


def sentencepiece(folder):
    path = write_sentencepiece(folder / "sentencepiece.model")
    return Subwords.from_paths("sentencepiece", {"sentencepiece.model": path})


def test_pieces_are_put_together_to_words(tmp_path):
    for subwords in (gpt2(tmp_path), sentencepiece(tmp_path)):
        for text in (*SENTENCES, "the rose's  naïve thé", "x"):
            tokens = subwords.encode(text)
            words, owners = join_pieces(["<s>", *tokens, "</s>"], subwords)
            assert words == ["<s>", *subwords.decode(" ".join(tokens)).split(), "</s>"]
            assert len(owners) == len(tokens) + 2
            for w, word in enumerate(words[1:-1], start=1):
                pieces = [token for token, owner in zip(tokens, owners[1:-1]) if owner == w]
                assert subwords.decode(" ".join(pieces)).strip() == word
    words, owners = join_pieces(["the", "<unk>", "</s>"], Subwords())
    assert (words, owners.tolist()) == (["the", "<unk>", "</s>"], [0, 1, 2])


def test_a_piece_that_is_a_space_alone_does_not_say_the_word_before_again(tmp_path):
    """As before a word whose first sign no piece has."""
    pieces = ["\u2581", "<unk>", "\u2581"]
    words, _ = join_pieces([*pieces, "</s>"], sentencepiece(tmp_path))
    assert words == ["", "<unk>", "", "</s>"]
    tokens = sentencepiece(tmp_path).encode("the")
    words, _ = join_pieces([*tokens, *pieces], sentencepiece(tmp_path))
    assert words == ["the", "", "<unk>", ""]


def test_words_have_the_means_or_the_sums_of_their_pieces():
    weights = np.arange(2 * 4 * 3, dtype=float).reshape(2, 4, 3)
    owners = np.array([0, 1, 1, 2])
    for sums in (False, True):
        found = by_word(weights, owners, sums=sums)
        for i in range(2):
            for m in range(3):
                first, second, third, fourth = weights[i, :, m]
                middle = (second + third) / (1 if sums else 2)
                assert found[i, :, m].tolist() == [first, middle, fourth]
