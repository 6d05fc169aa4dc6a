"""METEOR against its official jar: scores, alignments and seconds of both.

    python benchmarks/meteor.py [--runs 3] [--items 5000] [--references 5]
    python benchmarks/meteor.py --hypotheses generated.txt --reference-file references.txt

Without files, captions of about 11 words are drawn from a small grammar of English. Files have a
line per item. The seconds are those of one call each, with the start of Java and with loading the
compiled tables; the first call of all compiles the tables and is not counted. The largest
difference of the items' scores is printed for every task, with and without ``-norm``
(``--all-tasks``) or for coco-caption's settings, and the number of pairs whose alignments differ.
Needs Java.
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))

from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics.meteor import TASKS, align, meteor

SUBJECTS = (
    *("a man", "two men", "a young woman", "the boy", "some children", "a large brown dog"),
    *("a group of people", "many kids", "the surfer", "someone", "a big black dog"),
)
ACTIONS = (
    *("is riding", "rides", "runs behind", "running after", "looks at", "is looking at"),
    *("jumps over", "is holding", "purchases", "buys", "is sitting on", "sits down on"),
)
OBJECTS = (
    *("a bicycle", "the bike", "a horse", "an old automobile", "a car", "a red ball"),
    *("the ocean waves", "a bench", "a wooden fence", "the other dog", "a lot of food"),
)
PLACES = (
    *("in the park", "near the beach", "on the street", "because of the rain", "at night"),
    *("due to bad weather", "in front of a house", "in order to win", "by the sea", ""),
)


def draw_caption(generator: random.Random) -> str:
    parts = [generator.choice(parts) for parts in (SUBJECTS, ACTIONS, OBJECTS, PLACES)]
    return " ".join(" ".join(parts).split())


def read_lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def measure(work: Callable[[], object], runs: int) -> float:
    """Return the median of the seconds of several runs."""
    times = []
    for _ in range(runs):
        load_tables.cache_clear()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def compare_scores(hypotheses: list[str], references: list[list[str]], all_tasks: bool) -> None:
    for task in TASKS if all_tasks else ("rank",):
        for normalize in (True, False) if all_tasks else (True,):
            settings = {"task": task, "normalize": normalize}
            corpus, scores = meteor(hypotheses, references, **settings)
            their_corpus, their_scores = meteor(hypotheses, references, jar=True, **settings)
            largest = max(abs(a - b) for a, b in zip(scores, their_scores))
            print(
                f"{task:<5}{'-norm' if normalize else '     '}  corpus {corpus:.9f}, jar "
                f"{their_corpus:.9f}; largest difference of an item {largest:.1e}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--references", type=int, default=5, help="per item")
    parser.add_argument("--hypotheses", help="file of texts, in place of drawn captions")
    parser.add_argument("--reference-file", action="append", default=[])
    parser.add_argument("--all-tasks", action="store_true")
    args = parser.parse_args()

    generator = random.Random(1)
    if args.hypotheses:
        hypotheses = read_lines(args.hypotheses)
        references = [list(texts) for texts in zip(*map(read_lines, args.reference_file))]
    else:
        hypotheses = [draw_caption(generator) for _ in range(args.items)]
        references = [
            [draw_caption(generator) for _ in range(args.references)] for _ in range(args.items)
        ]
    load_tables()
    print(f"{len(hypotheses)} items, {len(references[0])} references each, {args.runs} runs")
    ours = measure(lambda: meteor(hypotheses, references), args.runs)
    theirs = measure(lambda: meteor(hypotheses, references, jar=True), args.runs)
    print(f"scores      ours {ours:7.2f} s   jar {theirs:7.2f} s   ratio {theirs / ours:5.1f}")
    pairs = [text.split() for text in hypotheses], [texts[0].split() for texts in references]
    ours = measure(lambda: align(*pairs), args.runs)
    theirs = measure(lambda: align(*pairs, jar=True), args.runs)
    print(f"alignments  ours {ours:7.2f} s   jar {theirs:7.2f} s   ratio {theirs / ours:5.1f}")
    compare_scores(hypotheses, references, args.all_tasks)
    found, expected = align(*pairs), align(*pairs, jar=True)
    print(f"{sum(a != b for a, b in zip(found, expected))} of {len(found)} alignments differ")


if __name__ == "__main__":
    main()
