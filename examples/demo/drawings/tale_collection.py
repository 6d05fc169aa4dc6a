"""Prompts with stories.

    tales.jsonl    prompt, story, split
    prompts.txt    test prompts, one a line
    quests.jsonl   facts of each test prompt

No training prompt has all facts of a test prompt.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from drawings.records import Verdict, numbered, read_split, write_jsonl
from drawings.tales import Quest, compose_quest, describes_prompt, write_tale
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.output_file import write_file

_QUESTS = "quests.jsonl"


def write_tales(folder: Path, sizes: Mapping[str, int], *, seed: int) -> None:
    """Write prompts with stories; ``tales.jsonl`` is written last.

    Args:
        folder: Folder, made if it does not exist.
        sizes: Number of prompts of each split.
        seed: Seed of the texts.
    """
    folder.mkdir(exist_ok=True)
    records, held_out = [], []
    # the test prompts first: no other prompt may be the same
    for split, number in sorted(numbered(sizes), key=lambda item: item[0] != "test"):
        rng = random.Random(f"{seed} tale {split} {number}")
        quest = compose_quest(rng)
        while quest in held_out:
            quest = compose_quest(rng)
        if split == "test":
            held_out.append(quest)
        story = " ".join(write_tale(quest, rng))
        records.append({"prompt": quest.prompt, "story": story, "split": split})
    write_jsonl(folder / _QUESTS, [quest._asdict() for quest in held_out])
    write_file(folder / "prompts.txt", "".join(f"{quest.prompt}\n" for quest in held_out))
    write_jsonl(folder / "tales.jsonl", records)


def check_tales(folder: Path, stories: Sequence[str]) -> list[Verdict]:
    """Check whether stories tell what their prompts say.

    Args:
        folder: Folder that :func:`write_tales` filled.
        stories: Generated story of each test prompt.
    """
    quests = [Quest(**record) for _, record in read_objects(folder / _QUESTS)]
    return [
        Verdict(quest.prompt, describes_prompt(story, quest))
        for quest, story in zip(quests, stories, strict=True)
    ]


def most_common_tale(folder: Path) -> str:
    """Return the story of the most common first to fifth sentence of the training stories."""
    stories = [record["story"].split(".") for record in read_split(folder / "tales.jsonl", "train")]
    return ". ".join(Counter(texts).most_common(1)[0][0].strip() for texts in zip(*stories))
