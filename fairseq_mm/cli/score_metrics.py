"""Chooses the metrics and the tokenizer of ``fairseq-mm score`` and ``fairseq-mm report``."""

import argparse
import difflib
from collections.abc import Collection
from typing import Callable, NamedTuple

from fairseq_mm.cli import score_models
from fairseq_mm.cli.arguments import flag
from fairseq_mm.cli.score_inputs import existing_file
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.text_scores import FIGURES, METRIC_OF_FIGURE, METRICS


class Preset(NamedTuple):
    """Evaluation protocol of a paper or challenge, which ``--preset`` names.

    Attributes:
        tokenizer: Name of the tokenizer, one of :data:`TOKENIZERS`.
        metrics: Names of the metrics.
        has_references: False if the protocol scores texts without references.
    """

    tokenizer: str
    metrics: tuple[str, ...]
    has_references: bool = True


PRESETS = {
    "coco": Preset("ptb", ("bleu", "meteor", "rouge_l", "cider", "diversity", "novelty")),
    # none: words are what spaces separate, as in the tables of Yu et al.
    "how2": Preset("none", ("rouge", "bleu", "meteor", "cider", "content_f1", "novel_ngrams")),
    "m_rnn": Preset("m_rnn", ("bleu", "perplexity", "diversity", "novelty")),
    "vist": Preset(
        "ptb", ("meteor_vist", "meteor", "bleu", "rouge_l", "cider", "diversity", "sentences")
    ),
    # a prompt has many good stories: overlap with one reference says little
    "wp": Preset("none", ("diversity", "copying"), has_references=False),
}
# perplexity stands apart: it needs scores of references, not the hypotheses that METRICS read
NAMES = (*METRICS, *score_models.FIGURES, "perplexity")
WITHOUT_REFERENCES = ("self_bleu", "seq_rep", "first_distinct")
TOKENIZERS = ("ptb", "m_rnn", "wp", "none")
_FIGURES = {**FIGURES, **score_models.FIGURES}
_METRIC_OF_FIGURE = {**METRIC_OF_FIGURE, **score_models.METRIC_OF_FIGURE}


def load_tokenizer(name: str) -> Callable[[str], list[str]]:
    """Return the function that splits a text into words; ``name`` is one of :data:`TOKENIZERS`."""
    if name == "ptb":
        from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

        return ptb_tokenize
    if name == "m_rnn":
        from fairseq_mm.data.caption_text import CaptionTokenizer

        split = CaptionTokenizer("m_rnn")
        # the rules would split <unk> at its brackets; the model generated it as one token
        return lambda text: split(text.replace("<unk>", "unk"))
    if name == "wp":
        from fairseq_mm.data.story_text import tokenize_story_text

        return tokenize_story_text
    return str.split


def split_metrics(text: str, known: Collection[str]) -> tuple[list[str], set[str]]:
    """Return the metrics that ``--metrics`` names, and the names of all scores that it asks for.

    ``bleu`` asks for bleu1 to bleu4, but ``bleu4`` only for bleu4.

    Args:
        text: Value of the option.
        known: Names of the metrics that the command computes.
    """
    metrics: list[str] = []
    figures: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        metric = _METRIC_OF_FIGURE.get(name, name)
        if metric not in known:
            names = (*known, *(x for x, owner in _METRIC_OF_FIGURE.items() if owner in known))
            near = [x for x in difflib.get_close_matches(name, names, n=3) if x != name]
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UserError(
                f"--metrics: must be of {', '.join(known)}, or figures of them such as bleu4, but "
                f"has {name!r}{hint}"
            )
        figures.update(_FIGURES.get(name, (name,)))
        if metric not in metrics:
            metrics.append(metric)
    if not metrics:
        raise UserError("--metrics: must name a metric, but is empty.")
    if {"rouge", "rouge_l"} <= {*metrics}:
        raise UserError(
            "--metrics: has rouge and rouge_l, which both make a row rouge_l: the former's has "
            "beta 1, the latter's is coco-caption's with beta 1.2."
        )
    return metrics, figures


def select_metrics(args: argparse.Namespace) -> list[str]:
    """Return the metrics of ``--metrics`` or, without this option, of ``--preset``."""
    preset = PRESETS[args.preset]
    metrics = list(preset.metrics)
    if args.metrics is not None:
        metrics, _ = split_metrics(args.metrics, NAMES)
    if not preset.has_references:
        for name in metrics:
            if name not in (*preset.metrics, *WITHOUT_REFERENCES):
                raise UserError(
                    "--metrics: of stories without references must be of "
                    f"{', '.join((*preset.metrics, *WITHOUT_REFERENCES))}, but has {name!r}."
                )
        for option in ("references", "reference_scores"):
            if getattr(args, option) is not None:
                raise UserError(
                    f"{flag(option)}: the preset {args.preset} measures stories without references."
                )
    elif "copying" in metrics:
        raise UserError("--metrics copying: needs --preset wp.")
    elif args.metrics is None:
        # a preset leaves the row out; --metrics novel_ngrams gets a row with a note on the lack
        has_transcripts = existing_file(args.data, f"{args.split}.transcripts.jsonl") is not None
        metrics = [name for name in metrics if has_transcripts or name != "novel_ngrams"]
    if args.first_words is not None and "first_distinct" not in metrics:
        raise UserError("--first-words: needs --metrics first_distinct.")
    if args.hypotheses is None and args.constant is None:
        if args.reference_scores is None:
            raise UserError("give HYPOTHESES, or --reference-scores for perplexity alone.")
        return ["perplexity"]
    if args.reference_scores is not None and "perplexity" not in metrics:
        metrics.append("perplexity")
    return metrics
