"""Trainings of small models in which memory must not grow, or weights must be equal, for
``full_size.py``."""

import re
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from _process_tree import Watch, measure

MARKS = (500, 1000, 1500, 2000)
# updates before each, of whose batches some need more memory than others
WINDOW = 200
MOST_GROWTH = 1.02
WORKERS = {
    "none": ("fork", "fresh", 0),
    "forked": ("fork", "fresh", 2),
    "forked, persistent": ("fork", "persistent", 2),
    "spawned": ("spawn", "fresh", 2),
    "spawned, persistent": ("spawn", "persistent", 2),
}
SMALL = (
    "--user-dir fairseq_mm --optimizer adam --lr 1e-3 --clip-norm 1 --disable-validation "
    "--no-epoch-checkpoints --required-batch-size-multiple 1 --seed 1 --log-format simple"
)
# by release: a small model
SYSTEMS = {
    "writingprompts": "--task hierarchical_story --arch conv_story_tiny --criterion "
    "chunked_cross_entropy --max-tokens 1500",
    "vist": "--task visual_storytelling --arch glac_tiny --criterion cross_entropy --batch-size 8",
    "coco": "--task multimodal_captioning --arch m_rnn_tiny --criterion cross_entropy "
    "--batch-size 32",
    "how2": "--task video_summarization --arch vg_bart_tiny --video-encoder-layers 0 "
    "--criterion cross_entropy --batch-size 32",
}


def check_updates(name: str, data: Path, out: Path, root: Path, env: Mapping[str, str]) -> Any:
    """The memory of a training before ``MARKS`` updates, in bytes, and the command: the median of
    looks during ``WINDOW`` updates."""
    log = out / "updates.log"
    log.unlink(missing_ok=True)  # an earlier run has reached the marks
    command = (
        f"fairseq-train {data} {SYSTEMS[name]} {SMALL} --max-update {MARKS[-1] + 40} --cpu "
        f"--num-workers 1 --log-interval 20 --no-save --save-dir {out / 'updates'}"
    )
    watch = Watch(command.split(), log, root, env)
    looks: dict[int, list[int]] = {mark: [] for mark in MARKS}
    while watch.is_running():
        last = max(map(int, re.findall(r"num_updates=(\d+)", log.read_text())), default=0)
        for mark in MARKS:
            if mark - WINDOW < last <= mark:
                looks[mark].append(watch.memory()[0])
        time.sleep(0.05)
    measured = watch.wait()
    found = {mark: int(statistics.median(sizes)) for mark, sizes in looks.items() if sizes}
    growth = found[MARKS[-1]] / found[MARKS[0]] if len(found) == len(MARKS) else float("inf")
    sizes = ", ".join(f"{found.get(mark, 0) / 1e6:.0f}" for mark in MARKS)
    return {
        "command": watch.command,
        "status": measured.status,
        "anonymous": found,
        "summary": f"{sizes} MB after {', '.join(f'{mark:,}' for mark in MARKS)} updates",
        "holds": measured.status == 0 and growth < MOST_GROWTH,
    }


def check_workers(name: str, data: Path, out: Path, root: Path, env: Mapping[str, str]) -> Any:
    """Trainings of two epochs, one for each of ``WORKERS``: those whose weights are others than
    those without workers, and the command."""
    weights: dict[str, Any] = {}
    failed = []
    command = ""
    for kind, (start, persistence, workers) in WORKERS.items():
        folder = out / f"workers-{start}-{persistence}-{workers}"
        command = (
            f"python benchmarks/_train_with_workers.py {start} {persistence} {data} "
            f"{SYSTEMS[name]} {SMALL} --train-subset valid --max-epoch 2 --cpu "
            f"--num-workers {workers} --save-dir {folder}"
        )
        if measure(command.split(), out / "workers.log", root, env).status:
            failed.append(kind)
            continue
        state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
        weights[kind] = state["model"]
    first = weights.get("none", {})
    other = [
        kind
        for kind, model in weights.items()
        if model.keys() != first.keys() or any(not model[x].equal(first[x]) for x in first)
    ]
    return {
        "command": command,
        "failed": failed,
        "other": other,
        "summary": f"{len(weights) - len(other)} of {len(WORKERS)} equal",
        "holds": not failed and not other,
    }


CHECKS = {"updates": check_updates, "workers": check_workers}
