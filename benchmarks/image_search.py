"""Search in the index of a folder of images: time to open the index and to answer one query.

    python benchmarks/image_search.py [--images 100000] [--dim 300 1024] [--queries 20]

The index has random vectors of unit length. Its images are empty files in a temporary folder. A
search asks for the sizes and times of files, and opens no file. Times are CPU seconds of one
thread, without the imports; the time of a query is the median over the queries. Each answer is
compared with the products in float64.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fairseq_mm.data.feature_sources import Source
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.inference import set_up  # noqa: F401  (registers before other imports)
from fairseq_mm.inference.extractor_provenance import VECTORS_EXTRACTOR
from fairseq_mm.inference.image_index import ImageIndex

COUNT = 10


def write_index(folder: Path, path: str, images: int, dim: int) -> None:
    generator = np.random.default_rng(1)
    attributes = {"extractor": VECTORS_EXTRACTOR, "weights": "", "image_extractor": "{}"}
    paths = {"checkpoint": "", "checkpoint_bytes": 0, "checkpoint_time": 0}
    digest = hashlib.sha256(b"").digest()
    with FeatureStoreWriter(path, dim=dim, dtype="float32", attributes=attributes) as writer:
        for i in range(images):
            file = folder / f"{i}.jpg"
            file.touch()
            vector = generator.standard_normal(dim, dtype=np.float32)
            source = Source(0, file.stat().st_mtime_ns, digest)
            writer.append(file.name, vector / np.linalg.norm(vector), source)
        writer.add_attributes({**paths, "vectors_checksum": writer.compute_rows_checksum()})
        writer.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--dim", type=int, nargs="+", default=[300, 1024])
    parser.add_argument("--queries", type=int, default=20)
    args = parser.parse_args()
    print("| images | K | open, s | query, ms |\n|---|---|---|---|")
    for dim in args.dim:
        with tempfile.TemporaryDirectory() as name:
            path = str(Path(name, "index.h5"))
            write_index(Path(name), path, args.images, dim)
            start = time.process_time()
            index = ImageIndex.open(name, index=path)
            opened = time.process_time() - start
            generator = np.random.default_rng(2)
            times = []
            for _ in range(args.queries):
                query = index.vectors[generator.integers(args.images)]
                query = query + generator.standard_normal(dim, dtype=np.float32) / np.sqrt(dim)
                query = (query / np.linalg.norm(query)).astype(np.float32)[None]
                start = time.process_time()
                (result,) = index.search_vectors(query, COUNT)
                times.append(time.process_time() - start)
                exact = np.einsum("nk,k->n", index.vectors, query[0].astype(np.float64))
                found = [index.ids.index(image.id) for image in result.images]
                assert found == np.argsort(-exact, kind="stable")[:COUNT].tolist()
            median = statistics.median(times)
            print(f"| {args.images:,} | {dim} | {opened:.2f} | {1000 * median:.1f} |", flush=True)


if __name__ == "__main__":
    main()
