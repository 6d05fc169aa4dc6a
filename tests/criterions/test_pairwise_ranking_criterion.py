"""Which pairs are negatives, over one process or several."""

import math
import multiprocessing
import os
import socket
from argparse import Namespace

import pytest
import torch
import torch.nn.functional as F
from numerics import assert_close
from toy_processes import needs_fork

from fairseq_mm.criterions.pairwise_ranking import (
    LEAST_LEARNT_TEMPERATURE,
    PairwiseRankingCriterion,
)

D, K = 4, 5
ITEMS = [3, 1, 3, 0, 2]
TASK = Namespace(target_dictionary=None)


class TwoProjections(torch.nn.Module):
    """Stands for an embedding: "tokens" are vectors here."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.image_proj = torch.nn.Linear(D, K)
        self.sentence_proj = torch.nn.Linear(D, K)

    def embed_sentences(self, tokens):
        return F.normalize(self.sentence_proj(tokens), dim=-1)

    def forward(self, features, padding_mask, tokens):
        images = F.normalize(self.image_proj(features[:, 0]), dim=-1)
        return images, self.embed_sentences(tokens)


def batch_of(rows, **others):
    """Some of five pairs."""
    generator = torch.Generator().manual_seed(1)
    features, tokens = (torch.randn(5, D, generator=generator)[rows] for _ in range(2))
    net_input = {"features": features[:, None], "padding_mask": torch.zeros(len(rows), 1).bool()}
    items = torch.tensor(ITEMS)[rows]
    return {
        "net_input": net_input,
        "target": tokens,
        "id": torch.tensor(rows),
        "item": items,
        "ntokens": 3,
        "update_num": 0,
        **others,
    }


def loss_by_loops(model, rows, *, drawn=None, same_image=False):
    batch = batch_of([0, 1, 2, 3, 4])
    images, sentences = model(**batch["net_input"], tokens=batch["target"])
    total = 0.0
    for i in rows:
        for k in rows if drawn is None else drawn:
            if k == i or (not same_image and ITEMS[i] == ITEMS[k]):
                continue
            true = float(images[i] @ sentences[i])
            total += max(0.0, 0.2 - true + float(images[i] @ sentences[k]))
            total += max(0.0, 0.2 - true + float(sentences[i] @ images[k]))
    return total


@pytest.mark.parametrize("same_image", [False, True])
def test_sentences_of_the_same_image_are_negatives_only_if_asked_for(same_image):
    model = TwoProjections()
    criterion = PairwiseRankingCriterion(TASK, same_image_negatives=same_image)
    loss, sample_size, log = criterion(model, batch_of([0, 1, 2, 3, 4]))
    expected = loss_by_loops(model, [0, 1, 2, 3, 4], same_image=same_image)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert sample_size == log["sample_size"] == log["nsentences"] == 5


@pytest.mark.parametrize("same_image", [False, True])
def test_negatives_that_are_drawn_stand_in_the_batchs_place(same_image):
    """Of pairs that are in the batch, too, and of one of the same image that is not."""
    model = TwoProjections()
    criterion = PairwiseRankingCriterion(
        TASK, negatives="random", num_negatives=4, same_image_negatives=same_image
    )
    assert criterion.extra_pairs_per_batch == 4
    rows, drawn = [0, 1, 4], [2, 1, 3, 4]
    batch = batch_of(rows, negatives=batch_of(drawn))
    loss, sample_size, _ = criterion(model, batch)
    expected = loss_by_loops(model, rows, drawn=drawn, same_image=same_image)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert sample_size == 3
    # validation compares with the batch, and needs none
    del batch["negatives"], batch["update_num"]
    loss, _, _ = criterion(model, batch)
    expected = loss_by_loops(model, rows, same_image=same_image)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def info_nce_by_loops(model, rows, temperature, *, drawn=None):
    batch = batch_of([0, 1, 2, 3, 4])
    images, sentences = model(**batch["net_input"], tokens=batch["target"])
    total = 0.0
    for i in rows:
        rivals = [k for k in (rows if drawn is None else drawn) if ITEMS[k] != ITEMS[i]]
        for query, match, candidates in (
            (images[i], sentences[i], sentences),
            (sentences[i], images[i], images),
        ):
            scores = [float(query @ x) for x in (match, *(candidates[k] for k in rivals))]
            exponentials = [math.exp(score / temperature) for score in scores]
            total -= math.log(exponentials[0] / sum(exponentials))
    return total


def test_info_nce_has_the_same_negatives_as_the_ranking():
    """Of the batch, without other sentences of the same image, or drawn."""
    model, rows = TwoProjections(), [0, 1, 2, 3, 4]
    options = {"loss": "info_nce", "loss_temperature": 0.2}
    loss, sample_size, log = PairwiseRankingCriterion(TASK, **options)(model, batch_of(rows))
    assert float(loss) == pytest.approx(info_nce_by_loops(model, rows, 0.2), rel=1e-5)
    assert sample_size == 5
    assert "temperature" not in log
    criterion = PairwiseRankingCriterion(TASK, **options, negatives="random")
    loss, _, _ = criterion(model, batch_of([0, 1, 4], negatives=batch_of([2, 1, 3, 4])))
    expected = info_nce_by_loops(model, [0, 1, 4], 0.2, drawn=[2, 1, 3, 4])
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_temperature_is_trained_and_bounded():
    model = TwoProjections()
    options = {"loss": "info_nce", "loss_temperature": 0.1, "learn_temperature": True}
    criterion = PairwiseRankingCriterion(TASK, **options)
    assert not list(PairwiseRankingCriterion(TASK, loss="info_nce").parameters())
    loss, _, log = criterion(model, batch_of([0, 1, 2, 3, 4]))
    loss.backward()
    assert float(log["temperature"]) == pytest.approx(0.5)
    step = 1e-3
    values = [info_nce_by_loops(model, range(5), 0.1 * math.exp(sign * step)) for sign in (1, -1)]
    slope = (values[0] - values[1]) / (2 * step)
    assert float(criterion.log_temperature.grad) == pytest.approx(slope, rel=1e-2)
    with torch.no_grad():
        criterion.log_temperature.fill_(-20.0)
    loss, _, log = criterion(model, batch_of([0, 3]))
    assert float(log["temperature"]) == pytest.approx(2 * LEAST_LEARNT_TEMPERATURE)
    assert float(loss) == pytest.approx(
        info_nce_by_loops(model, [0, 3], LEAST_LEARNT_TEMPERATURE), rel=1e-4, abs=1e-4
    )


def test_hardest_negatives_come_after_the_sum():
    model = TwoProjections()

    def loss(update, **options):
        batch = batch_of([0, 1, 3], update_num=update)
        return float(PairwiseRankingCriterion(TASK, **options)(model, batch)[0])

    total, hardest = loss(0), loss(0, negatives="max")
    assert total > hardest
    assert [loss(update, negatives="max", sum_updates=3) for update in (0, 2, 3, 9, None)] == [
        *(total, total, hardest, hardest, hardest)
    ]


def _run_rank(rank, port, path, options, batches):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model, criterion = TwoProjections(), PairwiseRankingCriterion(TASK, **options)
    loss, _, _ = criterion(model, batches[rank])
    if batches[rank].get("is_dummy"):
        loss *= 0  # as fairseq does
    loss.backward()
    results = [loss.detach(), *gradients_of(model, criterion)]
    for result in results:
        torch.distributed.all_reduce(result)
    if rank == 0:
        torch.save(results, path)
    torch.distributed.barrier()
    os._exit(0)


def gradients_of(*modules):
    return [parameter.grad for module in modules for parameter in module.parameters()]


def of_two_processes(path, options, *batches):
    """Loss and gradients, summed over the processes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_run_rank, args=(rank, port, path, options, batches))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return torch.load(path)


@needs_fork
@pytest.mark.parametrize(
    ("batches", "rows"),
    [
        ((batch_of([0, 1, 2]), batch_of([3, 4])), [0, 1, 2, 3, 4]),
        ((batch_of([3]), batch_of([0, 2, 1])), [3, 0, 2, 1]),
        ((batch_of([0, 3, 4]), batch_of([1, 2], is_dummy=True)), [0, 3, 4]),
        ((batch_of([1, 2], is_dummy=True), batch_of([0, 3])), [0, 3]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"loss": "info_nce", "learn_temperature": True}])
def test_negatives_are_those_of_all_processes(tmp_path, batches, rows, options):
    """Uneven batches, and one that stands in for none."""
    found = of_two_processes(tmp_path / "results.pt", options, *batches)
    model, criterion = TwoProjections(), PairwiseRankingCriterion(TASK, **options)
    loss, _, _ = criterion(model, batch_of(rows))
    assert float(loss) > 0
    loss.backward()
    expected = [loss.detach(), *gradients_of(model, criterion)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert_close(one, other)
