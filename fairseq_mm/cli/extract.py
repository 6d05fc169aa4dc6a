"""Images or videos to a feature store.

  fairseq-mm extract photos/ --model resnet152 --output data/features.h5
  fairseq-mm extract photos.tar --model vgg16 --output data/features.h5      (fc7, 4096)
  fairseq-mm extract data.jsonl --model resnet101 --grid --output data/grid.h5
  fairseq-mm extract photos/ --model open_clip:ViT-B-32/laion2b_s34b_b79k --output clip.h5
  fairseq-mm extract videos/ --model resnext101_3d --weights resnext-101-kinetics.pth \\
      --ids stem --output data/features.h5
  fairseq-mm extract data.jsonl --model r3d_18 --fps 15 --output features.h5      ("video" a line)

An interrupted run continues when the same command is run again. What cannot be read is left out
and listed in OUTPUT.unreadable.tsv. What made the features is recorded in the store; frames, frame
rate and length of each video stand in OUTPUT.videos.tsv.

Features by default: AlexNet and VGG fc7 after its ReLU; ResNet, Inception, MobileNet and others the
last map averaged over its positions, or with --grid one row a position. Of videos, one row for each
16 frames: what enters the classifier. Frames after the last whole clip are left out, and a video
shorter than a clip is repeated to fill one.
"""

import argparse
import os
import re
import sys

