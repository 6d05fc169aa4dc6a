"""The demo's page: figures of all tasks, and the first test items of each with their outputs."""

import base64
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from demo_results import Result
from demo_tasks import Captions, Search, Summaries, Tales, VisualStories
from drawings import collection
from drawings.clips import NUM_FRAMES
from drawings.records import read_split

from fairseq_mm.report.html_page import Section, render_page, section, write_page

_OVERVIEW, _TASK = (
    str(Path(__file__).parent / f"demo_{name}.html") for name in ("overview", "task")
)


class Panel(NamedTuple):
    """Image with the text that belongs to it, which may be empty.

    Attributes:
        name: Name of the image's file.
        uri: The image as a data URI.
        text: Text of only this image.
        right: Whether the text is right.
    """

    name: str
    uri: str
    text: str = ""
    right: bool = True


class Card(NamedTuple):
    """One test item.

    Attributes:
        given: Text that the model read; empty if there is none.
        panels: Images.
        text: Text that the model wrote for the whole item; empty if each image has its own.
        right: Whether the text is right.
    """

    given: str
    panels: list[Panel]
    text: str = ""
    right: bool = True


def write_demo_page(path: Path, results: Sequence[Result], activation: str = "") -> None:
    """Write the page: a table with the figures of all tasks, and a section for each.

    ``activation`` is the shell command that must precede the commands of the page, if any.
    """
    rows = [
        (
            result.task.title,
            f"{result.right} of {len(result.verdicts)}, {result.share:.1%}",
            f"{result.baseline_share:.1%}",
        )
        for result in results
    ]
    sections = [section("", _OVERVIEW, rows=rows, activation=activation)]
    sections += [_task_section(result) for result in results]
    subtitle = (
        "All images and texts were drawn and written by a program, and all models trained in this "
        "run. Training has not seen the test items."
    )
    write_page(path, render_page("Five tasks of fairseq_mm", sections, subtitle=subtitle))


# name of a task -> number of items that are shown, least width of an item in rem
_SHOWN = {
    Captions.name: (6, 10),
    VisualStories.name: (4, 36),
    Search.name: (6, 22),
    Tales.name: (6, 22),
    Summaries.name: (6, 28),
}


def _task_section(result: Result) -> Section:
    task = result.task
    count, width = _SHOWN[task.name]
    # titles are in the order of beginning, which differs when a run continues
    titles = [title for title in task.runner.seconds if title in task.titles]
    return section(
        task.title,
        _TASK,
        about=task.about,
        definition=task.right,
        right=result.right,
        total=len(result.verdicts),
        baseline=result.baseline_share,
        parts=result.parts,
        cards=list(islice(_cards(result), count)),
        width=width,
        commands=[task.runner.commands[title] for title in titles],
    )


def _cards(result: Result) -> Iterator[Card]:
    """Yield the test items in their order."""
    task: Any = result.task
    right = {verdict.key: verdict.right for verdict in result.verdicts}
    if isinstance(task, Captions):
        for key, caption in task.texts().items():
            panel = _panel(task.folder / "images" / key, caption, right[key])
            yield Card("", [panel])
    elif isinstance(task, VisualStories):
        for story, sentences in task.texts().items():
            panels = [
                _panel(task.folder / "images" / name, text, right[name])
                for name, text in zip(collection.image_names(story), sentences)
            ]
            yield Card("", panels)
    elif isinstance(task, Search):
        for query, names in task.found().items():
            pairs = [(query, name) for name in names]
            verdicts = collection.check_found(task.folder, pairs)
            images = task.folder / "images"
            panels = [
                _panel(images / name, f"{rank}." if verdict.right else f"{rank}. not true")
                for rank, (name, verdict) in enumerate(zip(names, verdicts), 1)
            ]
            yield Card(query, panels)
    elif isinstance(task, Tales):
        for verdict, story in zip(result.verdicts, task.texts()):
            yield Card(verdict.key, [], story, verdict.right)
    else:
        yield from _summary_cards(task, right)


def _summary_cards(task: Summaries, right: dict[str, bool]) -> Iterator[Card]:
    records = {record["id"]: record for record in read_split(task.folder / "clips.jsonl", "test")}
    for key, summary in task.texts().items():
        frames = [task.folder / "clips" / key / f"{n}.jpg" for n in range(1, NUM_FRAMES + 1)]
        yield Card(records[key]["transcript"], list(map(_panel, frames)), summary, right[key])


def _panel(image: Path, text: str = "", right: bool = True) -> Panel:
    data = base64.b64encode(image.read_bytes()).decode("ascii")
    return Panel(image.name, f"data:image/jpeg;base64,{data}", text, right)
