"""A small data folder of prompts and stories, and models as fairseq-train saves them."""

from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary, indexed_dataset
from toy_data import run_fairseq

PROMPT_WORDS = "[ WP ] You find a door in the old house . Where is it".split()  # noqa: SIM905
STORY_TEXT = "I opened the door and saw a dark room . <newline> `` Who ? '' it said softly"
STORY_WORDS = STORY_TEXT.split()
FUSION = "--encoder-layers [(8,3)] --decoder-layers [(12,4)]*2 --encoder-embed-dim 16 " + (
    "--decoder-embed-dim 16 --decoder-out-embed-dim 12"
)


def dictionary_of(words: list[str]) -> Dictionary:
    """The words but the last two, which are unknown to the models."""
    dictionary = Dictionary()
    for word in list(dict.fromkeys(words))[:-2]:
        dictionary.add_symbol(word)
    return dictionary


def make_story_folder(folder: Path, *, train: int = 8, valid: int = 13) -> Path:
    """As ``fairseq-mm prepare prompts`` makes it; the prompts of valid are all different."""
    generator = np.random.default_rng(4)
    (folder / "text").mkdir(parents=True)
    sides = (("wp_source", PROMPT_WORDS, (3, 9)), ("wp_target", STORY_WORDS, (5, 31)))
    for side, words, (low, high) in sides:
        dictionary = dictionary_of(words)
        dictionary.save(str(folder / f"dict.{side}.txt"))
        language_model = folder / {"wp_source": "prompts", "wp_target": "stories"}[side]
        language_model.mkdir()
        dictionary.save(str(language_model / "dict.txt"))
        for split, count in (("train", train), ("valid", valid)):
            lines = [
                " ".join(generator.choice(words, size=int(generator.integers(low, high))))
                for _ in range(count)
            ]
            assert len(set(lines)) == count
            (folder / "text" / f"{split}.{side}").write_text("".join(f"{x}\n" for x in lines))
            for path in (folder / f"{split}.wp_source-wp_target.{side}", language_model / split):
                builder = indexed_dataset.make_builder(
                    f"{path}.bin", "mmap", vocab_size=len(dictionary)
                )
                for line in lines:
                    builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
                builder.finalize(f"{path}.idx")
    return folder


def train_stories(data: Path, folder: Path, arch: str, options: str = "") -> Path:
    """Trains for twelve epochs; returns the checkpoint."""
    if "lm" in arch:
        task = "--task language_modeling --sample-break-mode eos --tokens-per-sample 64"
    else:
        task = (
            "--task translation --source-lang wp_source --target-lang wp_target "
            "--max-source-positions 64 --max-target-positions 64"
        )
    command = (
        f"{data} {task} --arch {arch} --save-dir {folder} --max-epoch 12 --batch-size 8 "
        "--optimizer adam --lr 0.02 --cpu --num-workers 0 --no-epoch-checkpoints --seed 3 "
        f"--log-format none --criterion cross_entropy --disable-validation {options}"
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_fairseq(monkeypatch, "train", *command.split())
    return folder / "checkpoint_last.pt"
