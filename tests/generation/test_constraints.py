"""Rules of stories: each equals a naive loop, and every search of fairseq's keeps them."""

import math

import pytest
import torch
from fairseq import search as fairseq_search
from fairseq.data import Dictionary
from numerics import assert_close
from toy_data import WORDS, make_dictionary

from fairseq_mm.errors import UserError
from fairseq_mm.generation.constraints import (
    ConstrainedSearch,
    SourceOovSearch,
    StoryConstraints,
    find_separator,
)

EOS, SEP = 2, 20
V = 21


def dictionary_of(*words):
    dictionary = make_dictionary(separator=True)
    for word in words:
        dictionary.add_symbol(word)
    return dictionary


def constraints_of(dictionary=None, **options):
    return StoryConstraints(dictionary or make_dictionary(separator=True), **options)


def tokens_of(dictionary, *texts):
    """Stories of equal length so far, after the token that starts them."""
    return torch.tensor([[EOS, *(dictionary.index(word) for word in x.split())] for x in texts])


def allowed(constraints, dictionary, text, lprobs=None):
    """Words that may come next."""
    lprobs = torch.zeros(1, 1, len(dictionary)) if lprobs is None else lprobs
    constraints.apply(lprobs, tokens_of(dictionary, text))
    return {dictionary[i] for i in lprobs[0, 0].isfinite().nonzero().flatten().tolist()}


FIRST = "a <sent> a <sent> a <sent> a <sent>"
ANY_WORD = {"<pad>", "<unk>", *WORDS}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ANY_WORD),
        ("dog", ANY_WORD),
        ("dog cat", {*ANY_WORD, "<sent>"}),
        ("dog cat a", {"<sent>"}),
        ("dog cat a dog", {"<sent>"}),  # of a given beginning that is longer
        ("dog cat <sent>", ANY_WORD),
        ("dog cat <sent> a big", {*ANY_WORD, "<sent>"}),
        (FIRST, ANY_WORD),
        (f"{FIRST} a", ANY_WORD),
        (f"{FIRST} a dog", {*ANY_WORD, "</s>"}),
        (f"{FIRST} a dog sits", {"</s>"}),
        (f"{FIRST} a dog <sent> a", ANY_WORD),  # of a given beginning
        (f"{FIRST} a dog <sent> a cat in", {"</s>"}),
    ],
)
def test_sentences_end_within_their_limits_and_the_story_in_its_fifth(text, expected):
    constraints = constraints_of(min_words_per_sentence=2, max_words_per_sentence=3)
    assert allowed(constraints, make_dictionary(separator=True), text) == expected


def test_what_is_allowed_keeps_the_probability_that_the_model_gave_it():
    dictionary = make_dictionary(separator=True)
    torch.manual_seed(3)
    lprobs = torch.randn(2, 3, V).log_softmax(dim=2)
    before = lprobs.clone()
    texts = [
        "dog cat a",
        "dog <sent> a",
        "a big dog",
        "dog <sent> dog",
        "red red a",
        "a cat <sent>",
    ]
    constraints = constraints_of(min_words_per_sentence=2, max_words_per_sentence=3)
    assert constraints.apply(lprobs, tokens_of(dictionary, *texts)) is lprobs
    assert lprobs.isfinite().sum(dim=2).tolist() == [[1, 18, 1], [18, 1, 18]]
    assert torch.equal(lprobs[lprobs.isfinite()], before[lprobs.isfinite()])


def test_sentences_end_after_punctuation_or_at_their_greatest_length():
    dictionary = dictionary_of(".", "!")
    constraints = constraints_of(dictionary, end_after_punctuation=True, max_words_per_sentence=3)
    words = {*ANY_WORD, ".", "!"}
    for text in ("", "dog", "dog <sent>", f"{FIRST} a"):
        assert allowed(constraints, dictionary, text) == words
    assert allowed(constraints, dictionary, "dog .") == {*words, "<sent>"}
    assert allowed(constraints, dictionary, f"{FIRST} a !") == {*words, "</s>"}
    assert allowed(constraints, dictionary, "dog cat a") == {"<sent>"}
    with pytest.raises(UserError, match=r"needs one of \. \? ! in the dictionary, but it has none"):
        constraints_of(end_after_punctuation=True)


