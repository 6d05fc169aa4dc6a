"""How often a story is likeliest under its own images, among those of other albums.

fairseq-mm rank-albums DATA --checkpoint checkpoints/checkpoint_best.pt --split valid
fairseq-mm rank-albums DATA --checkpoint a.pt:b.pt --candidates 10 --draws 20 --seed 1

Whether a storyteller follows its images: each story competes under its own five images against
those of 9 other albums, drawn from the albums of the chosen stories; --draws such draws. Of another
album it is always the first photo sequence. Ties count against the model. The interval is a
bootstrap over stories. A pair of story and images is computed once, however often it is drawn;
--all-pairs computes all of them, and prints what all possible draws have on average as well.

The output folder gets ranking.json (figures, card), stories.jsonl (one story a line) and
likelihoods.jsonl (one pair a line). An interrupted run continues when started again, and further
draws, seeds or stories are added to what is there.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli.likelihood_options import (
    add_likelihood_arguments,
    card_of,
    check_seed,
    chosen_lines,
    open_visual_stories,
    positive,
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

    from fairseq_mm.cli.likelihood_options import VisualStories
    from fairseq_mm.metrics.album_ranking import AlbumRanking
    from fairseq_mm.metrics.prompt_ranking import PromptColumns
    from fairseq_mm.retrieval.pair_scores import PairScores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="data folder of visual stories")
    add_likelihood_arguments(parser, texts=False)
    parser.add_argument(
        "--candidates",
        type=positive,
        default=10,
        metavar="N",
        help="Number of albums that a story is ranked among, its own included (default: 10).",
    )
    add_ranking_arguments(parser, "albums")


def run(args: argparse.Namespace) -> None:
    started = time.time()
    check_seed(args.seed)
    if args.candidates < 2:
        raise UserError("--candidates: must be 2 or more, the story's own album included.")
    register_quietly()
    from fairseq_mm.inference.loading import load_states
    from fairseq_mm.metrics.album_ranking import rank_albums
    from fairseq_mm.metrics.prompt_ranking import draw_distractors, prompt_columns
    from fairseq_mm.retrieval.pair_scores import PairScores

    to_score = open_visual_stories(args, load_states(args.checkpoint))
    split = to_score.split
    lines = chosen_lines(len(split.stories), args.stories, args.seed)
    columns = prompt_columns(split.albums[line] for line in lines)
    if len(columns.texts) < args.candidates:
        raise UserError(
            f"{args.data}: {len(lines)} stories of {args.split} have {len(columns.texts)} "
            f"different albums, but --candidates {args.candidates} needs as many: give more "
            "--stories, or fewer --candidates."
        )
    distractors = draw_distractors(
        columns.true,
        len(columns.texts),
        draws=args.draws,
        distractors=args.candidates - 1,
        seed=args.seed,
    )
    identity = _identity(to_score, args)
    output = args.output or output_of(to_score.files, "albums", args.split)
    with only_writer(output):
        file = PairScores(output, identity, condition="images")
        scores = _score(file, to_score, lines, columns, distractors, args)
        result = rank_albums(scores, columns.true, distractors, seed=args.seed)
        report = _report_of(result, args, identity, len(split.stories), len(columns.texts))
        _print(report)
        _write(report, scores, distractors, to_score, lines, columns, output, args)
    seconds = time.time() - started
    print(
        f"{output}: wrote ranking.json, stories.jsonl, likelihoods.jsonl "
        f"({len(file.scores):,} pairs) in {seconds:.0f} s",
        file=sys.stderr,
    )


def _identity(to_score: "VisualStories", args: argparse.Namespace) -> dict[str, Any]:
    """What decides the likelihood of a pair of lines."""
    from fairseq_mm.metrics.result_card import file_hash

    hashes: dict[str, list[str]] = {}
    for role, path in to_score.card_files(args.data, args.split).items():
        found = file_hash(path)
        digest = str(found.get("sha256", found.get("bytes")))[:12]
        hashes.setdefault(role.partition("_")[0], []).append(digest)
    return {**hashes, "split": args.split, "precision": args.precision}


def _score(
    file: "PairScores",
    to_score: "VisualStories",
    lines: list[int],
    columns: "PromptColumns",
    distractors: "np.ndarray",
    args: argparse.Namespace,
) -> "np.ndarray":
    """``[stories, albums]`` log-likelihoods; computes those that the file does not have."""
    split, likelihood = to_score.split, to_score.likelihood
    pairs = pairs_of(columns, distractors, every=args.all_pairs)
    # a photo sequence, and an album's first one, is named by the first line that has it
    first_line: dict[str, int] = {}
    album_line: dict[str, int] = {}
    for line, (sequence, album) in enumerate(zip(split.visual_ids, split.albums)):
        first_line.setdefault(sequence, line)
        album_line.setdefault(" ".join(album.split()), line)
    keys = []
    for story, column in pairs.tolist():
        line = lines[story]
        is_own = columns.true[story] == column
        keys.append(
            (
                line,
                first_line[split.visual_ids[line]] if is_own else album_line[columns.texts[column]],
            )
        )

    def log_probs_of(missing: list[Key]) -> Iterator[Any]:
        stories = {line: likelihood.encode_story(split.stories[line]) for line, _ in missing}
        yield from likelihood.batches(
            [(split.visual_ids[images], stories[story]) for story, images in missing]
        )

    return score_pairs(file, pairs, keys, columns, log_probs_of)


def _report_of(
    result: "AlbumRanking",
    args: argparse.Namespace,
    identity: dict[str, Any],
    available: int,
    num_albums: int,
) -> dict[str, Any]:
    from fairseq_mm.metrics.album_ranking import TIE
    from fairseq_mm.metrics.signature import signature

    return {
        "first": result.first._asdict(),
        "mean_rank": result.mean_rank._asdict(),
        "ties": result.ties,
        "stories": result.stories,
        "stories_available": available,
        "albums": num_albums,
        "candidates": args.candidates,
        "draws": args.draws,
        "seed": args.seed,
        "signature": signature(
            "album_ranking",
            split=args.split,
            stories=result.stories,
            albums=num_albums,
            candidates=args.candidates,
            draws=args.draws,
            seed=args.seed,
            models=len(identity["checkpoint"]),
            prec=args.precision,
            ties=f"against-the-model-within-{TIE:g}-nats",
        ),
        "scores_of": identity,
    }


def _print(report: dict[str, Any]) -> None:
    def shown(figure: dict[str, Any], scale: float, digits: int, unit: str) -> str:
        low, high = (scale * bound for bound in figure["interval"])
        text = f"{scale * figure['value']:6.{digits}f}{unit}  95% interval "
        text += f"[{low:.{digits}f}, {high:.{digits}f}]  "
        text += f"chance {scale * figure['chance']:.{digits}f}{unit}"
        if figure["all_draws"] is not None:
            text += f"  over all draws {scale * figure['all_draws']:.{digits}f}{unit}"
        return text

    print(
        f"{report['stories']:,} of {report['stories_available']:,} stories, "
        f"{report['albums']:,} albums, {report['candidates']} candidates, {report['draws']} draws, "
        f"seed {report['seed']}"
    )
    print(f"ranked first  {shown(report['first'], 100, 1, ' %')}")
    print(f"mean rank     {shown(report['mean_rank'], 1, 2, '')}")
    print(f"ties          {100 * report['ties']:6.1f} %")
    print(report["signature"])


def _write(
    report: dict[str, Any],
    scores: "np.ndarray",
    distractors: "np.ndarray",
    to_score: "VisualStories",
    lines: list[int],
    columns: "PromptColumns",
    output: str,
    args: argparse.Namespace,
) -> None:
    import numpy as np

    from fairseq_mm.metrics.album_ranking import candidate_ranks

    options = ("split", "stories", "candidates", "draws", "seed", "all_pairs", "precision")
    files = to_score.card_files(args.data, args.split)
    card = card_of(args, files, options, to_score.device)
    ranks = candidate_ranks(scores, columns.true, distractors)
    entries = []
    for number, line in enumerate(lines):
        own = columns.true[number]
        others = np.delete(scores[number], own)
        entries.append(
            {
                "story": line,
                "album": to_score.split.albums[line],
                "images": to_score.split.visual_ids[line].split("\t"),
                "log_likelihood": scores[number, own],
                "best_other": float(np.nanmax(others)),
                "ranks": ranks[:, number].tolist(),
            }
        )
    write_ranking(output, {**report, "card": card}, entries)
