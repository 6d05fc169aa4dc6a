"""Verdicts of a task on its test items, counted for the table and for the page."""

from collections.abc import Sequence
from typing import NamedTuple

from demo_task import AnyVerdict, DemoTask
from demo_tasks import Summaries


class Result(NamedTuple):
    """Verdicts of one task.

    Attributes:
        task: The task.
        verdicts: Verdicts on what the model made of the test items.
        baseline: Verdicts on the most common answer.
        parts: Further rows of the table: name, number of right parts, number of all parts.
    """

    task: DemoTask
    verdicts: Sequence[AnyVerdict]
    baseline: Sequence[AnyVerdict]
    parts: list[tuple[str, int, int]]

    @property
    def right(self) -> int:
        return count_right(self.verdicts)

    @property
    def share(self) -> float:
        return self.right / max(len(self.verdicts), 1)

    @property
    def baseline_share(self) -> float:
        return count_right(self.baseline) / max(len(self.baseline), 1)


def count_right(verdicts: Sequence[AnyVerdict]) -> int:
    return sum(verdict.right for verdict in verdicts)


def judge(task: DemoTask) -> Result:
    """Check what a task's model made of the test items."""
    verdicts = task.verdicts()
    parts = []
    for kind, what in task.kinds.items():
        of_kind = [verdict for verdict in verdicts if verdict.kind == kind]
        parts.append((what, count_right(of_kind), len(of_kind)))
    if isinstance(task, Summaries):
        of_transcript, of_frames = (task.swapped(of_transcript=yes) for yes in (True, False))
        for what, right in (
            ("with the frames of another clip", count_right(of_transcript)),
            ("  who and where, as the transcript tells", sum(v.told for v in of_transcript)),
            ("  what happens in these other frames", sum(v.seen for v in of_frames)),
            ("with the transcript of another clip", count_right(of_frames)),
        ):
            parts.append((what, right, len(of_frames)))
    return Result(task, verdicts, task.baseline(), parts)
