"""Training by two processes, resumed within an epoch, is the uninterrupted training, bit for bit.

So it is for every task, and for one process in half precision: the weights, the optimizer's state,
the position in the data and the losses that are logged. A training that one process began is
continued by two, and one of two by one.
"""

import re
import shutil

import pytest
import torch
from fairseq.optim import FP16Optimizer
from numerics import assert_close
from omegaconf import open_dict
from toy_data import (
    make_captions_folder,
    make_videos_folder,
    make_visual_stories_folder,
)
from toy_processes import STOCK_COPIES, needs_fork, train_by, training_configuration
from toy_story_models import make_story_folder
from toy_training_states import assert_same_training, logged

pytestmark = needs_fork

TRAINING = (
    *("--optimizer", "adam", "--lr", "0.01", "--clip-norm", "1", "--seed", "3", "--cpu"),
    *("--num-workers", "0", "--required-batch-size-multiple", "1", "--ddp-backend", "legacy_ddp"),
    *("--log-format", "json", "--log-interval", "1", "--save-interval-updates", "4"),
    *("--max-epoch", "2"),
)
CAPTIONS = ("captions", "--task", "multimodal_captioning", "--batch-size", "6")
M_RNN = (*CAPTIONS, "--arch", "m_rnn_tiny", "--criterion", "cross_entropy")
VSE = (*CAPTIONS, "--arch", "vse_tiny", "--criterion", "pairwise_ranking")
VSE_RANDOM = (*VSE, "--negatives", "random", "--num-negatives", "5")
IMAGE_STORIES = (
    *("visual_stories", "--task", "visual_storytelling", "--batch-size", "3"),
    *("--criterion", "cross_entropy"),
)
VIDEOS = (
    *("videos", "--task", "video_summarization", "--batch-size", "2"),
    *("--criterion", "cross_entropy", "--save-interval-updates", "3"),
)
VG_BART = (*VIDEOS, "--arch", "vg_bart_tiny")
# folder of data and options; two processes make three updates an epoch, of videos two
FAST = {
    "m_rnn": M_RNN,
    "m_rnn_self_critical": (
        *(*CAPTIONS, "--arch", "m_rnn_tiny", "--criterion", "self_critical", "--rewards"),
        *("bleu,rouge_l=2", "--num-samples", "3", "--sample-args", '{"max_len_b": 8}'),
    ),
    "vse_random": VSE_RANDOM,
    "conv_story": (
        *("stories", "--task", "hierarchical_story", "--arch", "conv_story_tiny"),
        *("--criterion", "chunked_cross_entropy", "--batch-size", "2"),
        *("--max-source-positions", "40", "--max-target-positions", "44"),
    ),
    "gcnn_lm": (
        *("stories/stories", "--task", "language_modeling", "--arch", "gcnn_lm_tiny"),
        *("--criterion", "chunked_cross_entropy", "--batch-size", "2"),
        *("--sample-break-mode", "eos", "--tokens-per-sample", "44"),
    ),
    "glac": (*IMAGE_STORIES, "--arch", "glac_tiny"),
    "vg_bart": VG_BART,
}
# trained in half precision only
TWO_RATES = {
    "vg_bart_two_rates": (
        *(*VG_BART, "--optimizer", "adam_parameter_groups", "--added-lr", "0.02"),
        *("--lr-scheduler", "epoch_decay", "--decay-epochs", "1", "--eval-gen"),
        *("--eval-gen-args", '{"beam": 2, "max_len_b": 6}'),
    ),
}
SYSTEMS = {**FAST, **TWO_RATES}
# each process keeps its own of what its batches were like
BUFFERS = re.compile("running_(mean|var)|num_batches")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The data of each task."""
    folder = tmp_path_factory.mktemp("data")
    make_captions_folder(folder / "captions")
    make_story_folder(folder / "stories", train=12)
    make_visual_stories_folder(folder / "visual_stories")
    make_videos_folder(folder / "videos")
    return folder


def configure(folders, name, *options):
    data, *system = SYSTEMS[name]
    system += options
    return training_configuration(folders / data, *TRAINING, *system)


def continue_from(checkpoint, save_dir):
    save_dir.mkdir()
    shutil.copy(checkpoint, save_dir / "checkpoint_last.pt")


def within_second_epoch(save_dir):
    """The checkpoint behind the first update of the second epoch."""
    (checkpoint,) = save_dir.glob("checkpoint_2_*.pt")
    return checkpoint


@pytest.mark.parametrize("name", FAST)
def test_two_processes_resume_within_an_epoch(folders, tmp_path, name):
    cfg = configure(folders, name)
    whole = train_by(2, cfg, tmp_path / "whole")
    continue_from(within_second_epoch(tmp_path / "whole"), tmp_path / "resumed")
    resumed = train_by(2, cfg, tmp_path / "resumed")
    assert_same_training(whole, resumed)
    lines, of_resumed = (logged(tmp_path / run / "log") for run in ("whole", "resumed"))
    assert {"loss", "valid_loss", "train_loss"} <= {key for line in of_resumed for key in line}
    assert lines[-len(of_resumed) :] == of_resumed
    assert lines[-len(of_resumed) - 1]["epoch"] == 2


# the scale of the loss is doubled after two updates, so that gradients overflow again and again
SCALING = ("--fp16-scale-window", "2", "--fp16-init-scale", str(2**17))
PRECISIONS = {
    "fp16": ("--fp16", *SCALING),
    "fp16_flat": ("--fp16", *SCALING),
    "bf16": ("--bf16",),
}
PRECISION_CASES = [
    *(("m_rnn", precision, 1) for precision in PRECISIONS),
    *(("vse_random", "fp16", 2), ("vg_bart_two_rates", "bf16", 1)),
]


def join_parameters(monkeypatch):
    """Lets ``--fp16`` update one flat tensor, which fairseq makes on the current GPU."""
    build = FP16Optimizer.build_optimizer

    def build_optimizer(cfg, params, **kwargs):
        with open_dict(cfg):
            cfg.common.fp16_no_flatten_grads = False
        return build(cfg, params, **kwargs)

    monkeypatch.setattr(FP16Optimizer, "build_optimizer", build_optimizer)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # index of the CPU


@pytest.mark.parametrize(("name", "precision", "processes"), PRECISION_CASES)
def test_half_precision_resumes_within_an_epoch(
    folders, tmp_path, monkeypatch, name, precision, processes
):
    if precision == "fp16_flat":
        join_parameters(monkeypatch)
    options = ("--save-interval-updates", "1", "--max-update", "14", "--max-epoch", "0")
    options = (*options, "--disable-validation", "--no-epoch-checkpoints")
    cfg = configure(folders, name, *options, *PRECISIONS[precision])
    whole = train_by(processes, cfg, tmp_path / "whole")
    # the last update of an epoch writes no such checkpoint
    first = next(path for x in (3, 4) for path in (tmp_path / "whole").glob(f"checkpoint_*_{x}.pt"))
    continue_from(first, tmp_path / "resumed")
    resumed = train_by(processes, cfg, tmp_path / "resumed")
    assert_same_training(whole, resumed)
    lines, of_resumed = (logged(tmp_path / run / "log") for run in ("whole", "resumed"))
    assert lines[-len(of_resumed) :] == of_resumed
    before, after = (
        state["last_optimizer_state"].get("fairseq_mm_half_precision", {})
        for state in (torch.load(first), whole)
    )
    assert "weights" in after
    if "fp16" in precision:
        overflows = [state["counters"]["_last_overflow_iter"] for state in (before, after)]
        assert -1 < overflows[0] < before["counters"]["_iter"] <= overflows[1]


def assert_close_training(one, other, save_dirs):
    """The same data in the same updates, and weights and losses but for rounding."""
    for name, weights in one["model"].items():
        if not BUFFERS.search(name) and not STOCK_COPIES.search(name):
            assert_close(other["model"][name], weights)
    assert one["extra_state"]["train_iterator"] == other["extra_state"]["train_iterator"]
    updates = [
        {line["num_updates"]: line for line in logged(save_dir / "log") if "num_updates" in line}
        for save_dir in save_dirs
    ]
    assert list(updates[0])[-len(updates[1]) :] == list(updates[1])
    for number, line in updates[1].items():
        assert [line[k] for k in ("wpb", "bsz")] == [updates[0][number][k] for k in ("wpb", "bsz")]
        assert float(line["loss"]) == pytest.approx(float(updates[0][number]["loss"]), abs=2e-3)


@pytest.mark.parametrize("processes", [(1, 2), (2, 1)])
def test_another_number_of_processes_continues(folders, tmp_path, processes):
    """With ``--update-freq``, each update has the same batches, whoever reads them."""
    # Adam divides gradients by their size, so that one that is nearly zero is rounding alone
    cfg = configure(folders, "vse_random")
    cfg.optimizer.adam_eps = 1e-3
    for key in cfg.model:
        if key.endswith("dropout") and isinstance(cfg.model[key], float):
            cfg.model[key] = 0.0
    options = [{"optimization": {"update_freq": [2 // count]}} for count in processes]
    whole = train_by(processes[0], cfg, tmp_path / "whole", **options[0])
    continue_from(within_second_epoch(tmp_path / "whole"), tmp_path / "continued")
    continued = train_by(processes[1], cfg, tmp_path / "continued", **options[1])
    assert_close_training(whole, continued, (tmp_path / "whole", tmp_path / "continued"))
