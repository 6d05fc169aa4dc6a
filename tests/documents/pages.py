"""The pages of the documentation and the fenced blocks in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
# after these, a block is data or output to be read
SHOWN = ("bibtex", "json", "text", "toml")
RUN = ("bash", "python")
# test_extension_pages.py runs these pages as a whole: their commands need a plugin that they write
RUN_WHOLE = (DOCS / "add_model.md", DOCS / "add_task.md")
FENCE = re.compile(
    r"^(?:<!-- needs: (?P<needs>.+?) -->\n)?"
    r"^```(?P<language>\w*)(?: title=\".+?\")?\n(?P<text>.*?)^```$",
    re.M | re.S,
)


class Block(NamedTuple):
    """
    Attributes:
        line: Line of the page where the text begins.
        needs: What the block cannot run without on small data, from the comment above it.
    """

    page: Path
    line: int
    language: str
    needs: Optional[str]
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text[: found.start("text")].count("\n") + 1,
            found["language"],
            found["needs"],
            found["text"],
        )
        for found in FENCE.finditer(text)
    ]


def commands_of(page: Path, run: bool = True) -> Iterator[list[str]]:
    """Yield the arguments of each command in a page's bash blocks, without what the shell takes
    itself; of blocks that run only if `run`. Variables that are set for a command come first."""
    for block in () if page in RUN_WHOLE else blocks_of(page):
        if block.language != "bash" or (block.needs is None and not run):
            continue
        for line in re.sub(r"\\\n|(?<=\|)\n", " ", block.text).splitlines():
            words = shlex.split(line, comments=True)
            ends = [i for i, word in enumerate(words) if re.fullmatch(r"\d?>|\||&&|\d>&\d", word)]
            if words:
                yield words[: min(ends, default=len(words))]
