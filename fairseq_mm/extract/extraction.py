"""The long run from a list of pictures to a feature store: decoding processes, batches, resuming.

Items stand in the store in the order of the list. Batches begin at fixed places of the list, and
the places of pictures that a batch does not need (done before an interruption, or unreadable) are
filled with black: so a picture meets the same arithmetic in an interrupted run as in one without
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
from fairseq_mm.extract.extractor import PictureExtractor
from fairseq_mm.extract.picture_list import Picture
from fairseq_mm.extract.pictures import MAX_PIXELS, read_picture
from fairseq_mm.extract.preprocessing import Preprocessing
from fairseq_mm.extract.run_files import (
    check_finished,
    check_same_items,
    write_unreadable,
)

# pictures that each process may be ahead of the network
AHEAD = 8


class Summary(NamedTuple):
    """What a run did.

    Attributes:
        num_pictures: in the store.
        num_unreadable: listed, not in the store.
        num_extracted: in this run.
        seconds: of this run, from the first picture on.
        seconds_waiting: of these, for decoded pictures.
        seconds_network: of these, for the network.
        was_finished: the store was complete before.
    """

    num_pictures: int
    num_unreadable: int
    num_extracted: int = 0
    seconds: float = 0.0
    seconds_waiting: float = 0.0
    seconds_network: float = 0.0
    was_finished: bool = False


def extract_to_store(
    extractor: PictureExtractor,
    pictures: Sequence[Picture],
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
    """Writes the features of all pictures into one feature store, or finishes what was begun.

    Args:
        extractor: network and preprocessing.
        pictures: in the order of the store.
        output: the store; ``output.partial`` while it grows, ``output.unreadable.tsv`` lists
            what could not be read.
        batch_size: pictures that the network gets at a time.
        workers: decoding processes; 0 decodes in this one.
        dtype: of the store.
        max_pixels: see ``pictures.read_picture``.
        overwrite: replace a finished store.
        strict: an unreadable picture ends the run.
        show_progress: a bar on stderr.

    Raises:
        UserError: if the store exists and is not what would be written, no picture can be read, or
            a picture cannot and ``strict``.
    """
    if os.path.exists(output) and not overwrite:
        num_done, num_unreadable = check_finished(extractor.identity, pictures, output, dtype)
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
        check_same_items(writer.done, pictures, output)
        bar = stack.enter_context(
            tqdm(
                total=len(pictures),
                initial=len(writer.done),
                unit=" pictures",
                disable=not show_progress,
                mininterval=0.5 if sys.stderr.isatty() else 10,
                dynamic_ncols=True,
            )
        )
        num_before = len(writer.done)
        for features in run.batches(pictures, writer.done, batch_size, workers):
            for key, rows in features:
                writer.append(key, rows)
            bar.n = len(writer.done) + len(run.unreadable)
            bar.set_postfix(unreadable=len(run.unreadable), refresh=False)
            bar.update(0)
        if pictures and not writer.done:
            name, reason = run.unreadable[0]
            raise UserError(
                f"none of the {len(pictures)} pictures can be read; the first is {name}: {reason}"
            )
        write_unreadable(output, run.unreadable)
        writer.finish()
        num_extracted = len(writer.done) - num_before
    return Summary(
        num_pictures=len(writer.done),
        num_unreadable=len(run.unreadable),
        num_extracted=num_extracted,
        seconds=time.perf_counter() - run.began,
        seconds_waiting=run.seconds_waiting,
        seconds_network=run.seconds_network,
    )


class _Run:
    """The inner loop, and what it counts."""

    def __init__(self, extractor: PictureExtractor, *, max_pixels: int, strict: bool) -> None:
        self.extractor = extractor
        self.max_pixels = max_pixels
        self.strict = strict
        self.unreadable: list[tuple[str, str]] = []
        self.seconds_waiting = self.seconds_network = 0.0
        self.began = time.perf_counter()

    def batches(
        self, pictures: Sequence[Picture], done: set[str], batch_size: int, workers: int
    ) -> Iterator[list[tuple[str, np.ndarray]]]:
        """Keys and rows of what is not done, batch by batch."""
        is_left = [picture.key not in done for picture in pictures]
        left = [picture for picture, wanted in zip(pictures, is_left) if wanted]
        decoded = _decode_all(left, self.extractor.preprocessing, self.max_pixels, workers)
        with contextlib.closing(decoded):
            for start in range(0, len(pictures), batch_size):
                places = range(start, min(start + batch_size, len(pictures)))
                pixels: dict[int, np.ndarray] = {}
                began = time.perf_counter()
                for place in places:
                    if is_left[place]:
                        result = next(decoded)
                        if isinstance(result, str):
                            self._note_unreadable(pictures[place], result)
                        else:
                            pixels[place] = result
                ready = time.perf_counter()
                rows = self._rows(pixels, places)
                self.seconds_waiting += ready - began
                self.seconds_network += time.perf_counter() - ready
                yield [(pictures[place].key, rows[place]) for place in pixels]

    def _rows(self, pixels: dict[int, np.ndarray], places: range) -> dict[int, np.ndarray]:
        if not pixels:
            return {}
        if not self.extractor.preprocessing.fixed_shape:
            return dict(zip(pixels, self.extractor.rows_of_each(list(pixels.values()))))
        shape = next(iter(pixels.values())).shape
        batch = np.zeros((len(places), *shape), dtype=np.uint8)  # [B, height, width, 3]
        for place, picture in pixels.items():
            batch[place - places.start] = picture
        rows = self.extractor.rows(batch)
        return {place: rows[place - places.start] for place in pixels}

    def _note_unreadable(self, picture: Picture, reason: str) -> None:
        if self.strict:
            raise UserError(f"{picture.name}: {reason}")
        self.unreadable.append((picture.name, reason))


def _decode(
    picture: Picture, preprocessing: Preprocessing, max_pixels: int
) -> Union[np.ndarray, str]:
    """Pixels ``[height, width, 3]``, or the reason why there are none."""
    try:
        source = picture.content() if picture.member else picture.path
        return preprocessing.apply(read_picture(source, max_pixels=max_pixels))
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{error.strerror or error}."
    except MemoryError:
        return "not enough memory to decode it."


def _decode_all(
    pictures: Sequence[Picture], preprocessing: Preprocessing, max_pixels: int, workers: int
) -> Iterator[Union[np.ndarray, str]]:
    """Results of ``_decode`` in the order of ``pictures``; at most ``AHEAD`` a process wait."""
    if workers < 1 or not pictures:
        for picture in pictures:
            yield _decode(picture, preprocessing, max_pixels)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, mp_context=process_context(), initializer=begin_worker
    )
    waiting: deque[concurrent.futures.Future] = deque()
    try:
        for picture in pictures:
            waiting.append(pool.submit(_decode, picture, preprocessing, max_pixels))
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
