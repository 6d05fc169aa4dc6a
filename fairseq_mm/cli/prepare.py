"""Makes a data folder of one's own data, ready for fairseq-train.

Each KIND has its own help: fairseq-mm prepare captions --help
"""

import argparse
from typing import Optional

from fairseq_mm.cli import prepare_captions, prepare_prompts, prepare_stories, prepare_videos

HELP = "official release or own JSONL -> text and what belongs to it, binarised"

# kind -> module with a docstring, add_arguments(parser) and run(args)
KINDS = {
    "captions": prepare_captions,
    "prompts": prepare_prompts,
    "stories": prepare_stories,
    "videos": prepare_videos,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, module in KINDS.items():
        kind = kinds.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(kind)


def run(args: argparse.Namespace) -> Optional[int]:
    return KINDS[args.kind].run(args)
