"""Raw text -> words as WritingPrompts has them -> text that people read."""

import pytest

from fairseq_mm.data.story_text import detokenize_story, tokenize_story_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[WP] You can't win.", "[ WP ] You ca n't win ."),
        ('He said "Hi there." Then he left.', "He said `` Hi there . '' Then he left ."),
        ("It's the dogs' bone; I'd've kept it!?", "It 's the dogs ' bone ; I 'd 've kept it ! ?"),
        ("'I shouldn't've,' he said.", "'I should n't 've , ' he said ."),
        ("I cannot. We're gonna wait...", "I can not . We 're gon na wait ..."),
        ("“Don\u2019t,” she said.", "“ Don \u2019 t , ” she said ."),
        ("Mr. J. Smith of the U.S. Army left.", "Mr. J. Smith of the U.S. Army left ."),
        ("Socks, etc. are here, etc. New ones.", "Socks , etc. are here , etc . New ones ."),
        ("At 10:30 it cost $1,000.50 (50%).", "At 10:30 it cost $ 1,000.50 ( 50 % ) ."),
        ("At 8. and then.", "At 8 . and then ."),
        ("Wait--what, me...?", "Wait -- what , me ... ?"),
        ("one\r\n two \n\nthree\u2028four\n", "one <newline> two <newline> <newline> three "
         "<newline> four"),
        ("End.\n“Next.”", "End . <newline> “ Next . ”"),
        ("see www.a.com/b, Life.EXE", "see www.a.com/b , Life.EXE"),
        ("a <s> b </s>", "a < s > b < /s >"),
        ("naïve 日本語", "naïve 日本語"),
        ("so —don't stop.", "so —do n't stop ."),
    ],
)  # fmt: skip
def test_text_is_split_as_the_release_is(text, words):
    assert tokenize_story_text(text) == words.split()
    assert tokenize_story_text(words) == words.split()  # a second time changes nothing


@pytest.mark.parametrize("text", ["", "  \n ", "\u2028"])
def test_text_without_words_gives_none(text):
    assert tokenize_story_text(text) == []
    assert detokenize_story([]) == ""


@pytest.mark.parametrize(
    "text",
    [
        'He said "Hi there." Then I can\'t go... (no), wait!? Yes; 10:30, $5 (50%).',
        "“You,” she said—“don\u2019t.” It\u2019s \u2018so\u2019 [OT].",
        "\"It's 'fine',\" he said.\n\n\"I should've gone, gonna wait; cannot.\"",
        "It's the dogs' rock 'n' roll o'clock.",
        "5 <3 @me #1 {x}",
    ],
)
def test_text_survives_the_way_there_and_back(text):
    assert detokenize_story(tokenize_story_text(text)) == text


def test_words_become_text():
    text = "[ WP ] `` I ca n't , '' he said . <newline> Gon na do n't ."
    words = text.split()
    assert detokenize_story(words) == "[WP] \"I can't,\" he said.\nGonna don't."


def test_words_with_marks_attached_become_text_too():
    text = "`` Is it.'' <newline> I do n't, she could n't. They 'd?''"
    words = text.split()
    assert detokenize_story(words) == "\"Is it.\"\nI don't, she couldn't. They'd?\""


def test_an_apostrophe_joins_a_clitic_only():
    assert detokenize_story(["doesn", "\u2019", "t"]) == "doesn\u2019t"
    assert detokenize_story(["\u2018", "so", "\u2019", "said", "he"]) == "\u2018so\u2019 said he"


def test_long_text_takes_linear_time():
    assert len(tokenize_story_text("a." + "'" * 10_000 + "b")) < 10
    text = 'He said "it\'s so." ' * 20_000
    assert len(tokenize_story_text(text)) == 8 * 20_000


def test_real_prompts_survive_the_way_back_and_there(shared_data):
    folder = shared_data("writingprompts")
    lines = [
        line.split()
        for split in ("train", "valid")
        for line in (folder / f"{split}.wp_source").read_text(encoding="utf-8").splitlines()
    ]
    same = [tokenize_story_text(detokenize_story(words)) == words for words in lines]
    assert len(same) == 500
    assert sum(same) >= 497  # `. . .` for an ellipsis, and two inconsistent full stops
