"""Prompts and their stories: every fact in its place, and no prompt in two splits."""

import itertools
import json
import random

import pytest
from drawings import tales
from drawings.tale_collection import check_tales, write_tales
from drawings.tales import GUARDS, Quest, compose_quest, describes_prompt, write_tale

QUEST = Quest("proud", "fox", "orange", "drum", "cave")
STORY = (
    "In the cave there was a proud fox. The fox dreamt of an orange drum. But the drum belonged to "
    "a wolf. The wolf laughed at a joke of the proud fox. Then the fox left the cave with the "
    "orange drum."
)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_written_story_is_right_in_all_wordings():
    rng = random.Random(3)
    wordings = set()
    for _ in range(200):
        quest = compose_quest(rng)
        sentences = write_tale(quest, rng)
        assert describes_prompt(" ".join(sentences), quest)
        wordings.update(sentence.split()[0] for sentence in sentences)
    assert wordings == {"Once", "In", "The", "But", "Then", "Since"}


def test_a_story_that_changes_or_forgets_a_word_is_wrong():
    assert describes_prompt(STORY, QUEST)
    assert describes_prompt(STORY.lower().replace(".", " ."), QUEST)
    words = STORY.split()
    facts = (tales.TRAITS, tales.HEROES, tales.COLOURS, tales.TREASURES, tales.PLACES, GUARDS)
    for place, word in enumerate(words):
        assert not describes_prompt(" ".join([*words[:place], *words[place + 1 :]]), QUEST)
        bare = word.strip(".")
        for other in itertools.chain(*(names for names in facts if bare in names)):
            changed = " ".join([*words[:place], word.replace(bare, other), *words[place + 1 :]])
            assert describes_prompt(changed, QUEST) == (other == bare)


@pytest.mark.parametrize("fact", Quest._fields)
def test_a_story_is_wrong_for_a_prompt_with_another_fact(fact):
    names = {"trait": "young", "hero": "queen", "colour": "red", "treasure": "key"}
    assert not describes_prompt(STORY, QUEST._replace(**{fact: names.get(fact, "forest")}))


def test_no_prompt_of_the_test_split_is_in_another_split(tmp_path, monkeypatch):
    monkeypatch.setattr(tales, "TRAITS", tales.TRAITS[:2])
    monkeypatch.setattr(tales, "HEROES", tales.HEROES[:2])
    monkeypatch.setattr(tales, "COLOURS", tales.COLOURS[:2])
    monkeypatch.setattr(tales, "TREASURES", tales.TREASURES[:2])
    write_tales(tmp_path, {"train": 300, "valid": 20, "test": 30}, seed=1)
    records = read(tmp_path / "tales.jsonl")
    prompts = {split: set() for split in ("train", "valid", "test")}
    for record in records:
        prompts[record["split"]].add(record["prompt"])
    assert not prompts["test"] & (prompts["train"] | prompts["valid"])
    test = [record for record in records if record["split"] == "test"]
    lines = (tmp_path / "prompts.txt").read_text().splitlines()
    assert lines == [record["prompt"] for record in test]
    stories = [record["story"] for record in test]
    assert [tuple(v)[:2] for v in check_tales(tmp_path, stories)] == [(p, True) for p in lines]
    stories[1] = stories[0]
    wrong = [number for number, v in enumerate(check_tales(tmp_path, stories)) if not v.right]
    assert wrong == [1]
    with pytest.raises(ValueError, match="zip"):
        check_tales(tmp_path, stories[1:])
