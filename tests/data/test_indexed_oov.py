"""Unknown words numbered, and put back."""

from fairseq_mm.data.indexed_oov import index_oov_words, index_with, restore_oov_words

KNOWN = {"the", "a", "plays", "<unk-0>", "<unk-1>"}


def test_unknown_words_are_numbered_by_their_first_occurrence():
    words = ["the", "luthier", "plays", "the", "oud", "the", "luthier"]
    tokens, oov_words = index_oov_words(words, KNOWN, 2)
    assert tokens == ["the", "<unk-0>", "plays", "the", "<unk-1>", "the", "<unk-0>"]
    assert oov_words == ["luthier", "oud"]


def test_unknown_words_beyond_the_limit_have_no_number():
    tokens, oov_words = index_oov_words(["luthier", "oud", "sitar", "oud"], KNOWN, 2)
    assert tokens == ["<unk-0>", "<unk-1>", "<unk>", "<unk-1>"]
    assert oov_words == ["luthier", "oud"]
    assert index_oov_words(["oud"], KNOWN, 0) == (["<unk>"], [])


def test_a_summary_takes_the_numbers_of_its_transcript():
    tokens = index_with(["a", "sitar", "the", "oud"], KNOWN, ["luthier", "oud"])
    assert tokens == ["a", "<unk>", "the", "<unk-1>"]


def test_a_word_that_looks_like_a_number_is_an_unknown_word_itself():
    tokens, oov_words = index_oov_words(["oud", "<unk-0>"], KNOWN, 2)
    assert tokens == ["<unk-0>", "<unk-1>"]
    assert restore_oov_words(" ".join(tokens), oov_words) == "oud <unk-0>"


def test_what_was_unknown_before_gets_no_number():
    assert index_oov_words(["<unk>", "oud"], KNOWN, 2) == (["<unk>", "<unk-0>"], ["oud"])


def test_words_are_put_back():
    assert restore_oov_words("the <unk-1> plays <unk-0>", ["luthier", "oud"]) == (
        "the oud plays luthier"
    )


def test_a_number_that_the_transcript_does_not_have_becomes_unknown():
    assert restore_oov_words("<unk-2> oud <unk-x>", ["luthier"]) == "<unk> oud <unk-x>"
