#!/usr/bin/env python3
"""Text -> n-gram language model: interpolated modified Kneser-Ney smoothing, in an ARPA file.

Lines are tokens separated by spaces, as in text/train.txt of a data folder. The file can be read by
KenLM and SRILM too.
"""

import argparse
import sys
from pathlib import Path

from fairseq_mm.cli.arguments import positive
from fairseq_mm.cli.script import run_script
from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.arpa import write_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney, read_token_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", nargs="+", type=Path, help="a sentence per line")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.arpa")
    parser.add_argument("--order", type=positive, default=3, help="longest n-gram (default: 3)")


def run(args: argparse.Namespace) -> int:
    for text in args.text:
        if args.output.exists() and text.exists() and args.output.samefile(text):
            raise UserError(f"--output {args.output}: is the text to read; give another file.")
    model = estimate_kneser_ney(read_token_lines(args.text), order=args.order)
    write_arpa(model, args.output)
    sizes = [f"{len(table.keys):,} {n}-grams" for n, table in enumerate(model.tables, start=1)]
    print(f"{args.output}: {', '.join(sizes)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
