"""Time of an update with ``--criterion unlikelihood`` beside one with cross-entropy.

    OMP_NUM_THREADS=1 python benchmarks/unlikelihood.py data-bin/vist-mini \\
        checkpoints/transtory_decoder/checkpoint_best.pt [--batch-size 32] [--rounds 7]

An update here is the forward and backward pass of the training batches' criterion; the optimizer's
step is the same for all. The criterions take turns on the same batches. The time is CPU time of one
process, the median of the rounds, so that other processes disturb it little. The sequence level
depends on the length of the texts that the model generates, hence a trained checkpoint.
"""

import argparse
import json
import statistics
import time
import warnings
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.criterions import CRITERION_REGISTRY

import fairseq_mm

OPTIONS = {
    "unlikelihood_weight": 1.0,
    "sequence_fraction": 0.0,
    "sequence_ngram": 4,
    "sequence_sampling": False,
    "contrastive_weight": 0.0,
    "label_smoothing": 0.0,
    "chunk_megabytes": 128,
}
# name -> criterion and its options
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "cross_entropy": ("cross_entropy", {}),
    "chunked_cross_entropy": (
        "chunked_cross_entropy",
        {"label_smoothing": 0.0, "chunk_megabytes": 128},
    ),
    "unlikelihood, token level": ("unlikelihood", OPTIONS),
    "unlikelihood, sequence level": ("unlikelihood", {**OPTIONS, "sequence_fraction": 1.0}),
    "unlikelihood, with contrast": ("unlikelihood", {**OPTIONS, "contrastive_weight": 1.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="Data folder.")
    parser.add_argument("checkpoint", help="Trained checkpoint.")
    parser.add_argument("--split", default="valid", help="Split of the batches.")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7, help="Number of measured batches.")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    fairseq_mm.register()
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [args.checkpoint], arg_overrides={"data": args.data}
    )
    # as validation loads it: every line, with its target
    task.load_dataset(args.split, combine=False, epoch=1)
    batches = task.get_batch_iterator(
        task.dataset(args.split), max_sentences=args.batch_size, seed=1
    ).next_epoch_itr(shuffle=True)
    model = models[0].train()
    criterions = {
        name: CRITERION_REGISTRY[kind](task, False, **options)
        for name, (kind, options) in WAYS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for number, sample in zip(range(args.rounds + 1), batches):
        for name, criterion in criterions.items():
            model.zero_grad()
            torch.manual_seed(number)
            start = time.process_time()
            criterion(model, sample)[0].backward()
            # the first round warms up
            if number:
                seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name}: {value:.3f} s, {value / medians['cross_entropy']:.2f} x cross-entropy")
    print(json.dumps({name: round(value, 4) for name, value in medians.items()}))


if __name__ == "__main__":
    main()
