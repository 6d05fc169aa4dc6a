"""Our scorers against pycocoevalcap's, in one process, in turns.

    python benchmarks/score.py [--runs 5] [--items 1000] [--references 5]

Captions are drawn from a vocabulary with Zipf's frequencies, about 10 words each. For each part
the line gives the median seconds of both and the median of the runs' ratios (above 1: ours is
faster). Tokenising is compared where Java is found: pycocoevalcap starts Stanford's program.
``CIDEr-D again`` is validation during training: the references' vectors exist already.
"""

import argparse
import contextlib
import io
import random
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums
from fairseq_mm.metrics.cider import CiderD
from fairseq_mm.metrics.ptb_tokenizer import _tokenize_chunk, ptb_tokenize
from fairseq_mm.metrics.rouge import rouge_l

WORDS = 8000


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - start


def report(part: str, ours: Callable[[], object], theirs: Callable[[], object], runs: int) -> None:
    times = [(seconds(ours), seconds(theirs)) for _ in range(runs)]
    mine, other = (statistics.median(column) for column in zip(*times))
    ratio = statistics.median(theirs / ours for ours, theirs in times)
    print(f"{part:<14} ours {mine:8.4f} s   pycocoevalcap {other:8.4f} s   ratio {ratio:6.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--references", type=int, default=5, help="per item")
    args = parser.parse_args()

    generator = random.Random(1)
    words = [f"w{'abcdefghij'[i % 10]}{i // 10}" for i in range(WORDS)]
    weights = [1 / (i + 1) for i in range(WORDS)]

    def caption() -> str:
        return " ".join(generator.choices(words, weights, k=generator.randint(7, 13)))

    hypotheses = [caption() for _ in range(args.items)]
    references = [[caption() for _ in range(args.references)] for _ in range(args.items)]
    h = [text.split() for text in hypotheses]
    r = [[text.split() for text in texts] for texts in references]
    res = {i: [text] for i, text in enumerate(hypotheses)}
    gts = dict(enumerate(references))
    print(f"{args.items} items, {args.references} references each, {args.runs} runs")

    def our_bleu() -> object:
        return bleu_from_sums(sum(bleu_sums(x, y) for x, y in zip(h, r)))

    def our_cider() -> object:
        scorer = CiderD(r)
        return [scorer.score_item(x, i) for i, x in enumerate(h)]

    standing = CiderD(r)

    def our_cider_again() -> object:
        return [standing.score_item(x, i) for i, x in enumerate(h)]

    def our_rouge() -> object:
        return [rouge_l(x, y) for x, y in zip(h, r)]

    def their_cider() -> object:
        return Cider().compute_score(gts, res)

    report("BLEU", our_bleu, lambda: Bleu(4).compute_score(gts, res, verbose=0), args.runs)
    report("CIDEr-D", our_cider, their_cider, args.runs)
    our_cider_again()  # makes the vectors
    report("CIDEr-D again", our_cider_again, their_cider, args.runs)
    report("ROUGE-L", our_rouge, lambda: Rouge().compute_score(gts, res), args.runs)
    if shutil.which("java") is None:
        print("tokenising     no java on the PATH")
        return
    captions = {i: [{"caption": f"{text}."} for text in texts] for i, texts in gts.items()}

    def our_tokens() -> object:
        _tokenize_chunk.cache_clear()
        return [ptb_tokenize(c["caption"]) for texts in captions.values() for c in texts]

    report("tokenising", our_tokens, lambda: PTBTokenizer().tokenize(captions), args.runs)


if __name__ == "__main__":
    main()
