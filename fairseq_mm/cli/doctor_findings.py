"""Lines of the doctor's report."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: ``ok``, ``note`` or ``PROBLEM``.
        subject: what was looked at.
        text: what was found.
        remedy: what to do.
    """

    level: str
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def note(subject: str, text: str, remedy: str) -> Finding:
    return Finding("note", subject, text, remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    return Finding("PROBLEM", subject, text, remedy)


def reason_of(error: BaseException) -> str:
    """Kind and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
