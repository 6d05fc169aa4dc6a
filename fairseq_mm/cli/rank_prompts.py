"""How often a story is most likely under its own prompt (Fan et al. 2018, section 5.5, Figure 6).

fairseq-mm rank-prompts DATA --checkpoint checkpoints/checkpoint_best.pt --split valid
fairseq-mm rank-prompts DATA --checkpoint a.pt:b.pt --split test --stories 1000 --draws 20 --seed 1

A story competes under its own prompt against 9 others, drawn from the different prompts of the
chosen stories; --draws such draws. The interval is a bootstrap over stories and draws. A pair of
story and prompt is computed once, however often it is drawn. --all-pairs computes all of them, and
prints the accuracy that all possible draws have on average as well.

The output folder gets ranking.json (figures, card), stories.jsonl (one story a line) and
likelihoods.jsonl (one pair a line). An interrupted run continues when started again, and further
draws, seeds or stories are added to what is there.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli.likelihood_options import (
    add_likelihood_arguments,
    build_likelihood,
    card_of,
    check_seed,
    chosen_lines,
    encode_prompts,
    positive,
    words_to_score,
)
from fairseq_mm.cli.rank_stories import (
    Key,
    add_ranking_arguments,
    output_of,
    pairs_of,
    score_pairs,
    write_ranking,
)
from fairseq_mm.cli.run_set_up import only_writer, register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.data.story_split import StorySplit
    from fairseq_mm.inference.loading import LoadedModels
    from fairseq_mm.metrics.prompt_ranking import PromptColumns, PromptRanking
    from fairseq_mm.retrieval.pair_scores import PairScores
    from fairseq_mm.retrieval.story_likelihood import StoryLikelihood


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="data folder of prompts and stories")
    add_likelihood_arguments(parser, images=False)
    parser.add_argument(
        "--distractors",
        type=positive,
        default=9,
        metavar="N",
        help="Number of other prompts in a draw (default: 9).",
    )
    add_ranking_arguments(parser, "prompts")


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.data.story_split import read_story_split
    from fairseq_mm.metrics import prompt_ranking
    from fairseq_mm.retrieval.pair_scores import PairScores

    started = time.time()
    check_seed(args.seed)
    split = read_story_split(args.data, args.split)
    lines = chosen_lines(len(split.stories), args.stories, args.seed)
    columns = prompt_ranking.prompt_columns(" ".join(split.prompts[line]) for line in lines)
    if len(columns.texts) <= args.distractors:
        raise UserError(
            f"{args.data}: {len(lines)} stories of {args.split} have {len(columns.texts)} "
            f"different prompts, but a story needs its own and {args.distractors} others: give "
            "more --stories, or fewer --distractors."
        )
    distractors = prompt_ranking.draw_distractors(
        columns.true,
        len(columns.texts),
        draws=args.draws,
        distractors=args.distractors,
        seed=args.seed,
    )
    register_quietly()
    from fairseq_mm.inference.loading import load_models

    models = load_models(args.checkpoint, data=args.data, device=args.device)
    if models.are_language_models:
        raise UserError(f"{models.files[0]}: is a language model, which reads no prompt.")
    likelihood = build_likelihood(models, args)
    num_words = words_to_score(likelihood, args.words)
    identity = _identity(models, args, num_words)
    output = args.output or output_of(models.files, "prompts", args.split)
    with only_writer(output):
        file = PairScores(output, identity)
        pairs = pairs_of(columns, distractors, every=args.all_pairs)
        scores = _score(file, pairs, likelihood, split, lines, columns, num_words, args)
        result = prompt_ranking.rank_prompts(scores, columns.true, distractors, seed=args.seed)
        report = _report_of(result, args, identity, len(split.stories), len(columns.texts))
        _print(report)
        _write(report, result, scores, distractors, split, lines, columns, output, models, args)
    seconds = time.time() - started
    print(
        f"{output}: wrote ranking.json, stories.jsonl, likelihoods.jsonl "
        f"({len(file.scores):,} pairs) in {seconds:.0f} s",
        file=sys.stderr,
    )


def _identity(models: "LoadedModels", args: argparse.Namespace, num_words: int) -> dict[str, Any]:
    """What decides the likelihood of a pair of lines."""
    from fairseq_mm.data.story_split import side_path
    from fairseq_mm.metrics.result_card import file_hash

    def short_hash(path: Any) -> str:
        return str(file_hash(str(path)).get("sha256"))[:12]

    return {
        "checkpoints": [short_hash(file) for file in models.files],
        "split": args.split,
        "prompts": short_hash(side_path(args.data, args.split, "wp_source")),
        "stories": short_hash(side_path(args.data, args.split, "wp_target")),
        "words": num_words,
        "precision": args.precision,
    }


def _score(
    file: "PairScores",
    pairs: "np.ndarray",
    likelihood: "StoryLikelihood",
    split: "StorySplit",
    lines: list[int],
    columns: "PromptColumns",
    num_words: int,
    args: argparse.Namespace,
) -> "np.ndarray":
    """``[stories, prompts]`` log-likelihoods; computes those that the file does not have."""
    from fairseq_mm.data.story_split import side_path

    # a prompt is named by the first line of the split that has it
    first_line: dict[str, int] = {}
    for line, words in enumerate(split.prompts):
        first_line.setdefault(" ".join(words), line)
    prompt_lines = [first_line[text] for text in columns.texts]
    prompts = encode_prompts(
        likelihood,
        {line: split.prompts[line] for line in prompt_lines},
        side_path(args.data, args.split, "wp_source"),
    )
    # prompts that differ in unknown words alone are one to the model: computed once, their scores
    # are equal to the last bit
    representative: dict[Any, int] = {}
    for line in sorted(prompts):
        representative.setdefault(tuple(prompts[line]), line)
    keys = [
        (lines[story], representative[tuple(prompts[prompt_lines[column]])])
        for story, column in pairs.tolist()
    ]

    def log_probs_of(missing: list[Key]) -> Iterator[Any]:
        stories = {
            line: likelihood.encode_story(split.stories[line], num_words=num_words)
            for line in {story for story, _ in missing}
        }
        todo = [(prompts[prompt], stories[story]) for story, prompt in missing]
        for batch in likelihood.batches(todo):
            yield batch, likelihood([todo[i] for i in batch])

    return score_pairs(file, pairs, keys, columns, log_probs_of)


def _report_of(
    result: "PromptRanking",
    args: argparse.Namespace,
    identity: dict[str, Any],
    available: int,
    num_prompts: int,
) -> dict[str, Any]:
    from fairseq_mm.metrics.signature import signature

    return {
        "accuracy": result.accuracy,
        "interval": result.interval,
        "per_draw": result.per_draw.tolist(),
        "all_draws": result.all_draws,
        "all_draws_interval": result.all_draws_interval,
        "chance": result.chance,
        "ties": result.ties,
        "stories": result.stories,
        "stories_available": available,
        "prompts": num_prompts,
        "draws": args.draws,
        "seed": args.seed,
        "signature": signature(
            "prompt_ranking",
            split=args.split,
            stories=result.stories,
            distractors=args.distractors,
            draws=args.draws,
            seed=args.seed,
            words=identity["words"],
            models=len(identity["checkpoints"]),
            prec=args.precision,
            ties="shared",
        ),
        "scores_of": identity,
    }


def _percent(value: float, interval: Sequence[float]) -> str:
    low, high = (100 * bound for bound in interval)
    return f"{100 * value:5.1f} %  95% interval [{low:.1f}, {high:.1f}]"


def _print(report: dict[str, Any]) -> None:
    print(
        f"{report['stories']:,} of {report['stories_available']:,} stories, "
        f"{report['prompts']:,} different prompts, {report['draws']} draws, seed {report['seed']}"
    )
    print(f"accuracy           {_percent(report['accuracy'], report['interval'])}")
    if report["all_draws"] is not None:
        print("over all draws     " + _percent(report["all_draws"], report["all_draws_interval"]))
    print(f"chance             {100 * report['chance']:5.1f} %")
    print(f"ties               {100 * report['ties']:5.1f} %")
    print(report["signature"])


def _write(
    report: dict[str, Any],
    result: "PromptRanking",
    scores: "np.ndarray",
    distractors: "np.ndarray",
    split: "StorySplit",
    lines: list[int],
    columns: "PromptColumns",
    output: str,
    models: "LoadedModels",
    args: argparse.Namespace,
) -> None:
    import numpy as np

    from fairseq_mm.data.story_split import side_path
    from fairseq_mm.metrics.prompt_ranking import draw_credits

    files = {f"checkpoint_{i}": file for i, file in enumerate(models.files)}
    files["prompts"] = str(side_path(args.data, args.split, "wp_source"))
    files["stories"] = str(side_path(args.data, args.split, "wp_target"))
    options = ("split", "stories", "draws", "distractors", "seed", "words", "all_pairs")
    card = card_of(args, files, (*options, "precision"), models.device)
    credits = draw_credits(scores, columns.true, distractors).mean(0)
    entries = []
    for number, line in enumerate(lines):
        row = scores[number]
        own = row[columns.true[number]]
        others = np.delete(row, columns.true[number])
        others = others[~np.isnan(others)]
        entries.append(
            {
                "story": line,
                "prompt": " ".join(split.prompts[line]),
                "log_likelihood": own,
                "rank": 1 + int((others > own).sum()),
                "prompts": 1 + len(others),
                "best_other": float(others.max()),
                "accuracy": float(credits[number]),
            }
        )
    write_ranking(output, {**report, "card": card}, entries)
