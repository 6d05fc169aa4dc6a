"""What ``rank-prompts`` and ``rank-albums`` share: options, pairs, likelihoods, files."""

import argparse
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

from fairseq_mm.cli.likelihood_options import positive

if TYPE_CHECKING:
    import numpy as np

    from fairseq_mm.metrics.prompt_ranking import PromptColumns
    from fairseq_mm.retrieval.pair_scores import PairScores

# lines of a story and of its condition
Key = tuple[int, int]


def add_ranking_arguments(parser: argparse.ArgumentParser, condition: str) -> None:
    """
    Args:
        parser: gets the options.
        condition: what stories are ranked under, in the plural: ``prompts`` or ``albums``.
    """
    parser.add_argument(
        "--stories",
        type=positive,
        default=1000,
        metavar="N",
        help="Number of stories drawn from the split; all if it has fewer (default: 1000).",
    )
    parser.add_argument(
        "--draws",
        type=positive,
        default=20,
        metavar="N",
        help=f"Number of draws of other {condition} (default: 20).",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help=f"Seed of the drawn stories and {condition} and of the bootstrap (default: 1).",
    )
    parser.add_argument(
        "--all-pairs",
        action="store_true",
        help=f"Compute the likelihood of each story under each of the {condition}.",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help=f"Folder to write (default: CHECKPOINT.rank-{condition}-SPLIT).",
    )


def output_of(files: Sequence[str], condition: str, split: str) -> str:
    """The folder that is written by default."""
    others = f"+{len(files) - 1}" if len(files) > 1 else ""
    return f"{os.path.splitext(files[0])[0]}{others}.rank-{condition}-{split}"


def pairs_of(columns: "PromptColumns", distractors: "np.ndarray", *, every: bool) -> "np.ndarray":
    """``[N, 2]`` story and column of the pairs to compute; of every pair, or of those drawn."""
    import numpy as np

    from fairseq_mm.metrics.prompt_ranking import needed_pairs

    if not every:
        return needed_pairs(columns.true, distractors)
    return np.indices((len(columns.true), len(columns.texts))).reshape(2, -1).T


def score_pairs(
    file: "PairScores",
    pairs: "np.ndarray",
    keys: Sequence[Key],
    columns: "PromptColumns",
    log_probs_of: Callable[[list[Key]], Iterator[tuple[Sequence[int], Iterable[Any]]]],
) -> "np.ndarray":
    """``[stories, columns]`` log-likelihoods; those that the file lacks are computed and kept.

    Args:
        file: what was computed before.
        pairs: ``[N, 2]`` story and column.
        keys: under which the file has each pair; equal ones are computed once.
        columns: of the matrix.
        log_probs_of: computes pairs, batch by batch: their positions, and of each the
            log-probabilities of the story's tokens.
    """
    from tqdm import tqdm

    from fairseq_mm.metrics.prompt_ranking import score_matrix

    missing = [key for key in dict.fromkeys(keys) if key not in file.scores]
    done = len(keys) - len(missing)
    with tqdm(total=len(keys), initial=done, unit="pair", disable=None) as progress:
        for batch, found in log_probs_of(missing):
            sums = [float(log_probs.double().sum()) for log_probs in found]
            file.append(zip((missing[i] for i in batch), sums))
            progress.update(len(batch))
    values = [file.scores[key] for key in keys]
    return score_matrix(pairs, values, len(columns.true), len(columns.texts))


def write_ranking(
    output: str, report: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]
) -> None:
    """Writes ``ranking.json``, and ``stories.jsonl`` with a story a line."""
    from fairseq_mm.cli.score_output import write_file

    write_file(os.path.join(output, "ranking.json"), json.dumps(report, indent=2) + "\n")
    lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    write_file(os.path.join(output, "stories.jsonl"), "".join(lines))
