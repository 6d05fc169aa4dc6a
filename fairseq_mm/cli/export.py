"""Exports a model to a folder that can be shared, with safetensors and JSON.

  fairseq-mm export checkpoints/m_rnn m_rnn-flickr8k
  fairseq-mm export best.pt DIR --scores scores.json
  fairseq-mm export bart.pt DIR --data data-bin/how2
  fairseq-mm export DIR m_rnn.pt --to-checkpoint
  fairseq-mm export checkpoints/joint DIR --separate-network
  fairseq-mm export a.pt:b.pt:c.pt mean.pt --average

The folder has model.safetensors (weights), config.json (architecture, task,
options, extractor of the features, digests of the files), the dictionaries and
subwords, and a model card, README.md. It contains no pickle. Absolute paths in the
options are shortened to their last name.

Every option of fairseq-mm that takes a checkpoint takes such a folder, and
generates the same texts. fairseq-mm push uploads it to the Hugging Face hub.

fairseq's own commands (--path, --restore-file, --finetune-from-model) need a
checkpoint file: --to-checkpoint writes one from a folder, without the state of an
optimizer. Models of fairseq's own, whose checkpoints have no dictionary, need the
data folder of their training (--data).

A checkpoint that was trained with its image network (fairseq-train --photos) must be
separated first: --separate-network writes a folder with the weights of the network,
such as mobilenet_v2.pt, for fairseq-mm extract --weights, and with
checkpoint_best.pt, which reads features of this network.

--average writes a checkpoint whose weights are the mean of several checkpoints,
such as the last five of one training. The model is as fast as one of them; an
ensemble, where each model predicts, is not.
"""

import argparse
import os

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint_files import checkpoint_file

# options that exclude all others
_ALONE = ("average", "to_checkpoint", "separate_network")


_ARGUMENTS: Rows = {
    "checkpoint": (
        "Checkpoint or model folder; with --average, several checkpoints joined by colons.",
        {"metavar": "CHECKPOINT"},
    ),
    "output": ("New folder; with --to-checkpoint or --average, a new file.", {"metavar": "OUTPUT"}),
    "--scores": ("Result of fairseq-mm score --json, for the model card.", {"metavar": "FILE"}),
    "--to-checkpoint": ("Write a checkpoint file from a model folder.", FLAG),
    "--separate-network": ("Write a checkpoint and the weights of its image network.", FLAG),
    "--average": ("Write a checkpoint file with the mean weights of several.", FLAG),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(parser, _ARGUMENTS)
    help_of_data = "Data folder of the training, for fairseq's own models."
    arguments.add(parser, "data", data={"help": help_of_data})


def run(args: argparse.Namespace) -> None:
    given = [name for name in _ALONE if getattr(args, name)]
    if given and (len(given) > 1 or args.scores or args.data):
        raise UserError(f"{arguments.flag(given[0])}: leave all other options out.")
    file = args.checkpoint if args.average else checkpoint_file(args.checkpoint)
    register_quietly()
    from fairseq_mm.hub import export
    from fairseq_mm.hub.model_card import read_scores
    from fairseq_mm.inference.checkpoint import Checkpoint

    if args.average:
        checkpoints = Checkpoint.open_all(file)
        export.write_average(checkpoints, args.output)
        print(f"{args.output}: mean of {len(checkpoints)} checkpoints, without optimizer")
        return
    if args.to_checkpoint:
        num_updates = export.write_checkpoint(file, args.output)
        print(f"{args.output}: checkpoint of {num_updates} updates, without optimizer")
        return
    if args.separate_network:
        checkpoint = Checkpoint.open(file)
        network = export.separate_network(checkpoint, args.output)
        name = network.removesuffix(".pt")
        weights, rest = (os.path.join(args.output, x) for x in (network, export.SEPARATED))
        print(f"{weights}: {name}, for fairseq-mm extract --model {name} --weights")
        print(f"{rest}: checkpoint of {checkpoint.num_updates} updates, without optimizer")
        return
    scores = None if args.scores is None else read_scores(args.scores)
    checkpoint = Checkpoint.open(file, data=args.data)
    parameters = export.export_checkpoint(checkpoint, args.output, scores=scores)
    print(
        f"{args.output}: --arch {checkpoint.arch}, {parameters:,} weights: "
        f"{', '.join(sorted(os.listdir(args.output)))}"
    )
