"""What is killed: the commands that write files, and trainings of every system, on small data."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("fuzz", "golden", ".")]

import fuzz_targets  # noqa: E402
from fuzz_targets import SHORT  # noqa: E402
from golden_data import CLIPS  # noqa: E402
from systems import SYSTEMS, training_options  # noqa: E402

import fairseq_mm  # noqa: E402
from fairseq_mm.cli.main import main  # noqa: E402

TRAIN, LOG = "fairseq-train", "training.log"
PACKAGE = Path(fairseq_mm.__file__).parent


class Target(NamedTuple):
    """
    Attributes:
        command: the program and its arguments in the folder of :func:`make_inputs`; ``{out}`` is
            the folder that it writes to.
        name: under which its kills are counted.
        given: name of a file of the inputs that stands in the output folder before.
    """

    name: str
    command: str
    given: str = ""

    @property
    def is_training(self) -> bool:
        return self.name.startswith(TRAIN)

    def words(self, out: Path) -> list[str]:
        return shlex.split(self.command.replace("{out}", str(out)))

    def lay_out(self, root: Path, out: Path) -> None:
        """Makes the output folder as it is before the command runs."""
        out.mkdir()
        if self.given:
            shutil.copy(root / "more" / self.given, out)


def make_inputs(root: Path) -> None:
    """Those of the fuzzer, and what only long commands read."""
    fuzz_targets.make_inputs(root)
    own = root / "data/releases/own"
    for name in ("one", "two"):
        made = f"--threshold 1 --valid-size 2 --output {root}/more/{name}"
        main(f"prepare captions {own}/captions.jsonl {made}".split())
        shutil.copy(own / "features.h5", root / "more" / name)


SCORED = "--data data/captions --split valid --metrics bleu,cider"
RANKED = "--split valid --device cpu --output {out}"


def _commands() -> Iterator[Target]:
    for target in fuzz_targets.TARGETS:
        if "{out}" in target.command:
            yield Target(target.name, target.command)
    yield Target("prepare join", "prepare join more/one more/two --threshold 1 --output {out}/made")
    yield Target(
        "prepare --overwrite",
        "prepare captions data/releases/own/captions.jsonl --threshold 1 --valid-size 2 "
        "--output {out}/made --overwrite",
    )
    yield Target(
        "prepare videos with OOV tokens",
        "prepare videos data/releases/own/videos.jsonl --valid-size 2 --workers 1 --threshold 3 "
        "--indexed-oov 4 --output {out}/made",
    )
    for name, options in (("extract images", ""), ("extract in this process", "--workers 0")):
        yield Target(
            name,
            "extract data/images --model squeezenet1_1 --weights data/extractor/squeezenet.pth "
            f"--resize squash --size 33 --batch-size 2 --device cpu --output {{out}}/o.h5 "
            f"{options}",
        )
    yield Target(
        "extract videos",
        f"extract data/clips --model {CLIPS} --weights none --size 16 --frames-per-clip 4 "
        "--batch-size 2 --device cpu --output {out}/o.h5",
    )
    yield Target(
        "index",
        "index data/images --checkpoint captions/vse_images --batch-size 2 --device cpu "
        "--weights data/extractor/squeezenet.pth --output {out}/o.h5",
    )
    yield Target(
        "store verify --repair", "store verify {out}/store.old.h5 --repair", "store.old.h5"
    )
    yield Target(
        "store merge --overwrite",
        "store merge data/captions/features.h5 data/releases/own/features.h5 {out}/store.old.h5 "
        "--overwrite",
        "store.old.h5",
    )
    yield Target(
        "score --json",
        f"score more/captions.jsonl {SCORED} --json {{out}}/s.json --card {{out}}/card.json "
        "--per-item {out}/items.jsonl",
    )
    yield Target(
        "score --system --json",
        "score --system more/items.jsonl --text-only more/items.jsonl --baseline 62.3,46.1,58.2 "
        "--bootstrap 10 --json {out}/gain.json",
    )
    yield Target(
        "study score --json",
        f"python {fuzz_targets.STUDY} score more/sheets more/sheets/answers.csv --bootstrap 20 "
        "--json {out}/s.json",
    )
    yield Target(
        "perplexity --json",
        "perplexity data/stories --checkpoint stories/glac --split valid --device cpu "
        "--json {out}/p.json",
    )
    yield Target(
        "rank by likelihood",
        "rank data/captions --checkpoint captions/m_rnn --marginal-images 3 --shortlist 2 "
        f"--block-rows 16 {RANKED}",
    )
    for data, model in (("prompts", "prompts/conv_story"), ("stories", "stories/glac")):
        yield Target(
            f"rank {data}",
            f"rank data/{data} --checkpoint {model} --candidates 4 --draws 2 --batch-tokens 60 "
            f"{RANKED}",
        )
    yield Target(
        "caption images",
        "caption data/images/valid0.jpg data/images/valid1.jpg --checkpoint captions/m_rnn_images "
        f"--weights data/extractor/squeezenet.pth {SHORT} --device cpu --output {{out}}/o.txt",
    )


# the update is within an epoch; with this learning rate, the validation loss grows again
STOPS = {
    "an update": "--max-update 3",
    "no gain": "--max-epoch 9 --patience 2 --lr 0.2 --clip-norm 0",
}


def _trainings() -> Iterator[Target]:
    often = (
        f"--user-dir {PACKAGE} --cpu --num-workers 0 --batch-size 4 --max-epoch 2 --seed 1 "
        "--required-batch-size-multiple 1 --optimizer adam --lr 0.01 --clip-norm 1 "
        "--save-interval-updates 1 --keep-interval-updates 2 --save-dir {out} "
        f"--log-format json --log-interval 1 --log-file {{out}}/{LOG}"
    )
    for system in SYSTEMS.values():
        options = " ".join(training_options(Path(), system))
        yield Target(f"{TRAIN} {system.name}", f"{TRAIN} {options} {often}")
    for base, name, options in (
        ("m_rnn", "bfloat16", "--bf16 --memory-efficient-bf16"),
        ("m_rnn", "two batches an update", "--update-freq 2"),
        ("m_rnn", "a worker", "--num-workers 1"),
        ("vse_gru", "max after sum", "--negatives max --sum-updates 3"),
        (
            "vg_bart",
            "two rates",
            "--optimizer adam_parameter_groups --added-lr 0.02 --lr-scheduler epoch_decay "
            '--decay-epochs 1 --eval-gen --eval-gen-args \'{"beam": 2, "max_len_b": 6}\'',
        ),
    ):
        of_base = " ".join(training_options(Path(), SYSTEMS[base]))
        yield Target(f"{TRAIN} {base}, {name}", f"{TRAIN} {of_base} {often} {options}")
    for base in ("m_rnn", "conv_story", "glac", "vg_bart"):
        of_base = " ".join(training_options(Path(), SYSTEMS[base]))
        for name, options in STOPS.items():
            yield Target(f"{TRAIN} until {name}, {base}", f"{TRAIN} {of_base} {often} {options}")


def _with_program(target: Target) -> Target:
    """Prepend ``fairseq-mm`` to the name and, unless it names another program, to the command."""
    is_whole = target.command.startswith("python ")
    command = target.command if is_whole else f"fairseq-mm {target.command}"
    return Target(f"fairseq-mm {target.name}", command, target.given)


TARGETS = [
    *(_with_program(target) for target in _commands()),
    *_trainings(),
]
