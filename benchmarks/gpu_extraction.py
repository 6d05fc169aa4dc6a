"""Extraction of features on a GPU: JPEG files decoded by Pillow or on the GPU, and the limits.

    python benchmarks/gpu_extraction.py [--images 12000] [--device cuda] [--small] [--json FILE]
        [--photographs INPUT --weights FILE]

The files are drawn photographs of 640 x 480 pixels, 64 different ones under many names. The
network is resnet152 with random weights. The limits are the network alone on a batch that is on
the GPU, decoding alone, decoding with resizing, and reading alone: the decoding processes read and
check the files, and the main process receives them. The first two rows use a quarter of the images,
since they take longer.

``--photographs`` also compares the features of real photographs, decoded on the GPU and by Pillow,
with mobilenet_v2 and the weights of ``--weights``.

With ``--device cpu`` the program runs, but compares nothing: decoding on the GPU then means the
decoder of torchvision for CPUs.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import numpy as np
import torch
from _markdown import print_row
from _photographs import draw_photograph

from fairseq_mm.data.feature_store import FeatureStore
from fairseq_mm.extract import gpu_decoding
from fairseq_mm.extract.decoding import decode_files
from fairseq_mm.extract.extractor import Extractor, build_extractor
from fairseq_mm.extract.jpeg_files import find_jpeg
from fairseq_mm.extract.media_list import MAX_PIXELS, MediaFile, list_images
from fairseq_mm.extract.networks import build_backbone
from fairseq_mm.extract.preprocessing import with_options
from fairseq_mm.extract.runner import extract_to_store

DRAWN = 64
COLUMNS = ("what", "precision", "workers", "batch", "images/s", "network", "waiting", "decoding")


def write_photographs(folder: Path, count: int, width: int, height: int) -> list[MediaFile]:
    """Write JPEG files, of which at most 64 differ, and return them."""
    drawn = []
    for number in range(min(count, DRAWN)):
        drawn.append(folder / f"drawn{number}.jpg")
        draw_photograph(number, width, height).save(drawn[-1], quality=90)
    files = []
    for number in range(count):
        path = folder / f"{number:06}.jpg"
        os.link(drawn[number % len(drawn)], path)
        files.append(MediaFile(path.name, str(path)))
    return files


def extract(
    extractor: Extractor,
    files: Sequence[MediaFile],
    output: Path,
    *,
    workers: int,
    batch_size: int,
) -> dict[str, Any]:
    """Extract features to a store, and return the speed and the shares of the time."""
    # the first batch of a size chooses the kernels
    extractor.rows(np.zeros((batch_size, *extractor.preprocessing.input_shape), dtype=np.uint8))
    summary = extract_to_store(
        extractor,
        extractor.reader(),
        files,
        str(output),
        workers=workers,
        batch_size=batch_size,
        dtype="float32",  # features of random weights are too large for float16
        overwrite=True,
    )
    assert summary.num_items == len(files), summary
    seconds = summary.seconds
    return {
        "precision": extractor.precision,
        "workers": workers,
        "batch": batch_size,
        "images/s": len(files) / seconds,
        "network": summary.seconds_network / seconds,
        "waiting": summary.seconds_waiting / seconds,
        "decoding": summary.seconds_decoding / seconds,
    }


def measure(run: Callable[[], Any], count: int, *, rounds: int, device: torch.device) -> float:
    """Return how many images a second ``run`` processes, with ``count`` images a call."""
    for round_number in range(rounds + 2):
        if round_number == 2:
            synchronize(device)
            began = time.perf_counter()
        run()
    synchronize(device)
    return rounds * count / (time.perf_counter() - began)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def build_graph(extractor: Extractor, inputs: torch.Tensor) -> Optional[Callable[[], Any]]:
    """Return a function that replays the kernels of the network as one CUDA graph; None if CUDA
    refuses it."""
    try:
        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    extractor._compute(inputs)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                extractor._compute(inputs)
            graph.replay()
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"no CUDA graph: {error}", file=sys.stderr)
        return None
    return graph.replay


def compare_features(photographs: str, weights: Optional[str], device: str) -> dict[str, float]:
    """Compare pixels and features of photographs, decoded by Pillow and on the GPU."""
    files = list_images([photographs])
    options = {"weights": weights or "none", "device": device}
    by_pillow = build_extractor("mobilenet_v2", **options)
    on_gpu = build_extractor("mobilenet_v2", decode_on="gpu", **options)
    names = [x.key for x in files]
    one, other = by_pillow.extract(files), on_gpu.extract(files)
    cosines = [
        float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(one, other)
    ]
    reader = on_gpu.reader()
    differences = []
    for file in files[:200]:
        (jpeg,) = reader.inputs(file)
        if isinstance(jpeg, np.ndarray):
            continue
        (image,) = on_gpu.decoder.decode([jpeg])
        pixels = by_pillow.pixels(file).astype(int)
        differences.append(np.abs(image.cpu().numpy() - pixels))
    flat = np.concatenate([x.ravel() for x in differences])
    return {
        "photographs": len(names),
        "decoded on the GPU, of the first 200": len(differences),
        "smallest cosine": min(cosines),
        "mean cosine": float(np.mean(cosines)),
        "mean difference of pixels": float(flat.mean()),
        "largest difference of pixels": float(flat.max()),
        "pixels that differ by more than 8": float((flat > 8).mean()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a small network and few images")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--photographs", metavar="INPUT")
    parser.add_argument("--weights", metavar="FILE")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        gpu_decoding.check_gpu_decoding = lambda device: None
        sys.modules["fairseq_mm.extract.extractor"].check_gpu_decoding = lambda device: None
    name, count, batch_size = "resnet152", args.images, 128
    sizes, rounds, workers = (640, 480), 20, (8, 15)
    if args.small:
        name, count, batch_size = "resnet18", 12, 4
        sizes, rounds, workers = (100, 75), 1, (1, 1)
    results: list[dict[str, Any]] = []

    def show(what: str, **values: Any) -> None:
        results.append({"what": what, **values})
        row = {**dict.fromkeys(COLUMNS, ""), **results[-1]}
        for share in ("network", "waiting", "decoding"):
            row[share] = f"{row[share]:.0%}" if share in values else ""
        row["images/s"] = f"{row['images/s']:,.0f}"
        print_row([row[column] for column in COLUMNS])

    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(lambda: args.json and Path(args.json).write_text(json.dumps(results)))
        print(f"{describe_device(device)}, {os.cpu_count()} cores\n", flush=True)
        files = write_photographs(Path(folder), count, *sizes)
        backbone = build_backbone(name, weights="none")
        preprocessing = backbone.preprocessing
        if args.small:
            preprocessing = with_options(preprocessing, size=32)

        def build(precision: str, decode_on: str) -> Extractor:
            return Extractor(
                backbone,
                preprocessing,
                device=device,
                precision=precision,
                decode_on=decode_on,
            )

        half = "fp16" if device.type == "cuda" else "bf16"
        print_row(COLUMNS)
        print_row(["---"] * len(COLUMNS))
        stores = {}
        few, many = workers
        for what, precision, processes, size in (
            ("Pillow", "fp32", few, batch_size),
            ("Pillow", half, many, batch_size),
            ("GPU", "fp32", few, batch_size),
            ("GPU", half, few, batch_size),
            ("GPU", half, many, batch_size),
            ("GPU", half, few, 2 * batch_size),
        ):
            extractor = build(precision, "gpu" if what == "GPU" else "cpu")
            share = files if what == "GPU" else files[: len(files) // 4]
            stores[what] = Path(folder) / f"{what}.h5"
            options = {"workers": processes, "batch_size": size}
            values = extract(extractor, share, stores[what], **options)
            show(f"extraction, decoded by {what}", **values)

        for precision in ("fp32", half):
            extractor = build(precision, "cpu")
            for size in (batch_size, 2 * batch_size):
                side = extractor.preprocessing.input_shape
                inputs = torch.zeros((size, *side), dtype=torch.uint8, device=device)
                speed = measure(
                    partial(extractor._compute, inputs), size, rounds=rounds, device=device
                )
                show("network alone", precision=precision, batch=size, **{"images/s": speed})
        contents = [Path(x.path).read_bytes() for x in files[:batch_size]]
        jpegs = [find_jpeg(x, max_pixels=MAX_PIXELS) for x in contents]
        tensors = [torch.from_numpy(x.content) for x in jpegs]
        decoder = build("fp32", "gpu").decoder
        for what, run in (
            ("decoding alone", lambda: gpu_decoding.decode_jpegs(tensors, device)),
            ("decoding and resizing alone", lambda: decoder.decode(jpegs)),
        ):
            speed = measure(run, len(jpegs), rounds=rounds, device=device)
            show(what, batch=len(jpegs), **{"images/s": speed})
        for processes in workers:
            began = time.perf_counter()
            reader = build("fp32", "gpu").reader()
            for _ in decode_files(files, reader, workers=processes):
                pass
            speed = len(files) / (time.perf_counter() - began)
            show("reading alone", workers=processes, **{"images/s": speed})
        differences = compare_stores(*stores.values())
        results.append(differences)
        print(f"\nresnet152 with random weights: {differences}", flush=True)
        if args.photographs:
            differences = compare_features(args.photographs, args.weights, args.device)
            results.append(differences)
            print(f"mobilenet_v2: {differences}", flush=True)
        if device.type == "cuda":
            extractor = build(half, "cpu")
            inputs = inputs[:batch_size]
            graph = build_graph(extractor, inputs)
            if graph is not None:
                speed = measure(graph, batch_size, rounds=rounds, device=device)
                values = {"precision": half, "batch": batch_size, "images/s": speed}
                show("network alone, as a CUDA graph", **values)
    return 0


def describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def compare_stores(one: Path, other: Path) -> dict[str, float]:
    """Return the smallest and the mean cosine of the features of two stores, by Pillow first."""
    first, second = FeatureStore(one), FeatureStore(other)
    cosines = []
    for key in first.ids[:DRAWN]:
        a, b = (store.read(key).astype(np.float64).ravel() for store in (first, second))
        cosines.append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    return {"smallest cosine": min(cosines), "mean cosine": float(np.mean(cosines))}


if __name__ == "__main__":
    raise SystemExit(main())
