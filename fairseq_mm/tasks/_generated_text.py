"""Validates models by metrics of generated text, for any number of processes.

fairseq sums the logged values of all processes and gathers other values only up to 16 KB. This
module therefore logs counts and sums, and computes corpus metrics from them. CIDEr's document
frequencies are computed from the whole split in every process.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Callable

import numpy as np
import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bleu import NUM_SUMS, bleu_from_sums, bleu_sums
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.rouge import rouge_l
from fairseq_mm.tasks._ranking_validation import FALLING, GROWING

Tokens = Sequence[str]
# (hypothesis, references) -> score; the score of a split is the mean
Measure = Callable[[Tokens, Sequence[Tokens]], float]


# BLEU and CIDEr, which are computed for all texts, need corpus counts and are no measures.
CAPTION_MEASURES: dict[str, Measure] = {"rouge_l": rouge_l}
_BLEU_AND_CIDER = ("bleu1", "bleu2", "bleu3", "bleu4", "cider")
# fairseq's logs do not print keys that begin with an underscore, but sum them over processes
_COUNT, _CIDER = "_gen_count", "_gen_cider"
_BLEU = tuple(f"_gen_bleu_{i}" for i in range(NUM_SUMS))


def check_best_checkpoint_metric(
    cfg: Any, measures: Mapping[str, Measure], *, is_ranking: bool = False
) -> None:
    """Check that validation logs ``--best-checkpoint-metric``, and that its best is kept."""
    metric, texts = cfg.best_checkpoint_metric or "", (*_BLEU_AND_CIDER, *measures)
    growing = GROWING if is_ranking else texts if cfg.eval_gen else ()
    falling = ("loss", *(FALLING if is_ranking else ()))
    problem = ""
    if metric not in (*growing, *falling):
        # other metrics may come from the criterion
        if metric in GROWING + FALLING or metric.startswith(("bleu", "rouge", "cider")):
            hint = "" if growing else "; metrics of generated text need --eval-gen"
            problem = f"validation logs {', '.join((*growing, *falling))}{hint}"
    elif (metric in growing) != bool(cfg.maximize_best_checkpoint_metric):
        side = "with" if metric in growing else "without"
        problem = (
            f"must be given {side} --maximize-best-checkpoint-metric, or the worst checkpoint "
            "would be kept"
        )
    if problem:
        raise UserError(f"--best-checkpoint-metric {metric}: {problem}.")


class GeneratedTextScores:
    """Scores of generated text against the references of a split.

    Args:
        references: Dictionary from the id of an item, such as an image, to its references.
        items: Item id of each line of the split.
        tokenize: Function from a text to the tokens that are compared.
        measures: Metrics to compute in addition to BLEU and CIDEr, by name; each is a function from
            the tokens of a hypothesis and of its references to a score.
    """

    def __init__(
        self,
        references: dict[str, list[str]],
        items: list[str],
        *,
        tokenize: Callable[[str], Tokens] = ptb_tokenize,
        measures: Mapping[str, Measure] = CAPTION_MEASURES,
    ) -> None:
        self.tokenize = tokenize
        self.measures = measures
        self.references = references
        self.items = items
        # the split's items only: they give the document frequencies
        self.index = {item: i for i, item in enumerate(dict.fromkeys(items))}

    # built when the first text is scored: fairseq loads the training split, too, whose references
    # would take gigabytes in vain
    @cached_property
    def tokenized(self) -> list[list[Tokens]]:
        """Tokens of each reference of each item (such as an image), in the order of the items."""
        return [[self.tokenize(text) for text in self.references[item]] for item in self.index]

    @cached_property
    def cider(self) -> CiderD:
        """CIDEr-D scorer with the document frequencies of the split's references."""
        return CiderD(self.tokenized)

    def sums(self, hypotheses: Mapping[int, str]) -> dict[str, float]:
        """Return the number of hypotheses and the sums of their scores.

        fairseq sums these values over all processes.

        Args:
            hypotheses: Dictionary from a line number of the split to the text generated for the
                line. If it is empty, the sums are zeros.
        """
        bleu = np.zeros(NUM_SUMS, dtype=np.int64)
        sums = dict.fromkeys((_CIDER, *map(_log_key, self.measures)), 0.0)
        for line, text in hypotheses.items():
            index = self.index[self.items[line]]
            tokens = self.tokenize(text)
            bleu += bleu_sums(tokens, self.tokenized[index])
            sums[_CIDER] += self.cider.score_item(tokens, index)
            for name, measure in self.measures.items():
                sums[_log_key(name)] += measure(tokens, self.tokenized[index])
        return {_COUNT: len(hypotheses), **sums, **dict(zip(_BLEU, bleu.tolist()))}


def first_hypotheses(task: Any, sample: dict[str, Any], model: Any) -> dict[int, Tensor]:
    """Generate one text for each item of the batch ``sample`` with ``task.sequence_generator``.

    An item, such as an image, has one line of the split per reference, and all these lines would
    give the same hypothesis. The text is therefore generated only for the first such line, in
    the batch that contains it.

    Returns:
        Dictionary from the number of a line in the split to the tokens of its best hypothesis, a
        tensor on the CPU.
    """
    is_first = sample["is_first"]
    if not is_first.any():
        return {}
    net_input = {
        key: x[is_first] for key, x in sample["net_input"].items() if key != "prev_output_tokens"
    }
    chosen = {"id": sample["id"][is_first], "net_input": net_input}
    hypotheses = task.inference_step(task.sequence_generator, [model], chosen)
    lines = chosen["id"].tolist()
    return {line: best["tokens"].int().cpu() for line, (best, *_) in zip(lines, hypotheses)}


def _log_key(measure: str) -> str:
    return f"_gen_{measure}"


def log_generated_text_scores(
    logging_outputs: list[dict[str, Any]], measures: Mapping[str, Measure] = CAPTION_MEASURES
) -> None:
    """Log BLEU-1 to BLEU-4, CIDEr and the metrics ``measures``, a dictionary from names to metrics.

    The metrics are computed from the results of :meth:`GeneratedTextScores.sums` for all batches
    and processes, which ``logging_outputs`` contain.
    """

    def total(key: str) -> float:
        value = sum(log.get(key, 0) for log in logging_outputs)
        return value.item() if torch.is_tensor(value) else value

    # a training step logs no counts, and zeros would become its metrics
    if not any(_COUNT in log for log in logging_outputs):
        return
    for key in (_COUNT, _CIDER, *map(_log_key, measures), *_BLEU):
        metrics.log_scalar_sum(key, total(key))

    def mean(key: str, meters: Any) -> float:
        return meters[key].sum / max(meters[_COUNT].sum, 1)

    # arguments with defaults, because a closure would see the last name of the loop
    for name in ("cider", *measures):
        metrics.log_derived(name, lambda meters, name=name: round(mean(_log_key(name), meters), 4))
    for order in range(4):
        metrics.log_derived(
            f"bleu{order + 1}",
            lambda meters, order=order: round(
                bleu_from_sums([meters[key].sum for key in _BLEU])[order], 4
            ),
        )
