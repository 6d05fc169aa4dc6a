"""Scores sampled texts: rewards for training, in worker processes, and expected utilities.

A reward is a weighted sum of CIDEr-D, BLEU and ROUGE-L of one text. Words are strings or token
indices. A finished text has the end token as its last word, in references and in samples, so that
the n-grams contain the end. Otherwise, the reward would not distinguish a complete caption from a
caption that stops before its last noun ("a dog runs through the").
"""

import contextlib
import math
import multiprocessing
import os
import signal
import weakref
from collections.abc import Hashable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.bleu import smoothed_bleu
from fairseq_mm.metrics.cider import CiderD, InverseDocumentFrequencies
from fairseq_mm.metrics.meteor import meteor
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.metrics.rouge import rouge_l

REWARDS = ("cider", "bleu", "rouge_l")
Words = Sequence[Hashable]
# seconds in which a worker ends by itself when its pipe is closed
_PATIENCE = 5.0


class Job(NamedTuple):
    """Sampled texts of one image (or video) and its references."""

    samples: Sequence[Words]
    references: Sequence[Words]


def read_rewards(text: str) -> dict[str, float]:
    """Read the option ``--rewards``, such as ``cider=1,bleu=0.5``; weights of 1 are optional."""
    rewards: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        try:
            weight = float(value) if sign else 1.0
        except ValueError:
            weight = math.nan
        if name not in REWARDS or name in rewards or not 0 < weight < math.inf:
            raise UserError(
                f"--rewards {text}: each part must be one of {', '.join(REWARDS)}, named once, and "
                f"if needed = and a weight above 0, but one is {part.strip()!r}."
            )
        rewards[name] = weight
    return rewards


class Rewards:
    """Reward of sampled texts: a weighted sum of metrics (``weights``, see :func:`read_rewards`).
    The metric ``cider`` needs ``frequencies``, the weights of n-grams."""

    def __init__(
        self, weights: Mapping[str, float], frequencies: Optional[InverseDocumentFrequencies]
    ) -> None:
        self.weights = dict(weights)
        self.frequencies = frequencies

    def score(self, job: Job) -> list[float]:
        """Compute the reward of each sampled text of ``job``."""
        samples, references = job
        totals = [0.0] * len(samples)
        for name, weight in self.weights.items():
            if name == "cider":
                cider = CiderD([references], self.frequencies)
                scores = [cider.score_item(words, 0) for words in samples]
            elif name == "bleu":
                scores = [smoothed_bleu(words, references) for words in samples]
            else:
                scores = [rouge_l(words, references) for words in samples]
            totals = [total + weight * score for total, score in zip(totals, scores)]
        return totals


class RewardWorkers:
    """Worker processes that compute rewards while the training process goes on.

    With ``count`` 0, the calling process computes them.

    A worker ends when its pipe is closed: by :meth:`close`, at the end of the program, or because
    the training process has ended in any way. Workers ignore the interrupt of the keyboard.
    """

    def __init__(self, rewards: Rewards, count: int) -> None:
        self.rewards = rewards
        self._waiting: list[Job] = []
        self._sizes: list[int] = []
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        # forked, because the document frequencies are then shared and not copied
        context: Any = multiprocessing.get_context("fork")
        for _ in range(count):
            ours, theirs = context.Pipe()
            others = [*self._pipes, ours]
            process = context.Process(
                target=_work, args=(theirs, others, rewards), name="rewards", daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._end = weakref.finalize(self, _close, self._pipes, self._processes, os.getpid())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Begin to compute the rewards of some jobs; :meth:`collect` must follow."""
        if not self._pipes:
            self._waiting = list(jobs)
            return
        share = -(-len(jobs) // len(self._pipes))
        for i, pipe in enumerate(self._pipes):
            # collect reports a worker that has ended
            with contextlib.suppress(OSError):
                pipe.send(jobs[i * share : (i + 1) * share])

    def collect(self) -> list[list[float]]:
        """Return the rewards of the submitted jobs: one list of numbers per job."""
        if not self._pipes:
            return [self.rewards.score(job) for job in self._waiting]
        results: list[list[float]] = []
        for pipe, process in zip(self._pipes, self._processes):
            try:
                results += pipe.recv()
            except (EOFError, OSError):
                process.join(_PATIENCE)
                raise RuntimeError(
                    f"a process that computes rewards has ended (status {process.exitcode})."
                ) from None
        return results

    def close(self) -> None:
        """End the processes."""
        self._end()


def _work(pipe: Connection, others: Sequence[Connection], rewards: Rewards) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # only the training process may keep its end open: otherwise no worker would see that it closes
    for other in others:
        other.close()
    try:
        while True:
            pipe.send([rewards.score(job) for job in pipe.recv()])
    except (EOFError, OSError):
        return


def _close(pipes: list[Connection], processes: list[Any], owner: int) -> None:
    # a process that was forked later, such as a loader of data, owns no worker
    if os.getpid() != owner:
        return
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.join(_PATIENCE)
        if process.is_alive():
            process.terminate()
            process.join()
    pipes.clear()
    processes.clear()


def expected_utilities(texts: Sequence[str], utility: str) -> list[float]:
    """Compute the expected utility of each of N texts, for minimum Bayes risk decoding.

    Defined by Eikema and Aziz 2022 (https://arxiv.org/abs/2108.04718): the mean similarity of a
    text and the other texts. The paper's mean includes the text itself, which adds the same utility
    to every candidate. The texts are tokenized as by coco-caption.

    Args:
        texts: Samples of one input, two or more.
        utility: ``bleu`` for BLEU-4 of a single text, see :func:`.smoothed_bleu`; ``rouge_l``;
            ``meteor``; or ``cider`` for CIDEr-D, whose document frequencies are counted in the N
            texts.
    """
    tokens = [ptb_tokenize(text) for text in texts]
    # a text that was sampled several times has the same utility each time
    distinct = {tuple(words): i for i, words in reversed(list(enumerate(tokens)))}
    pairs = [(i, j) for i in distinct.values() for j in range(len(tokens)) if j != i]
    if utility == "meteor":
        lines = [" ".join(words) for words in tokens]
        _, scores = meteor([lines[i] for i, _ in pairs], [[lines[j]] for _, j in pairs])
    elif utility == "cider":
        # each sample is a document, so that words which all samples have count less
        scorer = CiderD([[words] for words in tokens])
        scores = [scorer.score_item(tokens[i], j) for i, j in pairs]
    else:
        measure = smoothed_bleu if utility == "bleu" else rouge_l
        scores = [measure(tokens[i], [tokens[j]]) for i, j in pairs]
    totals = np.zeros(len(tokens))
    for (i, _), score in zip(pairs, scores):
        totals[i] += score
    return [totals[distinct[tuple(words)]] / (len(tokens) - 1) for words in tokens]