def test_penalty_of_repetition_equals_the_loop():
    dictionary = dictionary_of(".", "is")
    texts = [
        "dog a dog <sent> cat . a dog",
        "is . is <sent> big red big .",
        "cat cat cat <sent> cat cat cat cat",
    ]
    tokens = tokens_of(dictionary, *texts)
    torch.manual_seed(5)
    given = torch.randn(3, 1, len(dictionary)).log_softmax(dim=2)
    given[0, 0, 5] = -math.inf
    constraints = constraints_of(dictionary, repetition_penalty=5.0)
    lprobs = constraints.apply(given.clone(), tokens)
    masked = constraints_of(dictionary).apply(given.clone(), tokens)
    may_repeat = {"a", "is", ".", "<sent>", "</s>"}
    for row, text in enumerate(texts):
        before = masked[row, 0].exp().tolist()
        after = [
            p if dictionary[i] in may_repeat else p / (1 + 5 * text.split().count(dictionary[i]))
            for i, p in enumerate(before)
        ]
        scale = sum(before) / sum(after)
        expected = torch.tensor([p * scale for p in after])
        torch.testing.assert_close(lprobs[row, 0].exp(), expected)
    # by hand: of 3/4 cat, seen seven times, and 1/4 dog, unseen: 3/4 / 36 : 1/4 = 1 : 12
    two = torch.full((1, 1, len(dictionary)), -math.inf)
    two[0, 0, [dictionary.index("cat"), dictionary.index("dog")]] = torch.tensor([0.75, 0.25]).log()
    constraints.apply(two, tokens[2:])
    assert_close(two[0, 0, dictionary.index("dog")].exp().item(), 12 / 13)


def test_sequences_of_words_are_not_repeated_within_sentences():
    dictionary = make_dictionary(separator=True)
    words = {*ANY_WORD, "<sent>"}
    constraints = constraints_of(dictionary, no_repeat_ngram=2)
    assert allowed(constraints, dictionary, "a dog sits a") == words - {"dog"}
    assert allowed(constraints, dictionary, "a dog <sent> a") == words - {"dog"}
    # neither the end after the same word, nor the same word after it
    assert allowed(constraints, dictionary, "dog <sent> cat <sent> dog") == words
    assert allowed(constraints, dictionary, "dog <sent> cat <sent>") == ANY_WORD
    constraints = constraints_of(dictionary, no_repeat_ngram=3)
    assert allowed(constraints, dictionary, "a dog sits on a dog") == words - {"sits"}
    assert allowed(constraints, dictionary, "a dog <sent> on <sent> a dog") == words
    constraints = constraints_of(dictionary, no_repeat_ngram=1)
    assert allowed(constraints, dictionary, "a dog <sent> on") == words - {"a", "dog", "on"}
    assert allowed(constraints, dictionary, "a <sent> on <sent>") == ANY_WORD - {"a", "on"}


def test_the_place_in_a_story_and_the_longest_that_may_follow():
    dictionary = make_dictionary(separator=True)
    tokens = tokens_of(
        dictionary, "a dog <sent> cat", "<pad> <pad> <pad> <pad>", "a <sent> a <sent>"
    )
    tokens[0, 4:] = 1  # padding after the separator
    constraints = constraints_of(max_words_per_sentence=3)
    sentences, words = constraints.place_in_story(tokens)
    assert sentences.tolist() == [1, 0, 2]
    assert words.tolist() == [0, 0, 0]
    assert constraints.max_length == constraints.longest(tokens[1:2]) == 20
    assert constraints.longest(tokens[:1]) == 3 + 16
    assert constraints.longest(tokens[2:]) == 4 + 12
    assert constraints.longest(tokens_of(dictionary, "a a a a a a")) == 6 + 1 + 16
    assert constraints.longest(tokens_of(dictionary, f"{FIRST} a <sent> a")) == 11 + 3


def test_dictionary_without_the_separator_is_refused():
    with pytest.raises(UserError, match=r"^x/dict\.txt: has no word '<sent>'"):
        find_separator(make_dictionary(), "x/dict.txt")
    with pytest.raises(UserError, match=r"^the dictionary: has no word '<sent>'"):
        StoryConstraints(Dictionary())


def test_given_words_are_left_to_the_search():
    dictionary = make_dictionary(separator=True)
    ruled = ConstrainedSearch(dictionary, fairseq_search.BeamSearch(dictionary), constraints_of())
    given = torch.full((1, 2, V), -math.inf)
    given[:, :, SEP] = -3.0
    tokens = torch.tensor([[EOS], [EOS]])
    items = torch.tensor([0])
    assert ruled.step(0, given.clone(), torch.zeros(1, 2, 0), tokens, items)[0].isinf().all()
    ruled.num_forced = 1
    scores, words, _ = ruled.step(0, given.clone(), torch.zeros(1, 2, 0), tokens, items)
    assert (scores[0, 0].item(), words[0, 0].item()) == (-3.0, SEP)


def test_oov_tokens_that_the_source_lacks_are_no_candidates_but_stay_where_forced():
    dictionary = dictionary_of("<unk-0>", "<unk-1>")
    search = SourceOovSearch(dictionary, fairseq_search.BeamSearch(dictionary), [21, 22])
    search.begin(torch.tensor([[5, 21, EOS]]))
    lprobs = torch.full((1, 2, 23), -9.0)
    lprobs[0, 0, 22], lprobs[0, 0, 21] = -1.0, -2.0
    lprobs[0, 1] = -math.inf
    lprobs[0, 1, 22] = -3.0  # the forced word of a prefix
    search.step(0, lprobs, torch.zeros(1, 2, 0), torch.tensor([[EOS], [EOS]]), torch.tensor([0]))
    assert lprobs[0, :, 21:].tolist() == [[-2.0, -math.inf], [-math.inf, -3.0]]
