"""Extracts features of images or videos into a feature store.

  fairseq-mm extract images/ --model resnet152 --output data/features.h5
  fairseq-mm extract data.jsonl --model vgg16 --grid --output data/grid.h5
  fairseq-mm extract videos/ --model resnext101_3d --ids stem \\
      --weights resnext-101-kinetics.pth --output data/features.h5

If a run is interrupted, the same command continues it, unless a file has changed.
Unreadable files are listed in OUTPUT.unreadable.tsv.
"""

import argparse
import hashlib
import os
import re
import sys
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, NATURAL, POSITIVE, Rows
from fairseq_mm.cli.run_set_up import keep_freed_memory
from fairseq_mm.extract.media import ID_FORMS, IMAGES, MAX_PIXELS, VIDEOS, list_images
from fairseq_mm.extract.preprocessing import CROPS, NORMALIZATIONS, RESIZES


class _ListModels(argparse.Action):
    """Action of ``--list-models``, which makes all other arguments optional."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        setattr(namespace, self.dest, values or "")
        for action in parser._actions:
            action.required = False


def _shard(text: str) -> str:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"must be 1/N to N/N, such as 1/4, but is {text}")
    return text


ARGUMENTS: dict[str, Rows] = {
    "images or videos": {
        "inputs": (
            "Folder, file, .tar, or .jsonl with `image` or `video`.",
            {"nargs": "*", "metavar": "INPUT"},
        ),
        "--ids": (
            "Ids in the store: dog.jpg (default), dog, or a/dog.jpg.",
            {"choices": ID_FORMS, "default": "name"},
        ),
        "--shard": (
            "Extract part I of N, for fairseq-mm store merge.",
            {"metavar": "I/N", "type": _shard},
        ),
    },
    "network": {
        "--model": (
            "Classifier of torchvision (images or videos), timm:NAME, or resnext101_3d.",
            {"required": True, "metavar": "NAME"},
        ),
        "--list-models": (
            "Only list models, such as 'timm:vit_small*'.",
            {"action": _ListModels, "nargs": "?", "metavar": "PATTERN"},
        ),
        "--weights": ("State dict file, name of published weights, or none.", {"metavar": "FILE"}),
        "--layer": ("Other layer of a torchvision model.", {"metavar": "NAME"}),
        "--grid": ("Write a row per position of the last feature map.", FLAG),
        "--seed": (
            "Seed of random weights (default: 0).",
            {"type": int, "default": 0, "metavar": "N"},
        ),
    },
    "clips of videos": {
        "--frames-per-clip": ("Frames per row (default: 16).", {**POSITIVE, "dest": "frames"}),
        "--stride": ("Frames between the starts of clips.", POSITIVE),
        "--fps": (
            "Resample to this frame rate (default: 0, do not).",
            {"type": float, "metavar": "X"},
        ),
    },
    "preprocessing (default: the model's own)": {
        "--resize": ("Resize the short side, both sides, or nothing.", {"choices": RESIZES}),
        "--size": ("Side of the network's input in pixels.", POSITIVE),
        "--resize-size": ("Side before the crop in pixels.", POSITIVE),
        "--crop": ("Crop the centre, or nothing.", {"choices": CROPS}),
        "--normalize": ("Mean and standard deviation.", {"choices": NORMALIZATIONS}),
        "--max-pixels": (
            "Limit of image sizes (default: %(default)s).",
            {**POSITIVE, "default": MAX_PIXELS},
        ),
    },
    "run": {
        "--output": ("Feature store to write.", {"required": True, "metavar": "FILE"}),
        "--dtype": (
            "Type of the numbers (default: float16).",
            {"choices": ("float16", "float32"), "default": "float16"},
        ),
        "--device": (
            "Device: cpu, cuda or cuda:1 (default: a GPU if any).",
            {"default": "auto", "metavar": "NAME"},
        ),
        "--batch-size": ("Images or clips per batch.", POSITIVE),
        "--workers": ("Decoding processes; 0 for none.", NATURAL),
        "--strict": ("Stop at the first unreadable image or video.", FLAG),
        "--overwrite": ("Replace a finished store at OUTPUT.", FLAG),
    },
}
# options of preprocessing have no default: each network has a preprocessing of its own
BUILD_OPTIONS = (
    *("weights", "layer", "grid", "seed", "device"),
    *("frames", "stride", "fps"),
    *("resize", "size", "resize_size", "crop", "normalize"),
)
RUN_OPTIONS = ("batch_size", "workers", "dtype", "overwrite", "strict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for title, rows in ARGUMENTS.items():
        group = parser.add_argument_group(title)
        arguments.add_rows(group, rows)
    precision = group.add_mutually_exclusive_group()
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        precision.add_argument(
            f"--{name}",
            action="store_const",
            const=name,
            dest="precision",
            default="fp32",
            help=f"Compute in {dtype}.",
        )


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.extract.extractor import build_extractor, find_family
    from fairseq_mm.extract.runner import extract_to_store

    if args.list_models is not None:
        print("\n".join(_list_models(args.list_models)))
        return 0
    kind = VIDEOS if find_family(args.model).reads == "videos" else IMAGES
    items = list_images(args.inputs, ids=args.ids, kind=kind)
    output = args.output
    shard: dict[str, Any] = {}
    if args.shard is not None:
        number, count = map(int, args.shard.split("/"))
        # parts of different lists have different digests, and store merge refuses them
        ids = hashlib.sha256("\n".join(item.key for item in items).encode()).hexdigest()
        shard = {"shard": f"{number}/{count}", "shard_of": ids[:16]}
        items = items[len(items) * (number - 1) // count : len(items) * number // count]
        root, suffix = os.path.splitext(output)
        output = f"{root}.{args.shard.replace('/', 'of')}{suffix}"
    arguments.check_writable("--output", output)
    keep_freed_memory()
    extractor = build_extractor(
        args.model,
        precision=args.precision,
        **{name: getattr(args, name) for name in BUILD_OPTIONS},
    )
    reader = extractor.reader(max_pixels=args.max_pixels)
    try:
        summary = extract_to_store(
            extractor,
            reader,
            items,
            output,
            show_progress=True,
            shard=shard,
            **{name: getattr(args, name) for name in RUN_OPTIONS},
        )
    except KeyboardInterrupt:
        print(
            f"\ninterrupted: what is done stands in {output}.partial; the same command continues.",
            file=sys.stderr,
        )
        return 130  # as a shell reports SIGINT, so that scripts can tell it from an error
    print(_describe(summary, output, extractor.dim, reader))
    return 0


def _list_models(pattern: str) -> list[str]:
    """Return the lines to print for ``--list-models``: names that match ``pattern``; if it is
    empty, torchvision's models and the form of other names."""
    from fairseq_mm.extract.backbones import list_clip_models, list_image_models
    from fairseq_mm.extract.extractor import list_models

    if pattern:
        return list_models(pattern)
    return [
        *list_image_models(),
        "for videos:",
        *list_clip_models(),
        "for images, of timm:",
        "timm:NAME (--list-models 'timm:*resnet*' lists those that match)",
    ]


def _describe(summary: Any, output: str, dim: int, reader: Any) -> str:
    from fairseq_mm.extract.run_files import unreadable_path

    noun = reader.kind.fields
    text = f"{output}: {summary.num_items} {noun} of feature dimension {dim}, "
    text += f"{summary.num_unreadable} unreadable"
    if summary.num_unreadable:
        text += f" ({unreadable_path(output)})"
    seconds = max(summary.seconds, 1e-9)  # a run in which nothing could be read divides by it
    inputs = "" if reader.inputs_per_file else f"with {summary.num_inputs} {reader.inputs_are}, "
    return (
        f"{text}; {summary.num_extracted} in this run, {inputs}{summary.num_inputs / seconds:.1f} "
        f"a second ({summary.seconds_network / seconds:.0%} of the time in the network, "
        f"{summary.seconds_waiting / seconds:.0%} waiting for decoding)."
    )
