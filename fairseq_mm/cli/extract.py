"""Extracts features of images or videos into a feature store.

  fairseq-mm extract images/ --model resnet152 --output data/features.h5
  fairseq-mm extract images.tar --model vgg16 --output data/features.h5
  fairseq-mm extract data.jsonl --model resnet101 --grid --output data/grid.h5
  fairseq-mm extract --list-models 'timm:*resnet*'
  fairseq-mm extract videos/ --model resnext101_3d --ids stem \\
      --weights resnext-101-kinetics.pth --output data/features.h5

If a run is interrupted, the same command continues it, unless a file has changed.
Unreadable files are left out and listed in OUTPUT.unreadable.tsv. The store records
how the features were made; OUTPUT.videos.tsv lists frames, frame rate and length.

By default, features are fc7 after its ReLU for AlexNet and VGG, timm's pooled
vector, and else the last feature map averaged over its positions; with --grid, each
position (or patch) is a vector. Videos have a vector for each clip of 16 frames, the
input of the network's classifier. Frames after the last whole clip are left out; a
video that is shorter than a clip is repeated to fill it.
"""

import argparse
import hashlib
import os
import re
import sys
from typing import Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows
from fairseq_mm.cli.run_set_up import keep_freed_memory
from fairseq_mm.errors import UserError
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.extract.media_list import ID_FORMS, IMAGES, VIDEOS, list_images, select_shard
from fairseq_mm.extract.preprocessing import CROPS, NORMALIZATIONS, RESIZES


