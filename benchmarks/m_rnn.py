"""m-RNN in fairseq beside plain PyTorch loops of the same network.

    OMP_NUM_THREADS=1 python benchmarks/m_rnn.py [--rounds 5]

measures greedy decoding of captions of 12 words; ``run.py`` measures updates. The loop has the
recurrence as a Python loop, ``F.cross_entropy`` and ``torch.optim.Adam``. Sizes are those of
Flickr8k: 2,538 words, captions of 11.8 tokens, 1,280 features, batches of 128.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import _caption_data as data
import numpy as np
import torch
import torch.nn.functional as F
from _caption_data import FEATURES
from fairseq.data import iterators
from fairseq.trainer import Trainer
from torch import Tensor, nn

IMAGES, LENGTH = 1200, 12


class PlainMRnn(nn.Module):
    """Equations 2 to 4, a step at a time."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.first = nn.Embedding(vocabulary, 128, padding_idx=1)
        self.second = nn.Linear(128, 256)
        self.recurrent = nn.Linear(256, 256, bias=False)
        self.from_word = nn.Linear(256, 512, bias=False)
        self.from_recurrent = nn.Linear(256, 512)
        self.from_image = nn.Linear(FEATURES, 512, bias=False)
        self.output = nn.Linear(512, vocabulary)

    def step(self, tokens: Tensor, state: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        word = self.second(F.dropout(self.first(tokens), 0.3, self.training))
        state = torch.relu(self.recurrent(state) + word)
        mixed = self.from_word(word) + image
        mixed = mixed + self.from_recurrent(F.dropout(state, 0.3, self.training))
        mixed = F.dropout(1.7159 * torch.tanh(mixed * (2 / 3)), 0.5, self.training)
        return self.output(mixed), state

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        image = self.from_image(F.dropout(features, 0.3, self.training))
        state = image.new_zeros(len(tokens), 256)
        logits = []
        for t in range(tokens.size(1)):
            step, state = self.step(tokens[:, t], state, image)
            logits.append(step)
        return torch.stack(logits, dim=1)


def write_data(folder: Path) -> None:
    data.write_data(folder, IMAGES, lambda x: np.clip(x.normal(10.8, 3.7), 4, 30))


def build_trainer(folder: Path, save_dir: Path, *others: str) -> Trainer:
    arguments = [
        "--arch",
        "m_rnn",
        "--criterion",
        "cross_entropy",
        "--lr",
        "0.001",
        "--clip-norm",
        "5",
    ]
    return data.build_trainer(folder, save_dir, *arguments, *others)


def timed_by_fairseq(
    trainer: Trainer, steps: int, epoch: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float, list]:
    """Seconds of ``steps`` updates, seconds of them waiting for data, and the batches."""
    epoch_iterator = trainer.get_train_iterator(epoch, disable_iterator_cache=True)
    batches = iterators.GroupedIterator(epoch_iterator.next_epoch_itr(shuffle=True), 1)
    trainer.begin_epoch(epoch)
    trainer.train_step(next(batches))
    seen, waiting, start = [], 0.0, clock()
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - before
        seen.extend(batch)
        trainer.train_step(batch)
    seconds = clock() - start
    return seconds, waiting, seen


def timed_plainly(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: list,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    model.train()
    start = clock()
    for batch in batches:
        features = batch["net_input"]["features"][:, 0].float()
        logits = model(features, batch["net_input"]["prev_output_tokens"])
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch["target"].flatten(), ignore_index=1, reduction="sum"
        )
        optimizer.zero_grad()
        (loss / batch["ntokens"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
    return clock() - start


def plain_greedy(model: PlainMRnn, features: Tensor) -> Tensor:
    image = model.from_image(features)
    state, tokens = image.new_zeros(len(image), 256), torch.full((len(image),), 2)
    words = []
    for _ in range(LENGTH):
        logits, state = model.step(tokens, state, image)
        tokens = torch.log_softmax(logits, dim=-1).argmax(dim=-1)
        words.append(tokens)
    return torch.stack(words, dim=1)


def decoding(trainer: Trainer, plain: PlainMRnn, batch: int) -> tuple[Callable, Callable]:
    """Greedy captions of ``batch`` images: through fairseq's generator, and by a plain loop."""
    model = trainer.model
    model.eval()
    plain.eval()
    with torch.no_grad():
        # no sentence ends before its twelve words
        model.decoder.output_proj.bias[2] = plain.output.bias[2] = -1e4
    model.prepare_for_inference_(trainer.cfg)  # as fairseq-generate does
    generator = trainer.task.build_generator([model], Namespace(beam=1, max_len_b=LENGTH))
    features = torch.rand(batch, 1, FEATURES)
    sample = {
        "id": torch.arange(batch),
        "net_input": {
            "features": features,
            "padding_mask": torch.zeros(batch, 1, dtype=torch.bool),
        },
    }
    return (
        lambda: trainer.task.inference_step(generator, [model], sample),
        lambda: plain_greedy(plain, features[:, 0]),
    )


def median_seconds(functions: dict[str, Callable], rounds: int, calls: int) -> dict[str, float]:
    """Median of ``rounds`` rounds in which the functions take turns, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for counted in range(-1, rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            if counted >= 0:
                times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        trainer = build_trainer(Path(folder), Path(folder) / "checkpoints")
    plain = PlainMRnn(len(trainer.task.target_dictionary))
    with torch.no_grad():
        for batch in (1, 100):
            generate, loop = decoding(trainer, plain, batch)
            times = median_seconds({"ours": generate, "plain": loop}, args.rounds, 5)
            ours, theirs = (1000 * times[name] / batch for name in ("ours", "plain"))
            print(
                f"greedy decoding B={batch} words={LENGTH}: fairseq_mm {ours:.2f} ms a "
                f"sentence, plain loop {theirs:.2f} ms, ratio {ours / theirs:.2f}"
            )


if __name__ == "__main__":
    main()
