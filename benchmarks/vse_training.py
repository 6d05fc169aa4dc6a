"""Training embeddings in fairseq against a plain PyTorch loop of the same model.

    OMP_NUM_THREADS=1 python benchmarks/vse_training.py [--threads 1] [--rounds 5] [--data DIR]

Examples a second of fairseq's trainer with this package (data loading from the feature store,
gradient clipping, logging and optimizer included) against a loop that has its features in memory, a
``DataLoader``, ``nn.GRU`` or this package's LSTM, the loss as a matrix, ``torch.optim.Adam`` and
``clip_grad_norm_``. Both begin with the same weights and take turns in one process, over the same
batches, of sentences of like length; no process loads data for them. What is compared is CPU time,
which other programs disturb less than wall time.

Data are made, of the size of Flickr8k: 30,000 sentences of 8 to 14 words, 6,000 images of 1,280
features; ``--data`` names a folder of ``fairseq-mm prepare captions`` instead.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from fairseq import options, tasks
from fairseq.data import Dictionary, indexed_dataset, iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import fairseq_mm  # noqa: F401 - registers the task and the models
from fairseq_mm.data.feature_store_writer import FeatureStoreWriter
from fairseq_mm.modules.peephole_lstm import PeepholeLSTM

ARCHS = ("vse_gru", "vse_lstm", "vse_bow")
WORDS, FEATURES, SENTENCES_PER_IMAGE = 2534, 1280, 5
SHORTEST, LONGEST = 8, 14
MARGIN, RATE, CLIP = 0.2, 2e-4, 2.0


class PlainEmbedding(nn.Module):
    """The same computation in the fewest lines.

    Args:
        model: whose weights are copied.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        encoder = model.sentence_encoder
        self.embedding = nn.Embedding(*encoder.embedding.weight.shape, padding_idx=encoder.pad)
        self.recurrence: Any = None
        if encoder.kind == "gru":
            self.recurrence = nn.GRU(
                self.embedding.embedding_dim, model.embed_dim, batch_first=True
            )
        elif encoder.kind == "lstm":
            self.recurrence = PeepholeLSTM(self.embedding.embedding_dim, model.embed_dim)
        self.image_proj = nn.Linear(model.image_proj.in_features, model.embed_dim)
        self.embedding.load_state_dict(encoder.embedding.state_dict())
        self.image_proj.load_state_dict(model.image_proj.state_dict())
        if self.recurrence is not None:
            self.recurrence.load_state_dict(encoder.recurrence.state_dict())

    def forward(self, features: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        features = features * features.pow(2).mean(1, keepdim=True).rsqrt()
        images = F.normalize(self.image_proj(features), dim=1)
        words = self.embedding(tokens)
        if self.recurrence is None:
            return images, F.normalize(words.sum(1), dim=1)
        states = self.recurrence(words)
        states = states[0] if isinstance(states, tuple) else states
        last = states[torch.arange(len(tokens)), lengths - 1]
        return images, F.normalize(last, dim=1)


def plain_loss(images: Tensor, sentences: Tensor, items: Tensor) -> Tensor:
    scores = images @ sentences.t()
    true = scores.diagonal()
    costs = (MARGIN + scores - true[:, None]).clamp(min=0)
    costs = costs + (MARGIN + scores - true).clamp(min=0)
    return costs.masked_fill(items[:, None] == items, 0).sum()


class PlainPairs(torch.utils.data.Dataset):
    """Pairs with everything in memory.

    Args:
        dataset: of the task.
        reads_end: ``</s>`` is a word of the sentence.
    """

    def __init__(self, dataset: Any, *, reads_end: bool) -> None:
        self.items = dataset.item.tolist()
        _, first = np.unique(dataset.item, return_index=True)
        rows = [dataset[i]["features"].mean(0) for i in first]
        self.features = torch.from_numpy(np.stack(rows)).float()
        sentences = [dataset.target[i].long() for i in range(len(dataset))]
        self.sentences = sentences if reads_end else [tokens[:-1] for tokens in sentences]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        return self.features[self.items[i]], self.sentences[i], self.items[i]


def collate_pairs(pairs: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, ...]:
    features, sentences, items = zip(*pairs)
    lengths = torch.tensor([len(tokens) for tokens in sentences])
    tokens = pad_sequence(sentences, batch_first=True, padding_value=1)
    return torch.stack(features), tokens, lengths, torch.tensor(items)


def write_data(folder: Path, captions: int) -> None:
    generator = np.random.default_rng(1)
    dictionary = Dictionary()
    for i in range(WORDS):
        dictionary.add_symbol(f"word{i}")
    dictionary.save(str(folder / "dict.txt"))
    images = captions // SENTENCES_PER_IMAGE
    for split, count in (("train", captions), ("valid", 50)):
        path = str(folder / split)
        builder = indexed_dataset.make_builder(f"{path}.bin", "mmap", vocab_size=len(dictionary))
        for _ in range(count):
            length = generator.integers(SHORTEST, LONGEST + 1)
            words = generator.integers(4, len(dictionary), size=length).tolist()
            builder.add_item(torch.tensor([*words, dictionary.eos()]).int())
        builder.finalize(f"{path}.idx")
        keys = (f"{i % images}\n" for i in range(count))
        (folder / f"{split}.visual_ids").write_text("".join(keys))
    with FeatureStoreWriter(folder / "features.h5", dim=FEATURES, attributes={}) as writer:
        for i in range(images):
            writer.append(str(i), np.abs(generator.normal(size=(1, FEATURES))).astype(np.float16))
        writer.finish()


def build_trainer(folder: Path, save_dir: Path, arch: str, args: argparse.Namespace) -> Trainer:
    arguments = [str(folder), "--task", "multimodal_captioning", "--arch", arch, "--cpu"]
    arguments += ["--criterion", "pairwise_ranking", "--negatives", args.negatives]
    arguments += ["--optimizer", "adam", "--lr", str(RATE), "--clip-norm", str(CLIP)]
    arguments += ["--batch-size", str(args.batch), "--num-workers", "0"]
    arguments += ["--save-dir", str(save_dir)]
    parsed = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(parsed)
    torch.manual_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    task.load_dataset("train", combine=True, epoch=1)
    task.load_dataset("valid", combine=False, epoch=1)
    return Trainer(cfg, task, model, criterion)


def batches_of(trainer: Trainer) -> Iterator[list[dict[str, Any]]]:
    """Of one epoch after the other, as fairseq-train has them."""
    epoch = 0
    while True:
        epoch += 1
        epoch_iterator = trainer.get_train_iterator(epoch)
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(epoch_iterator.next_epoch_itr(shuffle=True), 1)


class Times(NamedTuple):
    cpu: float
    wall: float

    @classmethod
    def now(cls) -> "Times":
        return cls(time.process_time(), time.perf_counter())

    def passed(self) -> "Times":
        now = Times.now()
        return Times(now.cpu - self.cpu, now.wall - self.wall)


class Round(NamedTuple):
    """
    Attributes:
        ours: times of fairseq's updates.
        plain: times of the loop's.
        examples: in them.
        difference: of the summed losses, relative.
    """

    ours: Times
    plain: Times
    examples: int
    difference: float


def train_by_fairseq(
    trainer: Trainer, batches: Iterator[Any], steps: int
) -> tuple[Times, list[list[int]], float]:
    """Times of ``steps`` updates, the lines of each batch, and the sum of the losses of a pair."""
    seen, total = [], 0.0
    start = Times.now()
    for _ in range(steps):
        with metrics.aggregate("train_inner"):
            batch = next(batches)
            log = trainer.train_step(batch)
        seen.append(batch[0]["id"])
        total += log["loss"]
    times = start.passed()
    return times, [ids.tolist() for ids in seen], total


def train_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, pairs: PlainPairs, lines: list[list[int]]
) -> tuple[Times, float]:
    """As :func:`train_by_fairseq`, of batches of known lines."""
    total = 0.0
    start = Times.now()
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=lines, collate_fn=collate_pairs)
    for features, tokens, lengths, items in loader:
        loss = plain_loss(*model(features, tokens, lengths), items) / len(items)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        total += loss.item()
    return start.passed(), total


