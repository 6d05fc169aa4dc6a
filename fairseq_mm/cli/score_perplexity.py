"""``fairseq-mm score --reference-scores``: perplexities of the references."""

import argparse
from pathlib import Path

from fairseq_mm.data.visual_ids import read_visual_ids
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.perplexity import (
    corpus_perplexity,
    mean_sentence_perplexity,
    read_log_probabilities,
)
from fairseq_mm.metrics.score_rows import Row
from fairseq_mm.metrics.signature import signature

NAMED = 5  # lines in a message


def perplexity_rows(args: argparse.Namespace) -> list[Row]:
    """Rows over tokens and over sentences; without ``--reference-scores`` they say so.

    Args:
        args: of ``fairseq-mm score``.

    Raises:
        UserError: if the scores cannot be read, or have lines that the split does not have.
    """
    properties = {"eq": 5, "unit": "dictionary-token", "eos": "counted"}
    kinds = (("perplexity", "tokens", corpus_perplexity),)
    kinds += (("perplexity_sentence", "sentences", mean_sentence_perplexity),)
    if args.reference_scores is None:
        return [
            Row(
                name, None, signature("ppl", mean=mean, **properties), 0, "needs --reference-scores"
            )
            for name, mean, _ in kinds
        ]
    texts = read_log_probabilities(args.reference_scores)
    expected, note = None, ""
    if args.data is not None:
        expected = len(read_visual_ids(str(Path(args.data) / f"{args.split}.visual_ids")))
        beyond = [number for number in texts if number >= expected]
        if beyond:
            raise UserError(
                f"{args.reference_scores}: line {max(beyond)} must be one of the {expected} lines "
                f"of {args.split} (counted from 0); it comes from another split or data folder."
            )
        missing = [number for number in range(expected) if number not in texts]
        if missing:
            note = f"{len(missing)} of {expected} lines not scored, such as {missing[:NAMED]}"
    return [
        Row(
            name,
            perplexity(texts.values()),
            signature("ppl", mean=mean, **properties),
            len(texts),
            note,
            expected=expected,
        )
        for name, mean, perplexity in kinds
    ]
