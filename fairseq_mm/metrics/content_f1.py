"""Content F1: how well the content words of a summary and of its reference are aligned.

Palaskar et al. 2019, as the figures of Yu et al. 2021 (Tables 1 and 2) are computed:
METEOR 1.5 aligns the texts, and of the alignment and of both texts what belongs to 18 frequent
words of the How2 summaries is left out.

Differs from the papers' words, as their figures do: METEOR's function words stay in; a text's
content words are counted once each, while the aligned words are counted as often as they are
aligned, so that precision and recall of repetitive texts can be above 1; a frequent word that is
not aligned stays among the content words; of several hypothesis words that are aligned with one
frequent word, only the first is left out. What is called precision divides by the reference's words
and recall by the hypothesis's, which changes nothing in F1.

Two published figures (72.5 and 72.1, Table 2, + FG and + VTF) were computed with alignments of
another model's output and are 68.92 and 68.68 with the right ones.
"""

from collections.abc import Sequence

from fairseq_mm.metrics.meteor import Match

# the most frequent words of the How2 summaries
STOP_WORDS = frozenset(
    [
        *("in", "a", "this", "to", "free", "the", "video", "and", "learn"),
        *("from", "on", "with", "how", "tips", "for", "of", "expert", "an"),
    ]
)


def content_f1(
    hypothesis: Sequence[str], reference: Sequence[str], matches: Sequence[Match]
) -> float:
    """Content F1 of one pair; the corpus figure is the mean.

    Args:
        hypothesis: tokens.
        reference: tokens.
        matches: their alignment, see :func:`fairseq_mm.metrics.meteor.align`.

    Returns:
        0 or more; 0 where nothing is aligned or a text has no content words.
    """
    own_removed: set[str] = set()
    removed: set[str] = set()
    own_aligned = aligned = 0
    for match in matches:
        words = reference[match.reference_start :][: match.reference_length]
        if len(words) == 1 and words[0] in STOP_WORDS:
            removed.update(words)
            # only the first word of the span, as in the authors' script
            own_removed.add(hypothesis[match.hypothesis_start])
        else:
            aligned += match.reference_length
            own_aligned += match.hypothesis_length
    num_own = len(set(hypothesis) - own_removed)
    num_words = len(set(reference) - removed)
    if not (num_own and num_words and aligned and own_aligned):
        return 0.0
    precision, recall = aligned / num_words, own_aligned / num_own
    return 2 * precision * recall / (precision + recall)
