"""Prints the dropouts of a pretrained BART or T5 as options of fairseq-train.

  fairseq-mm pretrained-options bart-base/model.pt
  fairseq-mm pretrained-options bart-base --hydra

--finetune-from-model takes weights from a checkpoint, but no options.
facebook/bart-base was published with dropout of attention weights and
activations, which fairseq's bart_base does not have. The scripts in examples/ pass
the printed options to fairseq-train, followed by the arguments with which the
script was called:

    --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0.1

With --hydra they are overrides of fairseq-hydra-train: model.dropout=0.1 ...
"""

import argparse

from fairseq_mm.cli.run_set_up import register_quietly


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="Checkpoint of fairseq's BART or of --arch t5, or folder with one.",
    )
    parser.add_argument(
        "--hydra", action="store_true", help="Print overrides of fairseq-hydra-train."
    )


def run(args: argparse.Namespace) -> None:
    # first: the modules below import fairseq, which logs on import
    register_quietly()
    from fairseq_mm.conversion.foreign_checkpoint import checkpoint_path
    from fairseq_mm.conversion.pretrained_dropouts import pretrained_dropouts

    dropouts = pretrained_dropouts(checkpoint_path(args.checkpoint))
    print(
        *(
            f"model.{name}={rate}" if args.hydra else f"--{name.replace('_', '-')} {rate}"
            for name, rate in dropouts.items()
        )
    )
