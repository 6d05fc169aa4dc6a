"""The long run from a list of images to a feature store: decoding processes, batches, resuming.

Items stand in the store in the order of the list. Batches begin at fixed places of the list, and
the places of images that a batch does not need (done before an interruption, or unreadable) are
filled with black: so an image meets the same arithmetic in an interrupted run as in one without
interruption, and the two stores have equal bits.
"""

import concurrent.futures
import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple, Union

import numpy as np
from tqdm import tqdm

from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.errors import UserError
from fairseq_mm.extract.decoding_process import begin_worker, process_context
from fairseq_mm.extract.extractor import ImageExtractor
from fairseq_mm.extract.images import MAX_PIXELS, read_image
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.run_files import (
    check_finished,
    check_same_items,
    write_unreadable,
)

# images that each process may be ahead of the network
AHEAD = 8


class Summary(NamedTuple):
    """What a run did.

    Attributes:
        num_images: in the store.
        num_unreadable: listed, not in the store.
        num_extracted: in this run.
        seconds: of this run, from the first image on.
        seconds_waiting: of these, for decoded images.
        seconds_network: of these, for the network.
        was_finished: the store was complete before.
    """

    num_images: int
    num_unreadable: int
    num_extracted: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    seconds_network: float = 0.0
    was_finished: bool = False


def extract_to_store(
    extractor: ImageExtractor,
    images: Sequence[MediaFile],
    output: str,
    *,
    batch_size: int = 16,
    workers: int = 1,
    dtype: str = "float16",
    max_pixels: int = MAX_PIXELS,
    overwrite: bool = False,
    strict: bool = False,
    show_progress: bool = False,
) -> Summary:
    """Writes the features of all images into one feature store, or finishes what was begun.

    Args:
        extractor: network and preprocessing.
        images: in the order of the store.
        output: the store; ``output.partial`` while it grows, ``output.unreadable.tsv`` lists
            what could not be read.
        batch_size: images that the network gets at a time.
        workers: decoding processes; 0 decodes in this one.
        dtype: of the store.
        max_pixels: see ``images.read_image``.
        overwrite: replace a finished store.
        strict: an unreadable image ends the run.
        show_progress: a bar on stderr.

    Raises:
        UserError: if the store exists and is not what would be written, no image can be read, or
            an image cannot and ``strict``.
    """
    if os.path.exists(output) and not overwrite:
        num_done, num_unreadable = check_finished(extractor.identity, images, output, dtype)
        return Summary(num_done, num_unreadable, was_finished=True)
    run = _Run(extractor, max_pixels=max_pixels, strict=strict)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(
            FeatureStoreWriter(
                output,
                dim=extractor.dim,
                dtype=dtype,
                attributes=extractor.identity,
                overwrite=overwrite,
            )
        )
        check_same_items(writer.done, images, output)
        bar = stack.enter_context(
            tqdm(
                total=len(images),
                initial=len(writer.done),
                unit=" images",
                disable=not show_progress,
                mininterval=0.5 if sys.stderr.isatty() else 10,
                dynamic_ncols=True,
            )
        )
        num_before = len(writer.done)
        for features in run.batches(images, writer.done, batch_size, workers):
            for key, rows in features:
                writer.append(key, rows)
            bar.n = len(writer.done) + len(run.unreadable)
            bar.set_postfix(unreadable=len(run.unreadable), refresh=False)
            bar.update(0)
        if images and not writer.done:
            name, reason = run.unreadable[0]
            raise UserError(
                f"none of the {len(images)} images can be read; the first is {name}: {reason}"
            )
        write_unreadable(output, run.unreadable)
        writer.finish()
        num_extracted = len(writer.done) - num_before
    return Summary(
        num_images=len(writer.done),
        num_unreadable=len(run.unreadable),
        num_extracted=num_extracted,
        seconds=time.perf_counter() - run.began,
        seconds_waiting=run.seconds_waiting,
        seconds_network=run.seconds_network,
    )


class _Run:
    """The inner loop, and what it counts."""

    def __init__(self, extractor: ImageExtractor, *, max_pixels: int, strict: bool) -> None:
        self.extractor = extractor
        self.max_pixels = max_pixels
        self.strict = strict
        self.unreadable: list[tuple[str, str]] = []
        self.seconds_waiting = self.seconds_network = 0.0
        self.began = time.perf_counter()

    def batches(
        self, images: Sequence[MediaFile], done: set[str], batch_size: int, workers: int
    ) -> Iterator[list[tuple[str, np.ndarray]]]:
        """Keys and rows of what is not done, batch by batch."""
        is_left = [image.key not in done for image in images]
        left = [image for image, wanted in zip(images, is_left) if wanted]
        decoded = _decode_all(left, self.extractor.preprocessing, self.max_pixels, workers)
        with contextlib.closing(decoded):
            for start in range(0, len(images), batch_size):
                places = range(start, min(start + batch_size, len(images)))
                pixels: dict[int, np.ndarray] = {}
                began = time.perf_counter()
                for place in places:
                    if is_left[place]:
                        result = next(decoded)
                        if isinstance(result, str):
                            self._note_unreadable(images[place], result)
                        else:
                            pixels[place] = result
                ready = time.perf_counter()
                rows = self._rows(pixels, places)
                self.seconds_waiting += ready - began
                self.seconds_network += time.perf_counter() - ready
                yield [(images[place].key, rows[place]) for place in pixels]

    def _rows(self, pixels: dict[int, np.ndarray], places: range) -> dict[int, np.ndarray]:
        if not pixels:
            return {}
        if not self.extractor.preprocessing.fixed_shape:
            return dict(zip(pixels, self.extractor.rows_of_each(list(pixels.values()))))
        shape = next(iter(pixels.values())).shape
        batch = np.zeros((len(places), *shape), dtype=np.uint8)  # [B, height, width, 3]
        for place, image in pixels.items():
            batch[place - places.start] = image
        rows = self.extractor.rows(batch)
        return {place: rows[place - places.start] for place in pixels}

    def _note_unreadable(self, image: MediaFile, reason: str) -> None:
        if self.strict:
            raise UserError(f"{image.name}: {reason}")
        self.unreadable.append((image.name, reason))


def _decode(
    image: MediaFile, preprocessing: Preprocessing, max_pixels: int
) -> Union[np.ndarray, str]:
    """Pixels ``[height, width, 3]``, or the reason why there are none."""
    try:
        source = image.content() if image.member else image.path
        return preprocessing.apply(read_image(source, max_pixels=max_pixels))
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.strerror or error}."
    except MemoryError:
        return "not enough memory to decode it."


def _decode_all(
    images: Sequence[MediaFile], preprocessing: Preprocessing, max_pixels: int, workers: int
) -> Iterator[Union[np.ndarray, str]]:
    """Results of ``_decode`` in the order of ``images``; at most ``AHEAD`` a process wait."""
    if workers < 1 or not images:
        for image in images:
            yield _decode(image, preprocessing, max_pixels)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=process_context(), initializer=begin_worker
    )
    waiting: deque[concurrent.futures.Future] = deque()
    try:
        for image in images:
            waiting.append(pool.submit(_decode, image, preprocessing, max_pixels))
            if len(waiting) >= AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            "a decoding process was killed, perhaps for lack of memory. What is done is kept: "
            "run it again with fewer --workers or a smaller --max-pixels."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
