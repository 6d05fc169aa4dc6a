"""Mean rewards of a checkpoint's greedy and sampled captions, on training and on dev images.

    OMP_NUM_THREADS=1 python benchmarks/rewards.py DATA CHECKPOINT... [--images 256]

The reward is the default of ``--criterion self_critical``: CIDEr-D with the end token, and
the document frequencies of the training split (``fairseq-mm frequencies DATA``). A gain on training
images alone shows overfitting.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils

import fairseq_mm
from fairseq_mm.criterions.self_critical import References
from fairseq_mm.metrics.document_frequencies import digest_texts, read_frequencies
from fairseq_mm.metrics.rewards import Job, Rewards
from fairseq_mm.modules.evaluation_mode import evaluation_mode

SPLITS, SAMPLES = ("train", "valid"), 5


def score_captions(
    model: Any, task: Any, split: str, images: int, rewards: Rewards
) -> Iterator[tuple[str, float, float]]:
    """Yield for greedy search and for sampling: its name, mean reward, and mean number of words."""
    text = task.reward_text()
    task.load_dataset(split, combine=False, epoch=1)
    dataset = task.datasets[split]
    references = References(dataset, text, split)
    generator = np.random.default_rng(0)
    chosen = generator.choice(len(dataset), min(images, len(dataset)), replace=False)
    sample = dataset.collater([dataset[int(index)] for index in chosen])
    for name, beam in (("greedy", 1), ("sampled", SAMPLES)):
        with torch.no_grad(), evaluation_mode(model):
            policy = task.build_policy(model, beam, sampling=name == "sampled", text="{}")
            drawn = policy.draw(sample, stream=0)
        scores, lengths = [], []
        for row, cuts, line in zip(drawn.tokens, drawn.is_cut, sample["id"].tolist()):
            captions = text.words_of_samples(row, cuts)
            scores += rewards.score(Job(captions, references[line]))
            lengths += [len(caption) - (not cut) for caption, cut in zip(captions, cuts.tolist())]
        yield name, statistics.mean(scores), statistics.mean(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("checkpoints", metavar="CHECKPOINT", nargs="+")
    parser.add_argument("--images", type=int, default=256, help="number of images of each split")
    args = parser.parse_args()
    fairseq_mm.register()
    options = {"data": args.data, "eval_gen": False, "one_per_item": True}
    for path in args.checkpoints:
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [path], arg_overrides=options
        )
        frequencies = read_frequencies(
            args.data,
            SPLITS[0],
            find=task.reward_text().find,
            texts=digest_texts(task.reward_files(SPLITS[0])),
        )
        for split in SPLITS:
            rows = score_captions(
                model, task, split, args.images, Rewards({"cider": 1.0}, frequencies)
            )
            for name, reward, length in rows:
                print(f"{path} {split} {name}: reward {reward:.3f}, {length:.1f} words", flush=True)


if __name__ == "__main__":
    main()
