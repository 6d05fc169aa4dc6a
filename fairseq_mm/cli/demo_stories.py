"""The demo's second half: stories of five images, drawn, learned by GLAC, told and checked."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairseq_mm.demo.step_runner import StepRunner
    from fairseq_mm.demo.story_collection import SentenceVerdict


class StorySizes(NamedTuple):
    """How much is drawn and learned."""

    train: int = 2500
    valid: int = 50
    test: int = 100
    epochs: int = 11


SIZES = StorySizes()
BATCH = 16
STEPS = 7
FRESH = "fresh-0001"


class StoryResults(NamedTuple):
    """Verdicts and what was written.

    Attributes:
        verdicts: on the sentences of the test stories.
        fresh: on those of the fresh story.
        sentences: of the fresh story, as told.
        figures: scores of the test stories.
        page: the fresh story with its images.
    """

    verdicts: "list[SentenceVerdict]"
    fresh: "list[SentenceVerdict]"
    sentences: list[str]
    figures: Path
    page: Path


def run_story_steps(
    runner: "StepRunner", folder: Path, *, weights: Path, package: Path, seed: int
) -> StoryResults:
    """Draws stories, trains a storyteller on them, tells the test stories and a fresh one.

    Args:
        runner: of the demo's steps; these are ``STEPS``.
        folder: of the results; made if it does not exist.
        weights: the network that sees, whose finer map the features are.
        package: the user-dir.
        seed: of everything.
    """
    from fairseq_mm.demo.story_collection import check_stories, draw_stories, image_names

    data, checkpoints, fresh = folder / "data", folder / "checkpoints", folder / "fresh"
    generated, figures = folder / "generate-test.txt", folder / "scores.json"
    told, page = folder / "told.jsonl", folder / "page.html"
    for_fairseq = (data, "--user-dir", package, "--task visual_storytelling --cpu")
    num_updates = SIZES.epochs * -(-SIZES.train // BATCH)

    def draw_all() -> None:
        fresh.mkdir(parents=True, exist_ok=True)
        draw_stories(fresh, {"fresh": 1}, seed=seed)
        splits = {split: getattr(SIZES, split) for split in ("train", "valid", "test")}
        draw_stories(folder, splits, seed=seed)

    runner.call("Draw stories", draw_all)
    runner.command(
        "Prepare stories",
        *("fairseq-mm prepare stories", folder / "stories.jsonl", "--output", data, "--overwrite"),
    )
    runner.command(
        "Extract grids of features",
        *("fairseq-mm extract", folder / "images", "--model resnet18 --weights", weights),
        "--layer layer3 --grid --resize-size 64 --size 64 --batch-size 64 --device cpu --overwrite",
        *("--output", data / "features.h5"),
    )
    runner.command(
        "Train the storyteller",
        *("fairseq-train", *for_fairseq, "--arch glac_non_local --picture-dim 256"),
        "--encoder-hidden-dim 128 --glocal-dim 256 --embedding-dim 64 --hidden-dim 384",
        "--decoder-layers 1 --encoder-dropout 0 --dropout 0.1 --embedding-dropout 0",
        "--criterion cross_entropy --optimizer adam --lr 2.5e-3",
        f"--lr-scheduler polynomial_decay --warmup-updates 50 --total-num-update {num_updates}",
        f"--clip-norm 5 --batch-size {BATCH} --max-epoch {SIZES.epochs} --seed {seed}",
        *("--no-epoch-checkpoints --log-format simple --save-dir", checkpoints),
        shown=_validation,
    )
    runner.command(
        "Tell the test stories",
        *("fairseq-generate", *for_fairseq, f"--gen-subset test --beam 3 --batch-size {BATCH}"),
        *("--path", checkpoints / "checkpoint_best.pt"),
        output=generated,
    )
    runner.command(
        "Score the stories",
        *("fairseq-mm score", generated, "--data", data, "--split test --preset vist"),
        *("--metrics bleu,rouge_l,cider,sentences --json", figures),
        shown=lambda line: "",  # the figures are shown at the end
    )
    images = [fresh / "images" / name for name in image_names(FRESH)]
    runner.command(
        "Tell the story of five fresh images",
        *("fairseq-mm tell", *images, "--checkpoint", checkpoints, "--weights", weights),
        *("--html", page, "--jsonl"),
        output=told,
    )
    sentences = _told_story(told)
    return StoryResults(
        verdicts=check_stories(folder, _told_stories(data, generated)),
        fresh=check_stories(fresh, {FRESH: sentences}),
        sentences=sentences,
        figures=figures,
        page=page,
    )


def _validation(line: str) -> str:
    """Of fairseq-train's output the lines that end a validation, in short."""
    match = re.search(r"epoch 0*(\d+) \| valid on 'valid' subset \|.* ppl (\S+)", line)
    return f"epoch {match[1]} of {SIZES.epochs}: ppl {match[2]}" if match else ""


def _told_stories(data: Path, generated: Path) -> dict[str, list[str]]:
    """Story -> its told sentences."""
    from fairseq_mm.data.references import read_references
    from fairseq_mm.data.visual_ids import read_visual_ids
    from fairseq_mm.data.visual_story_text import split_sentences
    from fairseq_mm.demo.story_collection import story_of
    from fairseq_mm.metrics.hypotheses import read_hypotheses

    texts = read_hypotheses(
        str(generated),
        item_ids=list(read_references(str(data / "test.references.jsonl"))),
        visual_ids=read_visual_ids(str(data / "test.visual_ids")),
    ).texts
    return {story_of(key.split("\t")): split_sentences(text) for key, text in texts.items()}


def _told_story(output: Path) -> list[str]:
    """Sentences of ``fairseq-mm tell --jsonl``'s only story; other lines may stand around it."""
    from fairseq_mm.data.visual_story_text import split_sentences

    lines = output.read_text(encoding="utf-8").splitlines()
    (entry,) = (json.loads(line) for line in lines if line.startswith("{"))
    return split_sentences(entry["hypothesis"])
