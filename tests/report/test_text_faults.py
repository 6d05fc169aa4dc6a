"""Words are marked if the text alone proves a fault, and no other word is."""

import pytest

from fairseq_mm.report.text_faults import FAULTS, count_faults, find_faults

EIGHT = "dogs run past us while cats sleep there"
FAULTY = [
    (f"{EIGHT} {EIGHT}", EIGHT, "repeat"),
    (f"{EIGHT} now {EIGHT} now", "", ""),  # a refrain of nine words
    ("a man in a red shirt and a red shirt", "a red shirt", "repeat"),
    ("a dog runs runs in the snow", "runs", "repeat"),
    ("A dog in the snow , in the snow .", "", ""),  # a comma ends the phrase
    ("a cat sits on the mat the mat .", "the mat", "repeat"),
    ("a girl with a dog with a dog", "with a dog", "repeat"),
    ("call 5 5 5 now", "", ""),
    ("more and more people", "", ""),
    ("a man and a woman and a child", "", ""),
    ("a <unk> dog <unk-0> runs", "<unk> <unk-0>", "unknown"),
    ("two men sit on a", "a", "cut"),
    ("two men sit on a .", "a", "cut"),
    ("The cut of the coat is THE", "THE", "cut"),
    ("a boy climbs on", "", ""),
    ("a dog to play with .", "", ""),
    ("working from side to side to loosen them", "", ""),
    ("see the the dog", "the", "repeat"),
    ("", "", ""),
    (". .", "", ""),
]


@pytest.mark.parametrize(("text", "marked", "kind"), FAULTY)
def test_words_with_a_fault_are_found_and_no_others(text, marked, kind):
    words = find_faults(text)
    assert " ".join(word.text for word in words) == text
    assert " ".join(word.text for word in words if word.fault) == marked
    assert {word.fault for word in words} - {""} == ({kind} if kind else set())


def test_the_second_phrase_is_marked_not_the_first():
    words = find_faults("a red shirt and a red shirt and jeans")
    assert [i for i, word in enumerate(words) if word.fault] == [4, 5, 6]


def test_texts_are_counted_once_for_each_kind():
    texts = ["<unk> and <unk> a a the", "a dog", "a cat and"]
    counts = count_faults(map(find_faults, texts))
    assert counts == {"repeat": 1, "unknown": 1, "cut": 2}
    assert list(counts) == list(FAULTS)
