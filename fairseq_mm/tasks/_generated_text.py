"""Validation by generated text, as sums: a corpus figure that any number of processes agree on.

fairseq adds up what the processes log (and gathers only small values that it cannot add), so
counts and sums are logged and the metrics are derived from them. Document frequencies of CIDEr are
those of the whole split, whichever part of it a process sees.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fairseq.logging import metrics

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bleu import NUM_SUMS, bleu_from_sums, bleu_sums
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.rouge import rouge_l

# metrics of generated text: the higher the better
GROWING_METRICS = ("bleu1", "bleu2", "bleu3", "bleu4", "cider", "rouge_l")
_COUNT, _CIDER, _ROUGE = "_gen_count", "_gen_cider", "_gen_rouge_l"
_BLEU = tuple(f"_gen_bleu_{i}" for i in range(NUM_SUMS))


class GeneratedTextScores:
    """Scores of generated text against the references of a split.

    Args:
        references: item id -> its references.
        references_path: where they stand, for the message.
        visual_ids: item id of each line of the split.
        visual_path: where they stand, for the message.

    Raises:
        UserError: if an item of the split has no references.
    """

    def __init__(
        self,
        references: dict[str, list[str]],
        references_path: str,
        visual_ids: list[str],
        visual_path: str,
    ) -> None:
        for number, line in enumerate(visual_ids, start=1):
            if line not in references:
                raise UserError(
                    f"{references_path}: has no references for {line!r} of {visual_path}:{number}."
                )
        self.references = references
        self.visual_ids = visual_ids
        # the split's items only: they give the document frequencies
        items = list(dict.fromkeys(visual_ids))
        self.index = {item: i for i, item in enumerate(items)}
        self.tokenized = [[ptb_tokenize(text) for text in references[item]] for item in items]
        self.cider = CiderD(self.tokenized)

    def reference_of(self, line: int) -> str:
        return self.references[self.visual_ids[line]][0]

    def sums(self, hypotheses: Mapping[int, str]) -> dict[str, float]:
        """
        Args:
            hypotheses: line of the split -> generated text.

        Returns:
            What to log: counts and sums, zero for no hypotheses.
        """
        bleu = np.zeros(NUM_SUMS, dtype=np.int64)
        cider = rouge = 0.0
        for line, text in hypotheses.items():
            index = self.index[self.visual_ids[line]]
            tokens = ptb_tokenize(text)
            bleu += bleu_sums(tokens, self.tokenized[index])
            cider += self.cider.score_item(tokens, index)
            rouge += rouge_l(tokens, self.tokenized[index])
        logged: dict[str, float] = {_COUNT: len(hypotheses), _CIDER: cider, _ROUGE: rouge}
        logged.update(zip(_BLEU, bleu.tolist()))
        return logged


def log_generated_text_scores(logging_outputs: list[dict[str, Any]]) -> None:
    """Logs ``bleu1`` to ``bleu4``, ``cider`` and ``rouge_l`` of what all processes summed up."""

    def total(key: str) -> float:
        value = sum(log.get(key, 0) for log in logging_outputs)
        return value.item() if torch.is_tensor(value) else value

    if not any(_COUNT in log for log in logging_outputs):
        return  # a training step
    for key in (_COUNT, _CIDER, _ROUGE, *_BLEU):
        metrics.log_scalar_sum(key, total(key))

    def mean_of(key: str, meters: Any) -> float:
        return meters[key].sum / max(meters[_COUNT].sum, 1)

    metrics.log_derived("cider", lambda meters: round(mean_of(_CIDER, meters), 4))
    metrics.log_derived("rouge_l", lambda meters: round(mean_of(_ROUGE, meters), 4))
    for order in range(4):
        metrics.log_derived(
            f"bleu{order + 1}",
            lambda meters, order=order: round(
                bleu_from_sums([meters[key].sum for key in _BLEU])[order], 4
            ),
        )
