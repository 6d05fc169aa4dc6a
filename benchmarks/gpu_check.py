"""What a machine's GPUs do: every system in every precision, and every command (`make gpu-check`).

    python benchmarks/gpu_check.py [--systems m_rnn glac] [--only training] [--updates 20]

Prints two tables in Markdown and writes their figures:

- training: each system, precision and number of GPUs (one, and all of them) begins with the same
  weights as a training on the CPU in float32 with the same batches; tokens a second, peak memory,
  the difference of the last losses, and the distance of the weights in the length of the CPU's way.
- outputs: every command, call and generation whose texts, scores, rankings and features the tests
  keep from a CPU, run on the GPU; the number that agree, and the first difference of the others.
  Of what is drawn at random, and of images that other libraries decode, only the ids are compared.

Both in full float32: convolutions and recurrences do not round to TF32. Without a GPU it says so
and ends with status 0. ``--device cpu`` runs the same way on the CPU.
"""

import argparse
import importlib.util
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Optional

from fairseq_mm.cli.arguments import positive

PRECISIONS = (
    *("float32", "fp16", "memory-efficient-fp16", "bf16", "memory-efficient-bf16", "amp"),
)
COLUMNS = ("system", "precision", "GPUs", "tokens/s", "peak MB", "loss", "distance")


def check_training(args: argparse.Namespace, root: Path, gpus: int) -> list[dict[str, Any]]:
    """A row for each system, precision and number of GPUs, printed as it is measured."""
    from _markdown import print_row
    from _system_training import (
        ADAM,
        chosen_systems,
        configuration,
        distance,
        first_line,
        train_by,
    )

    print_row(COLUMNS)
    print_row(["---"] * len(COLUMNS))
    rows = []
    device = ("--cpu",) if args.device == "cpu" else ()
    counts = sorted({1, max(gpus, 1)})
    for system in chosen_systems(args.systems):
        for processes in counts:
            # one process takes the batches of all before each update
            alone = ("--cpu", "--update-freq", str(processes))
            full = train_by(1, configuration(root, system, *ADAM, *alone), args.updates)
            for name in PRECISIONS:
                if name == "amp" and args.device == "cpu":
                    continue
                row: dict[str, Any] = {"system": system.name, "precision": name, "GPUs": processes}
                options = (*ADAM, *device, *(() if name == "float32" else (f"--{name}",)))
                try:
                    cfg = configuration(root, system, *options)
                    found = train_by(processes, cfg, args.updates, on_gpu=args.device != "cpu")
                except Exception as error:  # the others are tried all the same
                    row["failed"] = f"{type(error).__name__}: {first_line(error)}"
                else:
                    row["tokens/s"] = round(found.tokens_per_second)
                    row["peak MB"] = round(found.peak_memory / 1e6)
                    row["loss"] = round(found.losses[-1] - full.losses[-1], 3)
                    row["distance"] = round(distance(full.weights, found.weights, full.start), 4)
                rows.append(row)
                print_row([row.get(column, row.get("failed", "")) for column in COLUMNS])
    return rows


def check_outputs(args: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    """A row for each family of kept outputs; those that differ are printed below."""
    import invocations
    from _markdown import print_row
    from golden_files import DATA, OUTPUTS, read_outputs, unpack
    from golden_records import failures

    invocations.DEVICE = args.device
    for archive in (DATA, *invocations.FAMILIES):
        unpack(archive, root)
    print()
    print_row(["outputs", "run", "equal", "seconds"])
    print_row(["---"] * 4)
    rows, lines = [], []
    for family in invocations.OUTPUT_FILES:
        kept = read_outputs(OUTPUTS, family)
        begun, equal = time.perf_counter(), 0
        entries = [x for x in invocations.matrix(family) if can_run(x, args.systems)]
        for entry in entries:
            expected = kept.get(entry.system, {}).get(entry.name)
            try:
                found = invocations.run(root, entry)
                if not entry.exact and args.device != "cpu":
                    expected, found = ids(expected), ids(found)
                wrong = list(failures(entry, expected, found))
            except Exception as error:  # the others are run all the same
                wrong = [f"{entry.system}, {entry.name}: {error!r}"]
            equal += not wrong
            lines += wrong[:1]
        seconds = round(time.perf_counter() - begun, 1)
        rows.append({"outputs": family, "run": len(entries), "equal": equal, "seconds": seconds})
        print_row(list(rows[-1].values()))
    print("", *lines, sep="\n")
    return rows


def can_run(entry: Any, systems: Optional[list[str]]) -> bool:
    """Whether it is asked for, and the program or module that it needs is here."""
    if systems and entry.system not in systems:
        return False
    return not entry.needs or bool(
        shutil.which(entry.needs) or importlib.util.find_spec(entry.needs)
    )


def ids(records: Any) -> Any:
    return records and {name: {} for name in records}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", nargs="+", help="default: all")
    parser.add_argument("--only", choices=["training", "outputs"], help="default: both")
    parser.add_argument("--updates", type=positive, default=20)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    args = parser.parse_args()

    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus and args.device == "cuda":
        print("No GPU was found: nothing to check.")
        return 0
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    name = torch.cuda.get_device_name() if gpus else "CPU"
    print(f"PyTorch {torch.__version__}, {gpus or 'no'} GPUs: {name}\n")
    from _system_training import SYSTEMS, unpack_data

    for system in args.systems or ():
        if system not in SYSTEMS:
            parser.error(f"--systems: must be of {', '.join(SYSTEMS)}, but has {system!r}.")
    torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        unpack_data(root)
        training = check_training(args, root, gpus) if args.only != "outputs" else []
        outputs = check_outputs(args, root) if args.only != "training" else []
    found = {"device": name, "torch": torch.__version__, "training": training, "outputs": outputs}
    args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {args.json}")
    is_wrong = any("failed" in row for row in training) or any(
        row["run"] != row["equal"] for row in outputs
    )
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
