"""Training of embeddings in fairseq beside a plain PyTorch loop of the same model, for ``run.py``.

The loop has its features in memory, a ``DataLoader``, ``nn.GRU`` or this package's LSTM, the loss
as a matrix, ``torch.optim.Adam`` and ``clip_grad_norm_``. Both begin with the same weights and take
turns over the same batches. Data are drawn, of the size of Flickr8k: 30,000 sentences of 8 to 14
words, 6,000 images of 1,280 features.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _caption_data as data
import numpy as np
import torch
import torch.nn.functional as F
from fairseq.data import iterators
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fairseq_mm.models.vse import PeepholeLSTM

ARCHS = ("vse_gru", "vse_lstm", "vse_bow")
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
    images = captions // data.CAPTIONS_PER_IMAGE
    data.write_data(folder, images, lambda x: x.integers(SHORTEST, LONGEST + 1))


def build_trainer(folder: Path, save_dir: Path, arch: str) -> Trainer:
    arguments = ["--arch", arch, "--criterion", "pairwise_ranking", "--negatives", "sum"]
    arguments += ["--lr", str(RATE), "--clip-norm", str(CLIP), "--num-workers", "0"]
    return data.build_trainer(folder, save_dir, *arguments)


def batches_of(trainer: Trainer) -> Iterator[list[dict[str, Any]]]:
    """Of one epoch after the other, as fairseq-train has them."""
    epoch = 0
    while True:
        epoch += 1
        epoch_iterator = trainer.get_train_iterator(epoch)
        trainer.begin_epoch(epoch)
        yield from iterators.GroupedIterator(epoch_iterator.next_epoch_itr(shuffle=True), 1)


def run_rounds(
    trainer: Trainer, steps: int, rounds: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the median seconds of an update by fairseq's trainer and by the loop, in turns."""
    plain = PlainEmbedding(trainer.get_model())
    optimizer = torch.optim.Adam(plain.parameters(), lr=RATE)
    encoder = trainer.get_model().sentence_encoder
    pairs = PlainPairs(trainer.task.datasets["train"], reads_end=encoder.signs == "end")
    batches = batches_of(trainer)
    times = []
    for _ in range(rounds + 1):
        seen, start = [], clock()
        for _ in range(steps):
            with metrics.aggregate("train_inner"):
                batch = next(batches)
                trainer.train_step(batch)
            seen.append(batch[0]["id"].tolist())
        middle = clock()
        loader = torch.utils.data.DataLoader(pairs, batch_sampler=seen, collate_fn=collate_pairs)
        for features, tokens, lengths, items in loader:
            loss = plain_loss(*plain(features, tokens, lengths), items) / len(items)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
            optimizer.step()
        times.append(((middle - start) / steps, (clock() - middle) / steps))
    ours, theirs = (statistics.median(column) for column in zip(*times[1:]))  # the first warms up
    return ours, theirs
