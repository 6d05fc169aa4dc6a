"""Captions by ``fairseq-mm serve`` beside the engine's own time: one request, and 20 side by side.

    OMP_NUM_THREADS=1 python benchmarks/serve.py [--rounds 7] [--checkpoint checkpoints/m_rnn]

The server is a process of its own; the engine, ``Generator.generate`` with the bytes of the same
images, runs in this process, in turn with the server, so that other programs on the machine slow
both. Without a checkpoint, the model is an m_rnn of default size with random weights, a vocabulary
of 9,000 words and features of mobilenet_v2. Images are JPEGs of 640 x 480 pixels.
"""

import argparse
import contextlib
import http.client
import io
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from PIL import Image

import fairseq_mm

TOGETHER = 20


def save_captioner(folder: Path, words: int = 9000) -> Path:
    """Write a captioner with random weights, and the weights of its extractor beside it."""
    fairseq_mm.register()
    import torchvision
    from fairseq.data import Dictionary
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    from fairseq_mm.extract.extractor import build_extractor

    torch.manual_seed(1)
    weights = folder / "mobilenet_v2.pt"
    torch.save(torchvision.models.mobilenet_v2(weights=None).state_dict(), weights)
    extractor = build_extractor("mobilenet_v2", weights=str(weights))
    dictionary = Dictionary()
    for number in range(words):
        dictionary.add_symbol(f"w{number}")
    cfg = Namespace()
    ARCH_CONFIG_REGISTRY["m_rnn"](cfg)
    cls = ARCH_MODEL_REGISTRY["m_rnn"]
    fields = cls.__dataclass.__dataclass_fields__
    values = {**{key: x.default for key, x in fields.items()}, **vars(cfg), "_name": "m_rnn"}
    task = Namespace(
        target_dictionary=dictionary,
        feature_dim=extractor.dim,
        feature_attributes=extractor.identity,
        cfg=Namespace(data=None),
    )
    model = cls.build_model(Namespace(**values), task)
    state = {
        "args": None,
        "cfg": {"task": {"_name": "multimodal_captioning"}, "model": values, "common": {}},
        "model": model.state_dict(),
        "optimizer_history": [{"criterion_name": "CrossEntropy", "best_loss": None}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    torch.save(state, folder / "checkpoint_best.pt")
    return folder


def make_photos(count: int) -> list[bytes]:
    generator = np.random.default_rng(1)
    photos = []
    for _ in range(count):
        pixels = generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).resize((640, 480), Image.Resampling.BICUBIC).save(stream, "JPEG")
        photos.append(stream.getvalue())
    return photos


@contextlib.contextmanager
def serving(checkpoint: str) -> Iterator[int]:
    """Start the server; yield its port."""
    command = [sys.executable, "-m", "fairseq_mm", "serve", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--checkpoint", checkpoint], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = re.search(r":(\d+)/$", process.stdout.readline())
        assert address is not None
        yield int(address[1])
    finally:
        process.terminate()
        assert process.wait() == 0


def request_caption(port: int, photo: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", "/api/caption", head + photo + b"\r\n--x--\r\n", headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content
    return content


def request_together(port: int, photos: Sequence[bytes]) -> None:
    threads = [threading.Thread(target=request_caption, args=(port, photo)) for photo in photos]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        checkpoint = args.checkpoint or str(save_captioner(Path(name)))
        model: Any = fairseq_mm.from_pretrained(checkpoint, device="cpu")
        photos = make_photos(TOGETHER)
        with serving(checkpoint) as port:
            one = measure(
                lambda i: model.generate(photos[i % TOGETHER]),
                lambda i: request_caption(port, photos[i % TOGETHER]),
                # single images are quick: several for each batch
                5 * args.rounds,
            )
            together = measure(
                lambda _: model.generate(photos),
                lambda _: request_together(port, photos),
                args.rounds,
            )
    print("| what | engine, ms | server, ms | server / engine |\n|---|---|---|---|")
    for what, times in (("one image", one), (f"{TOGETHER} images", together)):
        engine, server = (1000 * statistics.median(column) for column in zip(*times))
        ratio = statistics.median(theirs / ours for ours, theirs in times)
        print(f"| {what} | {engine:.1f} | {server:.1f} | {ratio:.2f} |")
    print("\nMedians; the ratio is the median of the ratios of neighbouring runs.")


def measure(
    engine: Callable[[int], Any], server: Callable[[int], Any], rounds: int
) -> list[tuple[float, float]]:
    """Seconds of both, one after the other, in each round."""
    times = [(seconds_of(engine, i), seconds_of(server, i)) for i in range(rounds + 1)]
    # the first round loads what is loaded once
    return times[1:]


if __name__ == "__main__":
    main()
