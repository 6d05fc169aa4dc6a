"""What a number was made with, in one short string, like sacreBLEU's."""

from collections.abc import Sequence

from fairseq_mm import __version__


def count_label(references: Sequence[Sequence[object]]) -> str:
    """``5`` where every item has five references, ``3-5`` where the number varies."""
    counts = {len(item) for item in references} or {0}
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)}-{max(counts)}"


def signature(metric: str, **properties: object) -> str:
    """``bleu|refs:5|tok:ptb|case:lc|...|version:0.2.0``, in the order given.

    Args:
        metric: name of the metric.
        properties: what decides the number; None leaves a property out.
    """
    parts = [f"{name}:{value}" for name, value in properties.items() if value is not None]
    return "|".join([metric, *parts, f"version:fairseq_mm-{__version__}"])
