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
import os

from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError


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
    from fairseq_mm.compat.loading import is_model_folder
    from fairseq_mm.data.model_folder import WEIGHTS_FILE

    path = args.checkpoint
    if os.path.isdir(path):
        path = os.path.join(path, WEIGHTS_FILE if is_model_folder(path) else "model.pt")
    dropouts = pretrained_dropouts(path)
    print(
        *(
            f"model.{name}={rate}" if args.hydra else f"--{name.replace('_', '-')} {rate}"
            for name, rate in dropouts.items()
        )
    )


def pretrained_dropouts(path: str) -> dict[str, float]:
    """Read the dropout probabilities of a pretrained model.

    Args:
        path: Path of a checkpoint of fairseq's BART or of T5, or of a model trained from such a
            checkpoint.

    Returns:
        Dict from ``dropout``, ``attention_dropout`` and ``activation_dropout`` to the probability;
        options that the checkpoint lacks are left out.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.bart import BARTModel

    from fairseq_mm.conversion.foreign_checkpoint import checkpoint_options, read_foreign_checkpoint
    from fairseq_mm.conversion.new_checkpoint import complete_options
    from fairseq_mm.models.t5 import T5Model
    from fairseq_mm.models.vg_t5 import VgT5Model

    arch, options = checkpoint_options(read_foreign_checkpoint(path), path)
    options = complete_options(arch, options)
    # fairseq's older name, which its layers take where the newer one is 0
    options["activation_dropout"] = options.get("activation_dropout") or options.get("relu_dropout")
    names = ("dropout", "attention_dropout", "activation_dropout")
    rates = {name: options[name] for name in names if options.get(name) is not None}
    model = ARCH_MODEL_REGISTRY.get(arch, BARTModel)
    # type, not isinstance: True is an int
    are_rates = all(type(x) in (int, float) and 0 <= x < 1 for x in rates.values())
    if not issubclass(model, (BARTModel, T5Model, VgT5Model)) or not are_rates or not rates:
        raise UserError(
            f"{path}: must be a checkpoint of BART or T5 with dropouts below 1, but is of --arch "
            f"{arch} with {rates}."
        )
    return {name: float(rate) for name, rate in rates.items()}
