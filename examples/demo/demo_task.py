"""Base of the demo's tasks: sizes, and the steps of drawing, extraction and training."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Union

from drawings.clip_collection import SummaryVerdict
from drawings.records import Verdict
from step_runner import PACKAGE, StepRunner

AnyVerdict = Union[Verdict, SummaryVerdict]
SEE = "Train a small image network"


class Sizes(NamedTuple):
    """Numbers of drawn items, and of epochs and items a batch in training."""

    train: int
    valid: int
    test: int
    epochs: int
    batch: int

    @property
    def splits(self) -> dict[str, int]:
        return {"train": self.train, "valid": self.valid, "test": self.test}


class AllSizes(NamedTuple):
    """Sizes of all tasks.

    Attributes:
        close_ups: Number of images of single things that the image network is trained on.
        whole_images: Number of whole images that it is trained on.
        captions: Images.
        stories: Stories of five images.
        search_epochs: Epochs of the embedding, which is trained on the captioned images.
        photos: Number of images that are searched.
        queries: Number of sentences that are searched for.
        tales: Prompts with stories.
        clips: Clips of four frames.
    """

    close_ups: int
    whole_images: int
    captions: Sizes
    stories: Sizes
    search_epochs: int
    photos: int
    queries: int
    tales: Sizes
    clips: Sizes


SIZES = AllSizes(
    close_ups=10_000,
    whole_images=12_000,
    captions=Sizes(8000, 100, 500, epochs=3, batch=32),
    stories=Sizes(2500, 50, 100, epochs=9, batch=16),
    search_epochs=3,
    photos=200,
    queries=100,
    tales=Sizes(2000, 50, 100, epochs=6, batch=32),
    clips=Sizes(1600, 50, 100, epochs=8, batch=16),
)


class DemoTask:
    """One of the five tasks.

    Attributes:
        name: Name of the folder.
        title: Heading on the page.
        about: Sentences that say what the model reads and writes.
        items: Name of the test items, plural.
        right: Condition of a right item, a clause.
        task: Name of the fairseq task.
        model: Options of the model.
        training: Options of its training.
        steps: Number of steps.
        drawn: Title of the last step of ``draw``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    items: ClassVar[str]
    right: ClassVar[str]
    task: ClassVar[str]
    model: ClassVar[str]
    training: ClassVar[str]
    seed_offset: ClassVar[int] = 0
    steps: ClassVar[int]
    drawn: ClassVar[str]

    def __init__(self, runner: StepRunner, root: Path, sizes: AllSizes, seed: int) -> None:
        self.runner = runner
        self.root = root
        self.folder = root / self.name
        self.data = self.folder / "data"
        self.checkpoints = self.folder / "checkpoints"
        self.weights = root / "recognizer.pt"
        self.sizes = sizes
        self.seed = seed
        self.titles: list[str] = []  # of the steps that are commands

    @property
    def kinds(self) -> dict[str, str]:
        """Description of each kind of test items."""
        return {}

    def draw(self) -> None:
        """Draw the items and prepare their texts; needs no other step."""

    def learn(self) -> None:
        """Extract features, train and generate."""
        raise NotImplementedError

    def verdicts(self) -> Sequence[AnyVerdict]:
        """Return the verdicts on the texts that were generated for the test items."""
        raise NotImplementedError

    def baseline(self) -> Sequence[AnyVerdict]:
        """Return the verdicts on the most common answer."""
        raise NotImplementedError

    def _draw(self, title: str, function: str, **arguments: Any) -> None:
        self.folder.mkdir(exist_ok=True)
        self.runner.call(
            title, f"drawings.{function}", folder=self.folder, seed=self.seed, **arguments
        )

    def _command(self, title: str, *parts: Union[str, Path], **options: Any) -> None:
        self.titles.append(title)
        self.runner.command(title, *parts, **options)

    def _extract(self, title: str, images: Path, options: str, output: Path) -> None:
        self.runner.wait_for(self.drawn)
        self.runner.wait_for(SEE)
        self._command(
            title,
            *("fairseq-mm extract", images, "--model resnet18 --weights", self.weights),
            f"--layer layer3 {options} --resize-size 64 --size 64 --batch-size 64 --device cpu",
            *("--overwrite --output", output),
        )

    def _train(self, title: str, data: Path, texts: int, sizes: Sizes, criterion: str) -> None:
        package = PACKAGE
        if Path.cwd() in package.parents:
            package = package.relative_to(Path.cwd())
        num_updates = sizes.epochs * -(-texts // sizes.batch)
        self._command(
            title,
            *("fairseq-train", data, "--user-dir", package, f"--task {self.task} --cpu"),
            f"{self.model} --criterion {criterion} --optimizer adam {self.training}",
            f"--lr-scheduler polynomial_decay --total-num-update {num_updates}",
            f"--batch-size {sizes.batch} --max-epoch {sizes.epochs} "
            f"--seed {self.seed + self.seed_offset}",
            *("--no-epoch-checkpoints --log-format simple --save-dir", self.checkpoints),
            shown=lambda line: shorten_validation(line, sizes.epochs),
        )


def shorten_validation(line: str, epochs: int) -> str:
    """Return the figures of a validation in a line of fairseq-train's output, else ""."""
    match = re.search(r"epoch 0*(\d+) \| valid on 'valid' subset \| (.*)", line)
    if match is None:
        return ""
    figures = dict(re.findall(r"(\w+) (\S+)", match[2]))
    shown = [f"{name} {figures[name]}" for name in ("ppl", "rsum") if name in figures]
    return f"epoch {match[1]} of {epochs}: {', '.join(shown)}"
