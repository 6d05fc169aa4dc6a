"""A released model of VSE or VSE++ -> one of vse_gru or vse_bow, for ``fairseq-mm convert``."""

import argparse
import os
from collections.abc import Mapping
from typing import Any, Optional


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Options of these checkpoints alone."""
    group.add_argument(
        "--vocabulary", metavar="FILE", help="the words of the model, VSE++'s NAME_vocab.pkl"
    )


def run(args: argparse.Namespace, state: Optional[Mapping[str, Any]]) -> None:
    """
    Args:
        args: of the command.
        state: content of a checkpoint of VSE++; None of a model of Kiros's.

    Raises:
        UserError: if a file cannot be read or written, or a tensor does not fit.
    """
    from fairseq_mm.conversion.output_folder import check_output_folder
    from fairseq_mm.conversion.released_vse import read_released_vse
    from fairseq_mm.conversion.released_vsepp import read_released_vsepp
    from fairseq_mm.conversion.vse import convert_vse

    check_output_folder(args.output, overwrite=args.overwrite, reads=args.source)
    if state is None:
        released = read_released_vse(args.source)
    else:
        released = read_released_vsepp(args.source, state, args.vocabulary)
    result = convert_vse(released, args.output, overwrite=args.overwrite)
    print(f"{args.source}: {released.tensors} tensors, all converted")
    for note in released.notes:
        print(f"note: {note}")
    names = ", ".join(sorted(os.listdir(result.folder)))
    print(
        f"{result.folder}: --arch {released.arch}, {result.parameters:,} parameters, "
        f"{len(released.words):,} words: {names}"
    )
    for line in _usage(result):
        print(line)


def _usage(result: Any) -> list[str]:
    """The commands that prepare data for the new checkpoint, rank with it and train on."""
    from fairseq_mm.conversion.vse import CHECKPOINT, DICTIONARY, NETWORK, flags_of

    released = result.released
    file = {name: os.path.join(result.folder, name) for name in (CHECKPOINT, DICTIONARY, NETWORK)}
    options = " ".join(flags_of(released.options))
    criterion = " ".join(flags_of(released.criterion))
    features = f"features: of {result.feature_dim} channels, as the model was trained on"
    if released.cnn_type:
        features = (
            f"features: fairseq-mm extract ... --model {released.cnn_type} "
            f"--weights {file[NETWORK]}"
        )
    return [
        f"data: fairseq-mm prepare captions ... --dictionary {file[DICTIONARY]} "
        f"{released.tokenizer}",
        features,
        f"rank: fairseq-mm rank DATA --checkpoint {result.folder}",
        f"train: fairseq-train DATA --task multimodal_captioning --arch {released.arch} {options} "
        f"--criterion pairwise_ranking {criterion} --finetune-from-model {file[CHECKPOINT]}",
    ]
