"""Loss against time beside fairseq's own story model, on the same batches.

    python benchmarks/story_learning.py DATA [--updates 200] [--every 25]

DATA is a folder of prompts and stories, such as OUT/data of 6_follow_prompts.sh. fairseq's
``fconv_self_att_wp`` and this package's ``conv_story_wp`` have three decoder layers of 64 channels
and begin with equal weights. In turn, each makes an update with the same batch: fairseq's model
with fairseq's cross-entropy, ours with ``chunked_cross_entropy``, both with fairseq's Adam. There
is no dropout, whose masks would differ. Times are CPU seconds of the updates on one thread, without
validation.
"""

import argparse
import sys
import time
from argparse import Namespace
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer

import fairseq_mm  # noqa: F401 - registers the models
from fairseq_mm.models._fairseq_stories import convert_weights

ARCHITECTURES = ("fconv_self_att_wp", "conv_story_wp")
SIZES = (
    *("--encoder-embed-dim", "64", "--encoder-layers", "[(64, 3)] * 2"),
    *("--decoder-embed-dim", "64", "--decoder-out-embed-dim", "64"),
    *("--decoder-layers", "[(64, 4)] * 3", "--dropout", "0"),
)
VALID_PAIRS = 64


class Learner:
    """Model in training, with its criterion, optimizer and time.

    Args:
        arch: Name of the architecture.
        data: Folder of prompts and stories.
        args: Parsed command line.
    """

    def __init__(self, arch: str, data: str, args: Namespace) -> None:
        is_ours = arch == "conv_story_wp"
        criterion = "chunked_cross_entropy" if is_ours else "cross_entropy"
        command = [data, "--task", "hierarchical_story", "--arch", arch, "--criterion", criterion]
        command += [*SIZES, "--optimizer", "adam", "--lr", str(args.lr), "--seed", "1", "--cpu"]
        if is_ours:
            command += ["--compat", "released"]
        parsed = options.parse_args_and_arch(options.get_training_parser(), command)
        cfg = convert_namespace_to_omegaconf(parsed)
        torch.manual_seed(1)
        self.task: Any = tasks.setup_task(cfg.task)
        self.model = self.task.build_model(cfg.model)
        self.criterion = self.task.build_criterion(cfg.criterion)
        self.parameters = [x for x in self.model.parameters() if x.requires_grad]
        self.optimizer = build_optimizer(cfg.optimizer, self.parameters)
        self.rate, self.warmup = args.lr, args.warmup
        self.updates, self.seconds = 0, 0.0

    def update(self, batch: Any) -> None:
        """Make an update and add its CPU time."""
        start = time.process_time()
        self.updates += 1
        self.optimizer.set_lr(self.rate * min(1, self.updates / self.warmup))
        self.optimizer.zero_grad()
        loss, size, _ = self.criterion(self.model, batch)
        self.optimizer.backward(loss / size)
        self.optimizer.clip_grad_norm(0.5)
        self.optimizer.step()
        self.seconds += time.process_time() - start

    def loss(self, batch: Any) -> float:
        """Return the loss of ``batch``, in nats a token."""
        self.model.eval()
        with torch.no_grad():
            loss, size, _ = self.criterion(self.model, batch)
        self.model.train()
        return float(loss / size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--every", type=int, default=25, help="updates between two validations")
    parser.add_argument("--max-tokens", type=int, default=700)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--warmup", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    theirs, ours = learners = [Learner(arch, args.data, args) for arch in ARCHITECTURES]
    converted = convert_weights(ours.model, theirs.model.state_dict())
    assert converted.fits
    torch.nn.Module.load_state_dict(ours.model, converted.weights, strict=False)

    task = ours.task
    for split in ("train", "valid"):
        task.load_dataset(split)
    valid = task.dataset("valid")
    held_out = valid.collater([valid[i] for i in range(min(VALID_PAIRS, len(valid)))])
    batches = task.get_batch_iterator(
        task.dataset("train"), max_tokens=args.max_tokens, required_batch_size_multiple=1, seed=1
    )
    print("updates | fairseq, loss | ours, loss | fairseq, CPU s | ours, CPU s | ratio")
    while True:
        for batch in batches.next_epoch_itr(shuffle=True):
            for learner in learners:
                learner.update(batch)
            if ours.updates % args.every == 0 or ours.updates == args.updates:
                losses = [f"{learner.loss(held_out):.4f}" for learner in learners]
                times = [f"{learner.seconds:.1f}" for learner in learners]
                ratio = f"{theirs.seconds / ours.seconds:.2f}"
                print(" | ".join([str(ours.updates), *losses, *times, ratio]), flush=True)
            if ours.updates == args.updates:
                sys.exit()


if __name__ == "__main__":
    main()