def run_rounds(trainer: Trainer, args: argparse.Namespace) -> list[Round]:
    plain = PlainEmbedding(trainer.get_model())
    optimizer = torch.optim.Adam(plain.parameters(), lr=RATE)
    encoder = trainer.get_model().sentence_encoder
    pairs = PlainPairs(trainer.task.datasets["train"], reads_end=encoder.signs == "end")
    batches = batches_of(trainer)
    rounds = []
    for number in range(args.rounds + 1):
        ours, lines, our_loss = train_by_fairseq(trainer, batches, args.steps)
        theirs, plain_loss_ = train_plainly(plain, optimizer, pairs, lines)
        if number:  # the first warms up
            difference = abs(our_loss / plain_loss_ - 1)
            rounds.append(Round(ours, theirs, sum(map(len, lines)), difference))
    return rounds


def report(arch: str, rounds: list[Round], args: argparse.Namespace) -> dict[str, float]:
    print(f"{arch}: batches of {args.batch}, {args.threads} thread(s), {args.rounds} rounds")
    result = {}
    for kind in ("cpu", "wall"):
        ours = [r.examples / getattr(r.ours, kind) for r in rounds]
        plain = [r.examples / getattr(r.plain, kind) for r in rounds]
        ratios = [a / b for a, b in zip(ours, plain)]
        ratio = statistics.median(ratios)
        print(
            f"  {kind} time: fairseq_mm {statistics.median(ours):,.0f} examples/s, plain loop "
            f"{statistics.median(plain):,.0f}, ratio {ratio:.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f})"
        )
        result[f"{arch}_{kind}_ratio"] = round(ratio, 3)
    if args.negatives == "sum":
        print(f"  losses differ by {max(r.difference for r in rounds):.1e}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--archs", nargs="+", default=list(ARCHS), choices=ARCHS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="updates a round")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--negatives", default="sum", help="of fairseq_mm; the loop's are summed")
    parser.add_argument("--captions", type=int, default=30_000, help="of the data that are made")
    parser.add_argument("--data", type=Path, help="folder of `prepare captions`")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.data is None:
            write_data(Path(folder), args.captions)
        for arch in args.archs:
            trainer = build_trainer(args.data or Path(folder), Path(folder) / "ck", arch, args)
            result.update(report(arch, run_rounds(trainer, args), args))
            metrics.reset()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
