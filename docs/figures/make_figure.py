"""Draw the figure of README.md from the results of `make demo`: the first four test images with
their generated captions, and the five images of the fresh story with its generated sentences.

    python docs/figures/make_figure.py demo docs/figures/demo.png
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

SIDE, GAP, LINE = 128, 14, 16  # image, space between images, line of text, in pixels
LETTERS = 20  # per line, which fit below an image of SIDE pixels
CAPTIONS = 4


def read_captions(demo: Path) -> list[tuple[Path, str]]:
    """The first test images, and what fairseq-generate wrote for them."""
    keys = (demo / "data" / "test.visual_ids").read_text().splitlines()
    texts = {}
    for line in (demo / "generate-test.txt").read_text().splitlines():
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t")
            texts[int(number)] = text
    return [(demo / "images" / keys[line], texts[line]) for line in sorted(texts)[:CAPTIONS]]


def read_story(demo: Path) -> list[tuple[Path, str]]:
    """The images of the fresh story, and the sentences generated for them."""
    story = json.loads((demo / "stories" / "fresh" / "stories.jsonl").read_text().splitlines()[0])
    lines = (demo / "stories" / "generated.jsonl").read_text().splitlines()
    generated = next(json.loads(line) for line in lines if line.startswith("{"))
    images = [demo / "stories" / "fresh" / image for image in story["images"]]
    return list(zip(images, generated["sentences"]))


def draw(rows: Sequence[tuple[str, Sequence[tuple[Path, str]]]]) -> Image.Image:
    """A row of images with a title above and a text below each."""
    wrapped = [
        [(path, textwrap.wrap(text, LETTERS)) for path, text in examples] for _, examples in rows
    ]
    heights = [
        LINE + GAP + SIDE + LINE * (1 + max(len(lines) for _, lines in row)) for row in wrapped
    ]
    width = max(len(row) for row in wrapped) * (SIDE + GAP) + GAP
    sheet = Image.new("RGB", (width, sum(heights) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    top = GAP
    for (title, _), row, height in zip(rows, wrapped, heights):
        pen.text((GAP, top), title, "#555555", font)
        for place, (path, lines) in enumerate(row):
            left, y = GAP + place * (SIDE + GAP), top + LINE + GAP // 2
            with Image.open(path) as image:
                # few colours of its own keep the file small, and colours true
                image = image.convert("RGB").quantize(24, kmeans=4, dither=Image.Dither.NONE)
                sheet.paste(image.convert("RGB").resize((SIDE, SIDE), Image.NEAREST), (left, y))
            pen.multiline_text((left, y + SIDE + 4), "\n".join(lines), "black", font, spacing=2)
        top += height
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("demo", type=Path, help="Folder that `make demo` wrote.")
    parser.add_argument("output", type=Path, help="PNG file to write.")
    args = parser.parse_args()
    rows = [
        ("m_rnn: an image in, a caption out", read_captions(args.demo)),
        ("glac_non_local: five images in, a visual story out", read_story(args.demo)),
    ]
    draw(rows).save(args.output, optimize=True)


if __name__ == "__main__":
    main()
