"""Content F1: how well the content words of a summary and of its reference are aligned.

Palaskar et al. 2019, computed as for the scores of Yu et al. 2021 (Tables 1 and 2): METEOR 1.5
aligns the texts, and 18 frequent words of the How2 summaries are removed from the alignment and
from both texts.

Differs from the text of the papers in the same ways as their scores do. METEOR's function words are
not removed. Each content word of a text is counted once, but aligned words are counted as often as
they are aligned, so that precision and recall of repetitive texts can exceed 1. A frequent word
that is not aligned stays among the content words. If several hypothesis words are aligned with one
frequent word, only the first one is removed. The value called precision divides by the reference's
words and the value called recall by the hypothesis's, which does not change F1.

Two published scores (72.5 and 72.1, Table 2, + FG and + VTF) were computed with alignments of
another model's output; with the right alignments they are 68.92 and 68.68.
"""

from collections.abc import Sequence

from fairseq_mm.metrics.meteor import Match

# the most frequent words of the How2 summaries
STOP_WORDS = frozenset([
    "in", "a", "this", "to", "free", "the", "video", "and", "learn",
    "from", "on", "with", "how", "tips", "for", "of", "expert", "an",
])  # fmt: skip


def content_f1(
    hypothesis: Sequence[str], reference: Sequence[str], matches: Sequence[Match]
) -> float:
    """Compute the content F1 of two token lists from ``matches`` of their METEOR alignment.

    It is 0 or more; 0 if nothing is aligned or a text has no content words. The corpus score is the
    mean over pairs.
    """
    hypothesis_stops: set[str] = set()
    reference_stops: set[str] = set()
    hypothesis_aligned = reference_aligned = 0
    for match in matches:
        words = reference[match.reference_start :][: match.reference_length]
        if len(words) == 1 and words[0] in STOP_WORDS:
            reference_stops.update(words)
            # only the first word of the span, as in the authors' script
            hypothesis_stops.add(hypothesis[match.hypothesis_start])
        else:
            reference_aligned += match.reference_length
            hypothesis_aligned += match.hypothesis_length
    num_hypothesis = len(set(hypothesis) - hypothesis_stops)
    num_reference = len(set(reference) - reference_stops)
    if not (num_hypothesis and num_reference and reference_aligned and hypothesis_aligned):
        return 0.0
    precision, recall = reference_aligned / num_reference, hypothesis_aligned / num_hypothesis
    return 2 * precision * recall / (precision + recall)
