"""Random items from a feature store against ``numpy.memmap`` and h5py's own slices.

    python benchmarks/feature_store.py [--runs 7] [--folder DIR] [--many-ids]

Each line is one layout: pooled images (one row an item) and 7x7 grids (49 rows). The three
readers take the same items in the same random order, in turns; every one of them ends with the
item in an array of its own. Speed is given in items a second (median of the runs), ratios are
medians of the ratios of one run. The files are in the page cache. Further lines: what a check of
finiteness in every read would cost, and opening a store of many ids.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fairseq_mm.data.feature_store import FeatureStore, is_finite
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter

# name: items, rows an item, channels
LAYOUTS = {
    "pooled": (40_000, 1, 1280),
    "pooled 4096": (12_000, 1, 4096),
    "grid 7x7": (1_500, 49, 2048),
}
MANY_IDS = 1_000_000


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_layout(folder: str, name: str, items: int, rows: int, dim: int) -> tuple[str, str]:
    """Paths of a store and of a .npy file ``[items * rows, dim]`` with the same rows."""
    store_path = os.path.join(folder, f"{name}.h5")
    array_path = os.path.join(folder, f"{name}.npy")
    generator = np.random.default_rng(1)
    array = np.lib.format.open_memmap(
        array_path, mode="w+", dtype=np.float16, shape=(items * rows, dim)
    )
    with FeatureStoreWriter(store_path, dim=dim, attributes={}) as writer:
        for i in range(items):
            item = generator.standard_normal((rows, dim), dtype=np.float32).astype(np.float16)
            array[i * rows : (i + 1) * rows] = item
            writer.append(f"{i:07}.jpg", item)
        writer.finish()
    array.flush()
    return store_path, array_path


def measure_layout(folder: str, name: str, runs: int) -> None:
    items, rows, dim = LAYOUTS[name]
    store_path, array_path = write_layout(folder, name, items, rows, dim)
    store = FeatureStore(store_path)
    memmap = np.load(array_path, mmap_mode="r")
    order = np.random.default_rng(2).permutation(items)[: 40_000 // rows + 500].tolist()
    keys = [store.ids[i] for i in order]
    starts = [i * rows for i in order]

    def read_store() -> None:
        for key in keys:
            store.read(key)

    def read_memmap() -> None:
        for start in starts:
            np.array(memmap[start : start + rows])

    def read_and_check() -> None:
        for key in keys:
            is_finite(store.read(key))

    with h5py.File(store_path, "r", locking=False) as file:
        dataset = file["features"]

        def read_h5py() -> None:
            for start in starts:
                dataset[start : start + rows]

        readers = [read_store, read_memmap, read_h5py, read_and_check]
        for read in readers:
            read()
        times = [[seconds(read) for read in readers] for _ in range(runs)]
    ratios = [
        statistics.median(run[column] / run[0] for run in times) for column in range(len(readers))
    ]
    speeds = [len(keys) / statistics.median(run[column] for run in times) for column in range(4)]
    print(
        f"{name}: {items} items of {rows} x {dim} float16, {len(keys)} random reads: "
        f"store {speeds[0]:,.0f}/s, memmap {speeds[1]:,.0f}/s, h5py {speeds[2]:,.0f}/s; "
        f"store / memmap {ratios[1]:.2f}, store / h5py {ratios[2]:.2f}; "
        f"with a finiteness check in every read {speeds[3]:,.0f}/s"
    )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_many_ids(path: str) -> None:
    row = np.ones((1, 2), dtype=np.float16)
    with FeatureStoreWriter(path, dim=2, attributes={}) as writer:

        def append_all() -> None:
            for i in range(MANY_IDS):
                writer.append(f"{i:012}.jpg", row)

        appending = seconds(append_all)
        finishing = seconds(writer.finish)
    print(f"{MANY_IDS} ids: appended in {appending:.1f} s, finished in {finishing:.1f} s")
    sys.stdout.flush()


def measure_many_ids(folder: str) -> None:
    path = os.path.join(folder, "many.h5")
    # in a process of its own, whose freed memory the reader does not use again
    process = multiprocessing.get_context("fork").Process(target=write_many_ids, args=(path,))
    process.start()
    process.join()
    before = resident_bytes()
    stores = []
    opening = seconds(lambda: stores.append(FeatureStore(path)))
    more = resident_bytes() - before
    print(f"{MANY_IDS} ids: opened in {opening:.2f} s, {more / 2**20:.0f} MiB in memory")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="runs to take the median of")
    parser.add_argument("--folder", help="where to put the files (default: a temporary folder)")
    parser.add_argument("--many-ids", action="store_true", help="also a store of a million ids")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in LAYOUTS:
            measure_layout(folder, name, args.runs)
        if args.many_ids:
            measure_many_ids(folder)


if __name__ == "__main__":
    main()
