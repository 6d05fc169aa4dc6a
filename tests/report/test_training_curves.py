"""Charts: every point at its place, round numbers at the axis."""

import re

from fairseq_mm.report.training_curves import curves_section


def points(svg: str, kind: str) -> list[tuple[float, float]]:
    line = re.search(rf'<polyline class="{kind}" points="([^"]*)"', svg).group(1)
    return [tuple(map(float, place.split(","))) for place in line.split()]


def test_points_lie_in_proportion_to_updates_and_values():
    # ticks 0, 1, 2, 3, 4: the plot goes from x 46 to 320 and from y 166 (0) up to 26 (4)
    section = curves_section(
        {"loss": {"train": {10: 4.0, 20: 1.0}, "valid": {10: 2.0, 15: 0.0}}}, heading="Training"
    )
    assert points(section.body, "first") == [(46, 26), (320, 131)]
    assert points(section.body, "second") == [(46, 96), (183, 166)]
    labels = re.findall(r'text-anchor="end">([\d.]+)</text>', section.body)
    assert labels == ["0", "1", "2", "3", "4"]


def test_a_first_perplexity_of_thousands_does_not_flatten_the_others():
    section = curves_section({"ppl": {"train": {1: 5000, 2: 30, 3: 20, 4: 15}}}, heading="")
    places = points(section.body, "first")
    assert places[0][1] == 26  # at the upper edge
    assert places[3][1] - places[1][1] > 10


def test_one_epoch_has_no_curve_and_constants_have_no_chart():
    once = curves_section({"loss": {"train": {10: 4.0}}}, heading="Training")
    assert "One epoch only" in once.body
    curves = {"lr": {"train": {1: 0.1, 2: 0.1}}, "loss": {"train": {1: 2.0, 2: 1.0}}}
    assert curves_section(curves, heading="").body.count("<svg") == 1


def test_names_from_the_log_are_escaped():
    section = curves_section({"<b>": {"x<y": {1: 1, 2: 2}}}, heading="")
    assert "<b>" not in section.body
    assert "x&lt;y" in section.body
