"""Count the launches and synchronisations of a training update and of a decoding step.

    OMP_NUM_THREADS=1 python benchmarks/launches.py [SYSTEM ...] [--published] [--json FILE]

No GPU is needed: ``_launch_counting.py`` says how launches and synchronisations are counted on a
CPU. The systems have the depths, options and optimizers of their recipes, and the texts their
usual lengths, but layers are narrow (``--published``: as wide as published). The number of launches
does not depend on the widths; the allocated memory does. The first table is of one update of
fairseq's trainer:

- passes: batches of an update, whose gradients are added up;
- forward, backward: mean of a pass;
- rest: scaling and clipping of the gradients, optimizer, and log, once per update;
- update: all passes and the rest.

The second table is of one step of generation, by beam search and by sampling. Below the tables,
each synchronisation inside the package is listed with its file and line.
"""

import argparse
import contextlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _launch_counting import Counts, counted, phase
from _markdown import print_row
from _system_training import _batches, tasks, training_configuration, unpack_data
from fairseq.trainer import Trainer
from golden_files import DATA
from systems import CAPTIONER, EMBEDDING, STORY, STRUCTURED, SUMMARIZER, TASKS, VISUAL_STORY

BATCH = (
    *("--batch-size", "3", "--required-batch-size-multiple", "1", "--num-workers", "0", "--cpu"),
    *("--seed", "1", "--log-format", "none", "--no-save", "--disable-validation"),
)
# as many types as the published vocabulary of stories
STORY_TYPES = 104_960
STEPS = 4, 8


class Training(NamedTuple):
    """Training of a recipe.

    Attributes:
        kind: Kind of system, see ``tests/golden/systems.py``.
        data: Data folder.
        options: Options of fairseq-train.
        widths: Options for narrow layers.
        words: Length of the texts in tokens; 0 for their own length.
        passes: Number of batches of an update.
    """

    kind: str
    data: str
    options: str
    widths: str = ""
    words: int = 0
    passes: int = 1


_NAG = "--optimizer nag --momentum 0.99 --lr 0.25 --clip-norm 0.1 --weight-decay 1e-7"
_CONV = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8 "
    "--encoder-layers [(8,3)]*2+[(12,3)] --decoder-layers [(8,4)]*4+[(12,4)]*2+[(16,4)]"
)
_FUSED = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8 "
    "--encoder-layers [(8,3)]*2+[(12,3)]*3 --decoder-layers [(8,4)]*3+[(12,4)]*2"
)
_STORY = f"--batch-size 1 --criterion chunked_cross_entropy --max-target-positions 1022 {_NAG}"
_ADAM_L2 = "--optimizer adam_l2 --weight-decay 1e-5"
_ADAM = "--optimizer adam --lr 1e-3"
_ADDED = "--optimizer adam_parameter_groups --weight-decay 1e-5 --clip-norm 1"
_VIDEO = "--max-source-positions 600 --max-target-positions 200"
SYSTEMS = {
    "conv_story_gated": Training(
        STORY, "prompts", f"--arch conv_story_gated {_STORY}", _CONV, words=1000, passes=8
    ),
    "conv_story_fusion": Training(
        STORY,
        "prompts",
        f"--arch conv_story_fusion {_STORY} --pretrained-checkpoint {{root}}/trained.pt",
        _FUSED,
        words=1000,
        passes=8,
    ),
    "transtory_xl": Training(
        VISUAL_STORY,
        "stories",
        f"--arch transtory_xl {_ADAM_L2} --lr 1e-4",
        "--picture-dim 6 --embedding-dim 5 --model-dim 8 --head-dim 4 --decoder-ffn-dim 10",
    ),
    "glac": Training(
        VISUAL_STORY,
        "stories",
        f"--arch glac {_ADAM_L2} --lr 1e-3",
        "--picture-dim 6 --encoder-hidden-dim 4 --glocal-dim 8 --embedding-dim 5 --hidden-dim 7",
    ),
    "m_rnn": Training(
        CAPTIONER,
        "captions",
        f"--arch m_rnn {_ADAM} --clip-norm 5",
        "--embedding-dim 6 --hidden-dim 8 --multimodal-dim 10",
        words=16,
    ),
    "vse_gru": Training(
        EMBEDDING,
        "captions",
        f"--arch vse_gru {_ADAM} --clip-norm 2 --feature-scaling root --feature-dropout 0.2 "
        "--word-dropout 0.3",
        "--word-dim 6 --embed-dim 8",
        words=16,
    ),
    "vse_bow": Training(
        EMBEDDING,
        "captions",
        f"--arch vse_bow {_ADAM} --clip-norm 2 --feature-scaling root --feature-dropout 0.2 "
        "--word-dropout 0.3",
        "--word-dim 6 --embed-dim 8",
        words=16,
    ),
    "sc_nlm": Training(
        STRUCTURED,
        "captions_vectors",
        f"--arch sc_nlm {_ADAM} --clip-norm 5",
        "--num-factors 8 --attribute-dim 6",
        words=16,
    ),
    "vg_bart_base": Training(
        SUMMARIZER,
        "videos",
        f"--arch vg_bart_base --fusion multi_head {_ADDED} --lr 3e-5 --added-lr 1.5e-4 {_VIDEO}",
        "--encoder-embed-dim 24 --encoder-ffn-embed-dim 24 --decoder-ffn-embed-dim 24 "
        "--fusion-dim 24 --video-encoder-heads 1 --video-encoder-ffn-dim 12",
        words=64,
        passes=12,
    ),
    "vg_t5_base": Training(
        SUMMARIZER,
        "videos",
        f"--arch vg_t5_base --fusion multi_head {_ADDED} --lr 6e-4 --added-lr 1.5e-4 {_VIDEO}",
        "--model-dim 24 --attention-heads 12 --head-dim 2 --ffn-dim 24 --fusion-dim 24 "
        "--video-encoder-heads 1 --video-encoder-ffn-dim 12",
        words=64,
        passes=12,
    ),
}