from fairseq_mm.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.extract.images import MAX_PIXELS
    from fairseq_mm.extract.media_list import ID_FORMS
    from fairseq_mm.extract.preprocessing import CROPS, INTERPOLATIONS, NORMALIZATIONS, RESIZES

    source = parser.add_argument_group("images or videos")
    source.add_argument(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="folder (with its subfolders), image, .tar of images, or .jsonl with `image`; or "
        "the same of videos, with `video`",
    )
    source.add_argument(
        "--list",
        action="append",
        default=[],
        metavar="FILE",
        help="one path a line, or id, tab, path",
    )
    source.add_argument(
        "--root", metavar="DIR", help="of relative paths in lists (default: the list's folder)"
    )
    source.add_argument(
        "--ids",
        choices=ID_FORMS,
        default="name",
        help="what an item is called in the store (default: name, such as dog.jpg; stem: dog)",
    )
    source.add_argument(
        "--except",
        action="append",
        default=[],
        dest="except_stores",
        metavar="STORE",
        help="leave out what stands in this store",
    )
    source.add_argument(
        "--shard",
        metavar="I/N",
        help="only part I of N; writes OUTPUT with .IofN before its suffix. Join the parts with: "
        "fairseq-mm store merge",
    )
    model = parser.add_argument_group("network")
    model.add_argument(
        "--model",
        required=True,
        help="any classifier of torchvision (alexnet, vgg16, resnet152, inception_v3, "
        "mobilenet_v2, ...), or open_clip:NAME[/PRETRAINED]; for videos resnext101_3d, or any "
        "video classifier of torchvision (r3d_18, r2plus1d_18, s3d, mvit_v2_s, swin3d_t, ...)",
    )
    model.add_argument(
        "--weights",
        help="state dict file, a name of torchvision's or open_clip's weights, or none (random); "
        "default: torchvision's best, downloaded once",
    )
    model.add_argument("--layer", help="any other layer of a torchvision model, by its node's name")
    model.add_argument("--grid", action="store_true", help="one row a position of the last map")
    model.add_argument("--seed", type=int, default=0, help="of random weights (default: 0)")
    clips = parser.add_argument_group("clips of videos")
    clips.add_argument(
        "--frames-per-clip", type=_positive, metavar="N", help="a row stands for (default: 16)"
    )
    clips.add_argument(
        "--stride",
        type=_positive,
        metavar="N",
        help="frames from the beginning of a clip to the next (default: those of a clip)",
    )
    clips.add_argument(
        "--fps",
        type=float,
        help="resample to so many frames a second (default: each frame once, as it comes)",
    )
    clips.add_argument(
        "--keep-damaged",
        action="store_true",
        help="take what can be decoded of truncated or damaged videos, instead of leaving them out",
    )
    preprocessing = parser.add_argument_group("preprocessing (default: the model's own)")
    preprocessing.add_argument("--resize", choices=RESIZES, help="short side, both sides, or not")
    preprocessing.add_argument("--size", type=_positive, help="side of the network's input, pixels")
    preprocessing.add_argument(
        "--resize-size", type=_positive, help="side before the crop (default: in proportion)"
    )
    preprocessing.add_argument("--crop", choices=CROPS, help="the centre, or nothing")
    preprocessing.add_argument("--interpolation", choices=INTERPOLATIONS)
    preprocessing.add_argument(
        "--normalize", choices=NORMALIZATIONS, help="mean and deviation; caffe is BGR, 0 to 255"
    )
    preprocessing.add_argument(
        "--max-pixels",
        type=_positive,
        default=MAX_PIXELS,
        help="larger JPEGs are decoded at reduced scale, other images and frames refused "
        "(default: %(default)s)",
    )
    run_options = parser.add_argument_group("run")
    run_options.add_argument("--output", required=True, metavar="FILE", help="the feature store")
    run_options.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    run_options.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, ...")
    run_options.add_argument(
        "--batch-size",
        type=_positive,
        help="images or clips; default: 8 on a CPU, elsewhere 128 images or 64 clips",
    )
    run_options.add_argument(
        "--workers", type=_not_negative, help="decoding processes; 0: none beside the main one"
    )
    precision = run_options.add_mutually_exclusive_group()
    precision.add_argument("--fp16", action="store_true", help="half precision on the device")
    precision.add_argument("--bf16", action="store_true", help="bfloat16 on the device")
    run_options.add_argument(
        "--strict", action="store_true", help="stop at the first unreadable image or video"
    )
    run_options.add_argument(
        "--overwrite", action="store_true", help="replace a finished store at OUTPUT"
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from fairseq_mm.cli.extract_videos import (
        IMAGE_OPTIONS,
        VIDEO_OPTIONS,
        extract_videos,
        refuse_options,
    )
    from fairseq_mm.extract.media_list import IMAGES, list_images, select_shard
    from fairseq_mm.extract.video_backbones import check_any_model, is_video_model
    from fairseq_mm.extract.videos import VIDEOS

    check_any_model(args.model)
    kind = VIDEOS if is_video_model(args.model) else IMAGES
    refuse_options(args, IMAGE_OPTIONS if kind is VIDEOS else VIDEO_OPTIONS)
    if not args.inputs and not args.list:
        raise UserError(f"no {kind.noun}s: give folders, files or a list (--list).")
    items = list_images(args.inputs, lists=args.list, root=args.root, ids=args.ids, kind=kind)
    if args.except_stores:
        items = _without(items, args.except_stores, kind.noun)
    output = args.output
    if args.shard is not None:
        match = re.fullmatch(r"(\d+)/(\d+)", args.shard)
        if match is None:
            raise UserError(f"--shard must be I/N, such as 1/4, but is {args.shard} instead.")
        items = select_shard(items, int(match[1]), int(match[2]))
        root, suffix = os.path.splitext(output)
        output = f"{root}.{match[1]}of{match[2]}{suffix}"
    folder = os.path.dirname(output)
    if folder and not os.path.isdir(folder):
        raise UserError(f"--output {args.output}: there is no folder {folder}.")
    device = _device(torch, args.device)
    workers = args.workers
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        workers = max(1, cores // 4 if device == "cpu" else min(16, cores - 1))
    if kind is VIDEOS:
        return extract_videos(args, items, output, device=device, workers=workers)
    return _extract_images(args, items, output, device=device, workers=workers)


def _extract_images(
    args: argparse.Namespace, images: list, output: str, *, device: str, workers: int
) -> int:
    from fairseq_mm.extract.extraction import extract_to_store
    from fairseq_mm.extract.extractor import build_extractor
    from fairseq_mm.extract.run_files import unreadable_path

    extractor = build_extractor(
        args.model,
        weights=args.weights,
        layer=args.layer,
        grid=args.grid,
        seed=args.seed,
        device=device,
        precision="fp16" if args.fp16 else "bf16" if args.bf16 else "fp32",
        resize=args.resize or "",
        size=args.size or 0,
        resize_size=args.resize_size or 0,
        crop=args.crop or "",
        interpolation=args.interpolation or "",
        normalize=args.normalize or "",
    )
    try:
        summary = extract_to_store(
            extractor,
            images,
            output,
            batch_size=args.batch_size or (8 if device == "cpu" else 128),
            workers=workers,
            dtype=args.dtype,
            max_pixels=args.max_pixels,
            overwrite=args.overwrite,
            strict=args.strict,
            show_progress=True,
        )
    except KeyboardInterrupt:
        print(
            f"\ninterrupted: what is done stands in {output}.partial; the same command continues.",
            file=sys.stderr,
        )
        return 130
    unreadable = (
        f", {summary.num_unreadable} unreadable ({unreadable_path(output)})"
        if summary.num_unreadable
        else ", 0 unreadable"
    )
    what = f"{output}: {summary.num_images} images of {extractor.dim} channels{unreadable}"
    if summary.was_finished:
        print(f"{what}; was finished before, nothing to do.")
        return 0
    seconds = max(summary.seconds, 1e-9)
    print(
        f"{what}; {summary.num_extracted} in this run, {summary.num_extracted / seconds:.1f} a "
        f"second ({summary.seconds_network / seconds:.0%} of the time in the network, "
        f"{summary.seconds_waiting / seconds:.0%} waiting for decoding)."
    )
    return 0


def _without(items: list, stores: list[str], noun: str) -> list:
    from fairseq_mm.data.feature_store import FeatureStore

    done = {key for path in stores for key in FeatureStore(path).ids}
    left = [item for item in items if item.key not in done]
    if not left:
        raise UserError(f"all {len(items)} {noun}s stand in {', '.join(stores)} already.")
    return left


def _device(torch: object, name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(name)
    except RuntimeError:
        raise UserError(f"--device must be auto, cpu, cuda or cuda:N, but is {name!r}.") from None
    return name


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, but is {value}")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, but is {value}")
    return value
