"""Draw the figure of README.md from the results of `make demo`.

A row of the figure has the first test items of a task.

    python docs/figures/make_figure.py demo docs/figures/demo.png
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

SIDE, GAP, LINE = 128, 14, 16  # image, space between images, line of text, in pixels
LETTERS = 20  # per line, which fit below an image of SIDE pixels
COLUMNS = 5
CAPTIONS, FOUND, FRAMES = 5, 3, 4  # numbers of images in a row
WIDE_LETTERS = LETTERS * COLUMNS  # per line of a text as wide as the figure


class Row(NamedTuple):
    """A row of the figure.

    Attributes:
        title: Text above, in grey.
        examples: Images, each with the text below it.
        text: Text below all images.
    """

    title: str
    examples: Sequence[tuple[Path, str]]
    text: str = ""


def read_records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_captions(folder: Path) -> Row:
    """The first test images with their generated captions."""
    examples = [
        (folder / "images" / record["id"], record["hypothesis"])
        for record in read_records(folder / "generated.jsonl")[:CAPTIONS]
    ]
    return Row("m_rnn: an image in, a caption out", examples)


def read_story(folder: Path) -> Row:
    """The images of the fresh story with the sentences generated for them."""
    (story,) = read_records(folder / "fresh" / "stories.jsonl")
    (generated,) = read_records(folder / "fresh.jsonl")
    images = [folder / "fresh" / image for image in story["images"]]
    title = "glac_non_local: five images in, a visual story out"
    return Row(title, list(zip(images, generated["sentences"])))


def read_search(folder: Path) -> Row:
    """The images found for the first query."""
    found = read_records(folder / "found.jsonl")[:FOUND]
    images = [(folder / "images" / record["id"], f"{record['rank']}.") for record in found]
    return Row(f"vse_gru: a sentence in, images out: {found[0]['query']}", images)


def read_tale(folder: Path) -> Row:
    """The story of the first test prompt."""
    prompt = (folder / "prompts.txt").read_text(encoding="utf-8").splitlines()[0]
    story = read_records(folder / "generated.jsonl")[0]["hypothesis"]
    return Row(f"conv_story: a prompt in, a story out: {prompt}", [], story)


def read_summary(folder: Path) -> Row:
    """The frames of the first test clip with its transcript and summary."""
    record = read_records(folder / "generated_test.jsonl")[0]
    transcript = read_records(folder / "test.jsonl")[0]["transcript"]
    frames = [(folder / "clips" / record["id"] / f"{n}.jpg", "") for n in range(1, FRAMES + 1)]
    title = f"vg_t5: a transcript and frames in, a summary out: {transcript}"
    return Row(title, frames, record["hypothesis"])


def draw(rows: Sequence[Row]) -> Image.Image:
    """Rows of images with a title above, a text below each and a text below all."""
    titles = [textwrap.wrap(row.title, WIDE_LETTERS) for row in rows]
    texts = [textwrap.wrap(row.text, WIDE_LETTERS) for row in rows]
    captions = [[textwrap.wrap(text, LETTERS) for _, text in row.examples] for row in rows]
    heights = [
        LINE * len(title)
        + (SIDE + LINE * max(map(len, lines)) if lines else 0)
        + LINE * len(text)
        + 2 * GAP
        for title, lines, text in zip(titles, captions, texts)
    ]
    sheet = Image.new("RGB", (COLUMNS * (SIDE + GAP) + GAP, sum(heights) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    top = GAP
    for row, title, lines, text, height in zip(rows, titles, captions, texts, heights):
        pen.multiline_text((GAP, top), "\n".join(title), "#555555", font, spacing=2)
        y = top + LINE * len(title) + GAP // 2
        for place, ((path, _), caption) in enumerate(zip(row.examples, lines)):
            left = GAP + place * (SIDE + GAP)
            with Image.open(path) as image:
                # few colours of its own keep the file small, and colours true
                image = image.convert("RGB").quantize(24, kmeans=4, dither=Image.Dither.NONE)
                sheet.paste(image.convert("RGB").resize((SIDE, SIDE), Image.NEAREST), (left, y))
            pen.multiline_text((left, y + SIDE + 4), "\n".join(caption), "black", font, spacing=2)
        if lines:
            y += SIDE + 4 + LINE * max(map(len, lines))
        pen.multiline_text((GAP, y), "\n".join(text), "black", font, spacing=2)
        top += height
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("demo", type=Path, help="Folder that `make demo` wrote.")
    parser.add_argument("output", type=Path, help="PNG file to write.")
    args = parser.parse_args()
    rows = [
        read_captions(args.demo / "captions"),
        read_story(args.demo / "visual_stories"),
        read_search(args.demo / "search"),
        read_tale(args.demo / "prompts"),
        read_summary(args.demo / "summaries"),
    ]
    draw(rows).save(args.output, optimize=True)


if __name__ == "__main__":
    main()
