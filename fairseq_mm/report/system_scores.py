"""Makes the section of a report with the scores of systems, their differences and intervals."""

from collections.abc import Sequence
from typing import NamedTuple, Optional

from fairseq_mm.metrics.score_rows import format_figure
from fairseq_mm.report.html_page import Section, section


class Difference(NamedTuple):
    """Score of a system minus the score of the first system.

    Attributes:
        value: The difference.
        interval: Ends of the 95 % confidence interval; None if the score has no interval.
        p: Two-sided p-value; None if the score has no interval.
    """

    value: float
    interval: Optional[tuple[float, float]] = None
    p: Optional[float] = None

    @property
    def is_clear(self) -> bool:
        """Return True if the interval does not contain 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class ScoreLine(NamedTuple):
    """Values of one score, such as BLEU-4, for all systems.

    Attributes:
        name: Name of the score, such as ``bleu4``.
        values: Score of each system; None for a missing score.
        differences: For each system after the first, its difference from the first; None if
            missing.
        signature: String that says how the score was computed.
        note: Remark, or the reason why the score is missing.
    """

    name: str
    values: Sequence[Optional[float]]
    differences: Sequence[Optional[Difference]] = ()
    signature: str = ""
    note: str = ""


def scores_section(
    lines: Sequence[ScoreLine], systems: Sequence[str], *, resampling: str = ""
) -> Section:
    """Return the page section with all scores; their signatures are hidden until a click.

    ``resampling`` is the sentence that says how the intervals were computed.
    """
    return section(
        "Scores",
        "system_scores.html",
        lines=lines,
        systems=systems,
        resampling=resampling,
        number=format_figure,
    )