def add_types(folder: Path) -> None:
    """Give the dictionaries of a data folder as many types as the published one."""
    for path in folder.glob("dict.*txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        lines += [f"type{number} 1" for number in range(STORY_TYPES - len(lines))]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make_configuration(root: Path, training: Training, *, published: bool) -> Any:
    options = training.options.format(root=root).split()
    task = TASKS[training.kind].split()
    # the recipe's criterion and lengths come after the small ones and replace them
    arguments = [str(root / DATA / training.data), *BATCH, *task, *options]
    if training.data == "captions_vectors":
        vectors = root / DATA / training.data
        arguments += ["--features", f"{vectors / 'train.h5'}:{vectors / 'valid.h5'}"]
    return training_configuration(*arguments, *("" if published else training.widths).split())


def build_trainer(cfg: Any) -> Trainer:
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def first_batch(trainer: Trainer, words: int) -> Any:
    """Return the first training batch, with texts that are repeated up to ``words`` tokens."""
    (batch,) = next(_batches(trainer, 1))
    if words:
        texts = batch["net_input"] | {"target": batch["target"]}
        for name in ("prev_output_tokens", "target", "tokens", "tags"):
            text = texts.get(name)
            if isinstance(text, torch.Tensor) and text.dim() == 2:
                times = -(-words // text.size(1))
                place = batch if name == "target" else batch["net_input"]
                place[name] = text.repeat(1, times)[:, :words].contiguous()
        batch["ntokens"] = int(batch["target"].ne(trainer.task.target_dictionary.pad()).sum())
    return batch


def count_update(trainer: Trainer, training: Training) -> Counts:
    """Count one update, after an update that has created the optimizer's state.

    The passes after the second are taken to be like the second, which adds its gradients to those
    of the first.
    """
    batch = first_batch(trainer, training.words)
    _name_phases(trainer)
    trainer.train_step([batch])
    found = []
    for passes in range(1, min(training.passes, 2) + 1):
        with counted() as counts:
            trainer.train_step([batch] * passes)
        found.append(counts)
    return found[-1].extrapolated(found[0], training.passes - 1)


def _name_phases(trainer: Trainer) -> None:
    """Let the trainer's calls of criterion and optimizer name their phases."""
    for owner, method, name in (
        (trainer.criterion, "forward", "forward"),
        (trainer.optimizer, "backward", "backward"),
        (trainer.optimizer, "multiply_grads", "clipping"),
        (trainer.optimizer, "clip_grad_norm", "clipping"),
        (trainer.optimizer, "step", "optimizer"),
    ):
        setattr(owner, method, _in_phase(getattr(owner, method), name))


def _in_phase(function: Any, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with phase(name):
            return function(*args, **kwargs)

    return call


class _StopGeneration(Exception):  # noqa: N818
    """Enough steps were generated."""


def count_step(trainer: Trainer, *, sampling: bool) -> Counts:
    """Count one decoding step: the mean of steps ``STEPS[0]`` to ``STEPS[1] - 1``."""
    options = trainer.cfg.generation
    options.sampling, options.beam = sampling, 1 if sampling else 5
    model = trainer.model
    model.eval()
    model.prepare_for_inference_(trainer.cfg)
    generator = trainer.task.build_generator([model], options)
    counting = contextlib.ExitStack()
    steps = 0
    counts = Counts()
    decode = generator.model.forward_decoder

    def forward_decoder(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps, counts
        if steps == STEPS[0]:
            counts = counting.enter_context(counted())
        elif steps == STEPS[1]:
            counting.close()
            raise _StopGeneration
        steps += 1
        return decode(*args, **kwargs)

    generator.model.forward_decoder = forward_decoder
    with contextlib.suppress(_StopGeneration), torch.no_grad(), counting:
        trainer.task.inference_step(generator, [model], first_batch(trainer, 0))
    return counts.divided(steps - STEPS[0])


def update_row(training: Training, counts: Counts) -> dict[str, Any]:
    """Return the figures of an update, for the table and for ``--json``."""
    launches = counts.launches
    passes = launches["forward"] + launches["backward"]
    inside = [counts.waits(phase, ours=True) for phase in ("forward", "backward")]
    return {
        "passes": training.passes,
        "forward": round(launches["forward"] / training.passes),
        "backward": round(launches["backward"] / training.passes),
        "rest": launches.total() - passes,
        "update": launches.total(),
        "synchronisations": sum(sum(places.values()) for places in inside),
        "all synchronisations": sum(counts.waits().values()),
        "MB": round(counts.bytes / 1e6, 1),
    }


@contextlib.contextmanager
def prepared(names: list[str]) -> Iterator[Path]:
    """Yield a folder with the data, and with the model that ``conv_story_fusion`` begins with."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        unpack_data(root)
        if any(SYSTEMS[name].kind == STORY for name in names):
            add_types(root / DATA / "prompts")
        if "conv_story_fusion" in names:
            trained = SYSTEMS["conv_story_gated"]
            trainer = build_trainer(make_configuration(root, trained, published=False))
            trainer.consolidate_optimizer()
            position = {"epoch": 1, "iterations_in_epoch": 0}
            state = {"train_iterator": position, "val_loss": 0.0}
            trainer.save_checkpoint(str(root / "trained.pt"), state)
        yield root


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--published", action="store_true", help="layers of the published widths")
    parser.add_argument("--operators", action="store_true", help="list launches by operator, too")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    for name in args.systems:
        if name not in SYSTEMS:
            parser.error(f"SYSTEM: must be of {', '.join(SYSTEMS)}, but is {name!r}.")
    names = args.systems or list(SYSTEMS)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    figures: dict[str, Any] = {}
    with prepared(names) as root:
        for name in names:
            training = SYSTEMS[name]
            trainer = build_trainer(make_configuration(root, training, published=args.published))
            counts = count_update(trainer, training)
            figures[name] = {"update": update_row(training, counts), "waits": counts.waits()}
            figures[name]["operators"] = dict(counts.operators.most_common())
            if training.kind in (EMBEDDING, STRUCTURED):
                continue
            for search, sampling in (("beam", False), ("sampling", True)):
                step = count_step(trainer, sampling=sampling)
                figures[name][search] = {
                    "launches": round(step.launches.total()),
                    "synchronisations": sum(step.waits(ours=True).values()),
                    "all synchronisations": sum(step.waits().values()),
                    "MB": round(step.bytes / 1e6, 2),
                }
                figures[name][f"{search} waits"] = step.waits()
    print_tables(figures, operators=args.operators)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def print_tables(figures: dict[str, Any], *, operators: bool) -> None:
    for part in ("update", "beam", "sampling"):
        rows = {name: found[part] for name, found in figures.items() if part in found}
        if not rows:
            continue
        print(f"\n{part}:\n")
        columns = list(next(iter(rows.values())))
        print_row(["system", *columns])
        print_row(["---"] * (len(columns) + 1))
        for name, row in rows.items():
            print_row([name, *row.values()])
    for name, found in figures.items():
        print(f"\n{name}:")
        for part in ("waits", "beam waits", "sampling waits"):
            for place, number in sorted(found.get(part, {}).items()):
                print(f"  {part}: {number} {place}")
        if operators:
            for operator, number in found["operators"].items():
                print(f"  {number} {operator}")


if __name__ == "__main__":
    main()
