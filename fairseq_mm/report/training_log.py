"""The figures that fairseq prints at the end of an epoch or validation, read back from its log.

Both of fairseq's formats for files are understood (``--log-format json`` and ``simple``, which is
also what ``tqdm`` leaves in a log), with or without time stamps.
"""

import math
import re
from pathlib import Path

from fairseq_mm.data.input_files import parse_json
from fairseq_mm.errors import UserError

# metric -> subset (train, valid, ...) -> number of updates -> value
Curves = dict[str, dict[str, dict[float, float]]]

# speed, sizes and the like; nll_loss is ppl on another scale
_NOT_SHOWN = re.compile(
    r"wps|ups|wpb|bsz|num_updates|gnorm|clip|loss_scale|train_wall|wall|\w*gb_free|nll_loss"
    r"|best_\w+"
)
_SIMPLE = re.compile(
    r"epoch (\d+) \| (?:\w+ on '([^']+)' subset \| )?(\w+ \S+(?: \| \w+ \S+)*)\s*$"
)
_STAT = re.compile(r"(\w+) (\S+)")


def read_training_log(path: Path) -> Curves:
    """Read the curves of a training log.

    A resumed run prints some updates twice; the later values are used.

    Raises:
        UserError: if the file cannot be read, or has no line with values.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
    curves: Curves = {}
    for line in re.split(r"[\r\n]+", text):
        subset, figures = _read_line(line)
        place = figures.get("num_updates", figures.get("epoch"))
        for name, value in figures.items():
            if place is not None and name != "epoch" and not _NOT_SHOWN.fullmatch(name):
                curves.setdefault(name, {}).setdefault(subset, {})[place] = value
    if not curves:
        raise UserError(
            f"{path}: has no line of fairseq-train that ends an epoch (as written with "
            "--log-format json or simple)."
        )
    return curves


def _read_line(line: str) -> tuple[str, dict[str, float]]:
    """Return subset and values of a line; no values for other lines."""
    start = line.find('{"epoch": ')
    if start >= 0:
        try:
            record = parse_json(line[start:])
        except ValueError:
            return "", {}
        subsets = {key.rsplit("_num_updates", 1)[0] for key in record if "_num_updates" in key}
        if len(subsets) != 1:  # a line inside an epoch: no subset
            return "", {}
        subset = subsets.pop()
        figures = {
            key[len(subset) + 1 :] if key.startswith(f"{subset}_") else key: value
            for key, value in record.items()
        }
        return subset, _numbers(figures)
    match = _SIMPLE.search(line)
    if match is None:
        return "", {}
    epoch, subset, stats = match.groups()
    return subset or "train", _numbers({"epoch": epoch, **dict(_STAT.findall(stats))})


def _numbers(figures: dict) -> dict[str, float]:
    numbers = {}
    for name, value in figures.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            numbers[name] = number
    return numbers
