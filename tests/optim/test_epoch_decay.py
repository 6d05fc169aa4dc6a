"""The learning rate of each epoch, from its first update on, in runs that are resumed too."""

from argparse import Namespace

import pytest
import torch
from fairseq.optim.sgd import SGD
from torch import nn

from fairseq_mm.errors import UserError
from fairseq_mm.optim.epoch_decay import EpochDecay


def scheduler_of(**options):
    cfg = {"decay_factor": 0.95, "decay_epochs": 10, "warmup_updates": 0, "lr": [2e-3], **options}
    optimizer = SGD(
        Namespace(lr=[1.0], momentum=0.0, weight_decay=0.0), [nn.Parameter(torch.zeros(1))]
    )
    return EpochDecay(Namespace(**cfg), optimizer)


def test_rates_are_the_papers():
    scheduler = scheduler_of()
    for epoch in range(1, 61):
        scheduler.step_begin_epoch(epoch)
        expected = 2e-3 * 0.95 ** ((epoch - 1) // 10)
        assert scheduler.optimizer.get_lr() == pytest.approx(expected, rel=1e-12)
        assert scheduler.step_update(7 * epoch) == pytest.approx(expected, rel=1e-12)
        scheduler.step(epoch, 1.0)  # after the last update of the epoch
        assert scheduler.step_update(7 * epoch) == pytest.approx(expected, rel=1e-12)


def test_the_first_updates_warm_up():
    scheduler = scheduler_of(warmup_updates=4, decay_epochs=1)
    scheduler.step_begin_epoch(1)
    rates = [scheduler.optimizer.get_lr(), *(scheduler.step_update(i) for i in range(1, 6))]
    assert rates == pytest.approx([5e-4, 1e-3, 1.5e-3, 2e-3, 2e-3, 2e-3])
    scheduler.step_begin_epoch(2)
    assert scheduler.optimizer.get_lr() == pytest.approx(2e-3 * 0.95)


def test_a_resumed_run_has_the_rate_of_its_epoch():
    whole, resumed = scheduler_of(decay_epochs=2), scheduler_of(decay_epochs=2)
    whole.step_begin_epoch(5)
    resumed.load_state_dict(whole.state_dict())
    # as fairseq does: updates first, then what it calls the end of an epoch, then its beginning
    resumed.step_update(31)
    resumed.step(6, None)
    resumed.step_begin_epoch(5)
    assert resumed.optimizer.get_lr() == whole.optimizer.get_lr() == 2e-3 * 0.95**2


def test_a_run_with_another_scheduler_goes_on():
    scheduler = scheduler_of(decay_epochs=2)
    scheduler.load_state_dict({"lr": 0.5})  # what fairseq's fixed scheduler saves
    scheduler.step_begin_epoch(5)
    assert scheduler.optimizer.get_lr() == 2e-3 * 0.95**2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay_factor": 0.0}, r"^--decay-factor must be above 0, but is 0\.0\."),
        ({"decay_epochs": 0}, r"^--decay-epochs must be 1 or more, but is 0\."),
        ({"warmup_updates": -1}, r"^--warmup-updates must be 0 or more, but is -1\."),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        scheduler_of(**options)
