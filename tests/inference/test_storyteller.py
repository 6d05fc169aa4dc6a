"""Prompts are read, made up and told; what people read."""

import pytest
from fairseq_mm.inference.storyteller import Prompt, Story, Storyteller, make_up_prompts
from fairseq_mm.inference.text_models import load_text_models
from fairseq_mm.inference.text_writer import Telling, TextWriter
from toy_text_models import NUM_POSITIONS, SOURCE_WORDS, STORY_WORDS, save_text_model

from fairseq_mm.errors import UserError

SHORT = {"min_words": 4, "max_words": 9, "topk": 6}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "story": save_text_model(folder / "story.pt"),
        "prompts": save_text_model(folder / "prompts.pt", "gcnn_lm_tiny", words=SOURCE_WORDS),
        "stories": save_text_model(folder / "stories.pt", "gcnn_lm_tiny", words=STORY_WORDS),
    }


@pytest.fixture
def load(files):
    return lambda name: load_text_models(files[name], device="cpu")


@pytest.fixture
def teller(load):
    return Storyteller(load("story"), load("prompts"))


def test_prompts_are_read_as_people_write_them(teller):
    prompt = teller.read_prompt("  [WP] You find a door.\n")
    assert prompt == Prompt(
        "[WP] You find a door.",
        ["[", "WP", "]", "You", "find", "a", "door", "."],
        [4, 5, 6, 7, 8, 9, 10, 15, 2],
        [],
    )
    assert teller.read_prompt("[ WP ] You find a door .").tokens == prompt.tokens


def test_unknown_words_are_kept_for_the_message(teller):
    prompt = teller.read_prompt("You don't find a <pad> door </s> <unk>")
    unk = 3
    assert prompt.tokens == [7, unk, unk, 8, 9, unk, unk, unk, 10, unk, unk, unk, unk, unk, unk, 2]
    assert prompt.unknown[:3] == ["do", "n't", "<"]
    spaced = teller.read_prompt("You <newline> find")  # is in no prompt of the training set
    assert spaced.tokens == [7, unk, 8, 2]


def test_special_symbols_in_a_prompt_are_unknown_words(teller, monkeypatch):
    monkeypatch.setattr("fairseq_mm.inference.storyteller.tokenize_story_text", str.split)
    prompt = teller.read_prompt("You <pad> </s> <s> <unk> find")
    assert prompt.tokens == [7, 3, 3, 3, 3, 8, 2]
    assert prompt.unknown == ["<pad>", "</s>", "<s>", "<unk>"]


def test_prompts_that_cannot_be_read_are_refused(teller, load):
    for text, message in (
        (" \n ", r"^the prompt is empty\.$"),
        (
            "zyzzy qqq",
            r"^prompt 'zyzzy qqq': none of its words is in the dictionary of .*story\.pt",
        ),
        (
            "door " * 41,
            r"^prompt 'door .*\.\.\.': has 41 words, but the model reads at most 40",
        ),
    ):
        with pytest.raises(UserError, match=message):
            teller.read_prompt(text)
    cut = teller.read_prompt("door " * 43, truncate=True)
    assert (len(cut.words), cut.num_cut, len(cut.tokens)) == (40, 3, NUM_POSITIONS - 2)
    assert len(teller.tell(["door " * 43], truncate=True, **SHORT)) == 1
    with pytest.raises(UserError, match=r"stories\.pt: is a language model, which takes no prompt"):
        Storyteller(load("stories")).read_prompt("a door")


def test_stories_follow_their_prompts(teller):
    prompts = ["You find a door.", "the old house", "[WP] in a house"]
    told = teller.tell(prompts, **SHORT)
    assert len(set(told)) == 3
    assert teller.tell(prompts, batch_size=1, **SHORT) == told
    assert teller.tell(prompts[:1], **SHORT) == told[:1]
    assert teller.tell(prompts, seed=2, **SHORT) != told
    assert teller.tell([], **SHORT) == []
    greedy = teller.tell(prompts, preset="greedy", max_words=8)
    assert len(set(greedy)) > 1
    with pytest.raises(UserError, match="`prompts` must be a list of texts, but is one text"):
        teller.tell("You find a door.")
    with pytest.raises(UserError, match=r"`wrods` is no option of telling"):
        teller.tell(prompts, wrods=3)


def test_made_up_prompts_are_told_as_if_they_were_given(teller):
    made_up = teller.make_up_prompts(range(5), seed=3)
    assert len({prompt.text for prompt in made_up}) > 1
    assert all(prompt.tokens[-1] == 2 and prompt.score < 0 for prompt in made_up)
    assert all(set(prompt.words) <= set(SOURCE_WORDS) for prompt in made_up)
    told = teller.tell(n=5, seed=3, **SHORT)
    assert told == teller.tell([" ".join(prompt.words) for prompt in made_up], seed=3, **SHORT)
    assert teller.make_up_prompts([2], seed=3) == [
        made_up[2]._replace(score=pytest.approx(made_up[2].score, abs=1e-5))
    ]


def test_made_up_prompts_end_where_the_story_model_has_no_more_positions(load):
    writer = TextWriter(load("prompts"))
    prompts = make_up_prompts(writer, range(30), most_words=3, topk=0, temperature=2.0)
    assert {len(prompt.words) for prompt in prompts} == {1, 2, 3}
    longer = make_up_prompts(writer, range(30), topk=0, temperature=2.0)
    assert max(len(prompt.words) for prompt in longer) > 3


def test_a_language_model_of_stories_needs_no_prompt(load):
    teller = Storyteller(load("stories"))
    told = teller.tell(n=4, **SHORT)
    assert len(set(told)) > 1
    assert teller.tell(n=2, batch_size=1, **SHORT) == told[:2]


def test_a_prompt_model_must_fit(load, files, tmp_path):
    for models, prompt_models, message in (
        ("story", "story", r"story\.pt: --arch conv_story_tiny reads a text, but a prompt model"),
        ("stories", "prompts", r"stories\.pt: is a language model, which needs no prompt model"),
        (
            "story",
            "stories",
            r"stories\.pt: has a dictionary of 17 words \(fingerprint \w{12}\), but .*story\.pt "
            r"reads prompts with one of 12 \(fingerprint \w{12}\): train .*--srcdict",
        ),
    ):
        with pytest.raises(UserError, match=message):
            Storyteller(load(models), load(prompt_models))
    with pytest.raises(UserError, match=r"story\.pt: tells stories of prompts: give some, or a la"):
        Storyteller(load("story")).tell(n=3)


def test_a_story_reads_as_people_write():
    words = [
        "<newline>",
        "``",
        "Who",
        "?",
        "''",
        "it",
        "said",
        ".",
        "<newline>",
        "<newline>",
        "I",
        "did",
        "n't",
        ".",
        "<newline>",
    ]
    assert Story(0, None, words, -1.0).text == '"Who?" it said.\n\nI didn\'t.'


def test_numbers_of_stories_need_not_begin_with_zero(teller):
    prompt = teller.read_prompt("the old house")
    telling = Telling(**SHORT, seed=4)
    several = list(teller.stories([0, 1, 2], [prompt] * 3, telling))
    (alone,) = teller.stories([2], [prompt], telling)
    assert [story.item for story in several] == [0, 1, 2]
    assert alone.words == several[2].words
    assert len({tuple(story.words) for story in several}) > 1
