"""Makes outputs of ``tests/data/golden``, and the checkpoint of a new system.

  python tests/golden/make_golden.py --outputs                what the code at hand gives
  python tests/golden/make_golden.py --outputs --folder /tmp/outputs --family captions
  python tests/golden/make_golden.py --compare /tmp/outputs   with those that are kept
  python tests/golden/make_golden.py --checkpoint NAME        of a new row in systems.py

Outputs are made again when a change of behaviour is wanted; the diff then shows what it changes.
Checkpoints that are there stay as they are: they stand for those that people have.
"""

import argparse
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import torch
from golden_commands import train
from golden_files import DATA, GOLDEN, OUTPUTS, pack, read_outputs, unpack, write_outputs
from golden_records import failures
from invocations import CHECKPOINT, OUTPUT_FILES, matrix, run
from systems import FAMILIES, SYSTEMS, training_options


def unpack_all(root: Path) -> Path:
    for archive in (DATA, *FAMILIES):
        unpack(archive, root)
    return root


def make_checkpoint(root: Path, name: str, noise: float) -> None:
    """Train a system for an epoch, and add it to the archive of its family.

    Noise is added to the weights, so that each input gets a text of its own; look at the outputs,
    and choose other noise where texts are equal, or never end.
    """
    system = SYSTEMS[name]
    folder = root / system.family / name
    train(
        *(*training_options(root, system), "--save-dir", folder, "--cpu", "--max-epoch", 1),
        *("--batch-size", 8, "--required-batch-size-multiple", 1, "--num-workers", 0, "--seed", 1),
        *("--optimizer", "adam", "--lr", 0.02, "--log-format", "none", "--no-epoch-checkpoints"),
        *("--no-save-optimizer-state", "--disable-validation"),
    )
    state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
    (folder / "checkpoint_last.pt").unlink()
    state["cfg"] = _without_folders(state["cfg"], str(root))
    state["extra_state"] = {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}}
    generator = torch.Generator().manual_seed(0)
    # tensors that are shared are moved once
    for values in {x.data_ptr(): x for x in state["model"].values()}.values():
        if values.is_floating_point():
            values += noise * torch.randn(values.shape, generator=generator)
            # two bytes that say nothing, which an archive needs no room for
            values.copy_(values.bfloat16())
    torch.save(state, folder / CHECKPOINT)
    pack([root / system.family], root, GOLDEN / f"{system.family}.tar.gz")


def _without_folders(value: Any, root: str) -> Any:
    """Return options with relative paths, and without the place of the package."""
    if isinstance(value, dict):
        found = {key: _without_folders(content, root) for key, content in value.items()}
        return {**found, "user_dir": "fairseq_mm"} if "user_dir" in found else found
    if isinstance(value, list):
        return [_without_folders(content, root) for content in value]
    if isinstance(value, Namespace):
        return Namespace(**_without_folders(vars(value), root))
    return value.replace(f"{root}/", "") if isinstance(value, str) else value


def make_outputs(root: Path, folder: Path, families: Sequence[str]) -> int:
    """Run every invocation on the checkpoints that are kept; return how many fail."""
    failed = 0
    for family in families:
        outputs: dict[str, Any] = {}
        for entry in matrix(family):
            print(f"{entry.system}, {entry.name}", flush=True)
            try:
                outputs.setdefault(entry.system, {})[entry.name] = run(root, entry)
            except Exception as error:  # the others are made all the same
                failed += 1
                print(f"FAILED {error!r}", flush=True)
        write_outputs(folder, family, outputs)
    return failed


def compare(folder: Path, families: Sequence[str]) -> int:
    """Print how outputs of other code differ from those that are kept; return how many do."""
    count = 0
    for family in families:
        kept, others = read_outputs(OUTPUTS, family), read_outputs(folder, family)
        for entry in matrix(family):
            pair = [outputs.get(entry.system, {}).get(entry.name) for outputs in (kept, others)]
            wrong = list(failures(entry, *pair))
            count += bool(wrong)
            print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{count} outputs differ")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", choices=tuple(SYSTEMS), metavar="NAME", help="make it")
    parser.add_argument("--noise", type=float, default=0.5, help="of the checkpoint's weights")
    parser.add_argument("--outputs", action="store_true", help="make outputs")
    parser.add_argument("--compare", type=Path, metavar="FOLDER", help="of other outputs")
    parser.add_argument("--folder", type=Path, default=OUTPUTS, help="of outputs to write")
    parser.add_argument("--family", nargs="+", choices=OUTPUT_FILES, default=OUTPUT_FILES)
    args = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as name:
        root = unpack_all(Path(name).resolve())
        if args.checkpoint:
            make_checkpoint(root, args.checkpoint, args.noise)
        if args.outputs:
            status = make_outputs(root, args.folder, args.family)
    if args.compare:
        status = compare(args.compare, args.family)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
