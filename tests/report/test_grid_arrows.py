"""Arrows over an image: from where, to where, and what of the image the grid covers."""

import re

import numpy as np
import pytest
from PIL import Image

from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.report.visual_story_sections import (
    WHOLE,
    Box,
    Drawing,
    EmbeddedImage,
    arrows_section,
    seen_box,
)

URI = "data:image/jpeg;base64,QQ=="


def identity(**options):
    return {"preprocessing": Preprocessing(**options).to_json()}


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"resize": "short", "resize_size": 64, "crop": "center", "size": 56}, (300, 200)),
        ({"resize": "short", "resize_size": 64, "crop": "center", "size": 56}, (120, 480)),
        ({"resize": "squash", "resize_size": 64, "crop": "center", "size": 48}, (300, 200)),
        ({"resize": "none", "crop": "center", "size": 50}, (100, 80)),
    ],
)
def test_the_box_is_what_preprocessing_leaves_of_a_image(options, size):
    # each pixel's colour is its place, so that the corners of the result say where they were
    width, height = size
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, :, 0] = np.linspace(0, 255, width)[None]
    pixels[:, :, 1] = np.linspace(0, 255, height)[:, None]
    cropped = Preprocessing(**options).apply(Image.fromarray(pixels)) / 255
    box = seen_box(identity(**options), width, height)
    found = [*cropped[0, 0, :2], *cropped[-1, -1, :2]]
    np.testing.assert_allclose(box, found, atol=0.025)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"preprocessing": "resized by hand"},
        identity(resize="squash", resize_size=64, crop="none", size=64),
        identity(resize="short", resize_size=64, crop="none"),
    ],
)
def test_the_grid_covers_all_where_nothing_is_cut_off_or_known(attributes):
    assert seen_box(attributes, 30, 20) == WHOLE


def drawing(image=None, box=WHOLE, chosen=4):
    """A grid of 2 rows and 3 columns; position 4 is the middle of the second."""
    similarities = np.arange(36.0).reshape(6, 6)
    targets = [[5, 4, 3]] * 6
    return Drawing(2, "c<d>.jpg", image, box, 2, 3, similarities, targets, chosen)


def points(path):
    return [tuple(map(int, x.split())) for x in re.findall(r"-?\d+ -?\d+", path)]


def test_arrows_go_from_the_chosen_cell_to_its_targets_over_the_box():
    # 400 x 300 pixels are drawn 1000 x 750; the box is 600 x 600, from (200, 75)
    shown = drawing(EmbeddedImage(URI, 400, 300), Box(0.2, 0.1, 0.8, 0.9))
    section = arrows_section([shown])
    assert 'viewBox="0 0 1000 750"' in section.body
    assert "background-image:var(--image3)" in section.body
    groups = re.findall(r'<g( class="chosen")? data-from="(\d)".*?>(.*?)</g>', section.body)
    assert [number for _, number, _ in groups] == list("012345")
    assert [bool(chosen) for chosen, _, _ in groups] == [False] * 4 + [True, False]
    inside = groups[4][2]
    # cells are 200 wide and 300 high: the second row's centres lie at y = 75 + 450
    assert 'class="from" cx="500" cy="525"' in inside
    assert 'class="self" cx="500" cy="525"' in inside
    tips = [points(path)[3] for path in re.findall(r' d="(.*?)"', inside)]
    assert tips == [(300, 525), (700, 525)]  # the least similar is drawn first
    for path in re.findall(r' d="(.*?)"', inside):
        first, last = points(path)[0], points(path)[-1]
        assert (first[0] + last[0]) / 2 == pytest.approx(500, abs=1)
        assert (first[1] + last[1]) / 2 == pytest.approx(525, abs=1)
    cells = re.findall(
        r'data-cell="(\d)" x="(\d+)" y="(\d+)" width="200" height="300"', section.body
    )
    assert cells[4] == ("4", "400", "375")
    assert len(cells) == 6
    assert "c&lt;d&gt;.jpg: from row 1, column 1; f from 29 to 27" in section.body
    assert "the 3 positions" in section.body