class _ListModels(argparse.Action):
    """Option that makes all other arguments optional, such as the network and the output."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        setattr(namespace, self.dest, values or "")
        for action in parser._actions:
            action.required = False


def _count(least: int) -> dict[str, Any]:
    """Return keyword arguments of ``add_argument`` for integers that are at least ``least``."""

    def number(text: str) -> int:
        value = int(text)  # argparse turns ValueError into "invalid number value", by this name
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, but is {value}")
        return value

    return {"type": number, "metavar": "N"}


ARGUMENTS: dict[str, Rows] = {
    "images or videos": {
        "inputs": (
            "Folder (with its subfolders), image, .tar of images, or .jsonl with `image`; or the "
            "same of videos, with `video`.",
            {"nargs": "*", "metavar": "INPUT"},
        ),
        "--ids": (
            "What an item is called in the store (default: name, such as dog.jpg; stem: dog).",
            {"choices": ID_FORMS, "default": "name"},
        ),
        "--shard": (
            "Only part I of N; writes OUTPUT with .IofN before its suffix. Join the parts with: "
            "fairseq-mm store merge.",
            {"metavar": "I/N"},
        ),
    },
    "network": {
        "--model": (
            "Any classifier of torchvision (alexnet, vgg16, resnet152, inception_v3, "
            "mobilenet_v2, ...) or timm:NAME; for videos resnext101_3d, or any video classifier of "
            "torchvision (r3d_18, r2plus1d_18, s3d, mvit_v2_s, swin3d_t, ...).",
            {"required": True},
        ),
        "--list-models": (
            "Print the names of models, and nothing else: of torchvision, or those that match a "
            "pattern such as '*resnet*' or 'timm:vit_small*'.",
            {"action": _ListModels, "nargs": "?", "metavar": "PATTERN"},
        ),
        "--weights": (
            "State dict file (.pth, .safetensors), a name of weights that torchvision or timm "
            "publish, or none (random); default: torchvision's best or timm's default, downloaded "
            "once.",
            {},
        ),
        "--layer": ("Any other layer of a torchvision model, by its node's name.", {}),
        "--grid": ("Write one row a position of the last map.", FLAG),
        "--seed": ("Seed of random weights (default: 0).", {"type": int, "default": 0}),
    },
    "clips of videos": {
        "--frames-per-clip": (
            "Number of frames that a row stands for (default: 16).",
            {**_count(1), "dest": "frames"},
        ),
        "--stride": (
            "Frames from the beginning of a clip to the next (default: those of a clip).",
            _count(1),
        ),
        "--fps": (
            "Frames a second to resample to; 0, the default, takes each frame once.",
            {"type": float},
        ),
    },
    "preprocessing (default: the model's own)": {
        "--resize": ("Resize the short side, both sides, or nothing.", {"choices": RESIZES}),
        "--size": ("Side of the network's input in pixels.", _count(1)),
        "--resize-size": ("Side before the crop in pixels (default: in proportion).", _count(1)),
        "--crop": (
            "Crop the centre, with a margin rounded as torchvision rounds it (center), or down as "
            "Hugging Face does (center_floor), or nothing.",
            {"choices": CROPS},
        ),
        "--normalize": (
            "Mean and standard deviation; caffe is BGR, 0 to 255.",
            {"choices": NORMALIZATIONS},
        ),
        "--max-pixels": (
            "Larger JPEGs are decoded at reduced scale, other images and frames refused "
            "(default: %(default)s pixels).",
            {**_count(1), "default": MAX_PIXELS},
        ),
    },
    "run": {
        "--output": ("The feature store to write.", {"required": True, "metavar": "FILE"}),
        "--dtype": (
            "Type of the stored rows (default: float16).",
            {"choices": ("float16", "float32"), "default": "float16"},
        ),
        "--device": (
            "Device: cpu, cuda or cuda:1 (default: auto, a GPU where there is one).",
            {"default": "auto"},
        ),
        "--batch-size": (
            "Images or clips a batch; default: 8 on a CPU, elsewhere 128 images or 64 clips.",
            _count(1),
        ),
        "--workers": (
            "Number of decoding processes; 0 decodes in the main one (default: by the cores).",
            _count(0),
        ),
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
            help=f"Compute in {dtype} on the device.",
        )


def run(args: argparse.Namespace) -> int:
    from fairseq_mm.extract.extractor import build_extractor
    from fairseq_mm.extract.networks import find_family
    from fairseq_mm.extract.runner import extract_to_store

    if args.list_models is not None:
        print("\n".join(_list_models(args.list_models)))
        return 0
    kind = VIDEOS if find_family(args.model).reads == "videos" else IMAGES
    if not args.inputs:
        raise UserError(f"no {kind.fields}: give folders, files or a .jsonl.")
    items = list_images(args.inputs, ids=args.ids, kind=kind)
    output = args.output
    shard: dict[str, Any] = {}
    if args.shard is not None:
        items, output, shard = _select_shard(items, output, args.shard)
    arguments.check_writable("--output", output)
    if os.path.exists(output) and not args.overwrite:
        raise UserError(f"{output}: is finished. Choose another --output, or --overwrite.")
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
    """Return the lines to print for ``--list-models``: names that match ``pattern``, or, if it is
    empty, torchvision's models and the spelling of other names."""
    from fairseq_mm.extract.backbones import list_clip_models, list_image_models
    from fairseq_mm.extract.networks import list_models

    if pattern:
        names = list_models(pattern)
        if not names:
            raise UserError(f"--list-models {pattern}: no model matches.")
        return names
    return [
        *list_image_models(),
        "for videos:",
        *list_clip_models(),
        "for images, of timm:",
        "timm:NAME (--list-models 'timm:*resnet*' lists those that match)",
    ]


def _select_shard(items: list, output: str, shard: str) -> tuple[list, str, dict[str, Any]]:
    """Return the items and the output of shard ``I/N`` of a run, and the attributes by which
    ``store merge`` recognises shards of the same run."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None:
        raise UserError(f"--shard must be I/N, such as 1/4, but is {shard} instead.")
    root, suffix = os.path.splitext(output)
    part = select_shard(items, int(match[1]), int(match[2]))
    # parts of different lists have different digests, and store merge refuses them
    ids = hashlib.sha256("\n".join(item.key for item in items).encode()).hexdigest()
    # int: 01/04 and 1/4 name one part
    attributes = {"shard": f"{int(match[1])}/{int(match[2])}", "shard_of": ids[:16]}
    return part, f"{root}.{match[1]}of{match[2]}{suffix}", attributes


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
