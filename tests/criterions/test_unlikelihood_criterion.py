"""The unlikelihood criterion: equal to the equations, at both levels, for every generating task."""

import math
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.logging import metrics
from numerics import assert_close
from toy_data import (
    build_model,
    make_captions_folder,
    make_videos_folder,
    run_fairseq,
    toy_task,
    video_task,
)
from toy_story_models import make_story_folder
from toy_visual_stories import write_story_split

from fairseq_mm.errors import UserError
from fairseq_mm.modules.unlikelihood import repeated_ngrams

PAD, EOS = 1, 2
TARGET = torch.tensor([[9, 4, 9, 4, 9, EOS], [10, 7, 10, EOS, PAD, PAD], [5, 5, 5, 6, EOS, PAD]])
DEFAULTS = {
    "unlikelihood_weight": 1.0, "sequence_fraction": 0.0, "sequence_ngram": 4,
    "sequence_sampling": False, "contrastive_weight": 0.0, "label_smoothing": 0.0,
    "chunk_megabytes": 1,
}  # fmt: skip


WITHOUT_DROPOUT = dict.fromkeys(
    ("dropout", "embedding_dropout", "recurrent_dropout", "feature_dropout"), 0.0
)


def captioner():
    task = toy_task()
    torch.manual_seed(4)
    inputs = {"features": torch.randn(3, 2, 5), "padding_mask": torch.zeros(3, 2).bool()}
    return task, build_model("m_rnn_tiny", task, **WITHOUT_DROPOUT), inputs


def pointer_generator():
    task = video_task()
    source = torch.tensor([[5, 9, 6, EOS], [PAD, 10, 7, EOS], [5, 6, 4, EOS]])
    inputs = {"src_tokens": source, "src_lengths": torch.tensor([4, 3, 4])}
    return task, build_model("pointer_generator_tiny", task), inputs


def setting(make, **options):
    task, model, inputs = make()
    previous = TARGET.roll(1, dims=1)
    previous[:, 0] = EOS
    sample = {
        "net_input": {**inputs, "prev_output_tokens": previous},
        "target": TARGET.clone(),
        "ntokens": int(TARGET.ne(PAD).sum()),
    }
    criterion = CRITERION_REGISTRY["unlikelihood"](task, False, **{**DEFAULTS, **options})
    return criterion, model.train(), sample


def log_probabilities(model, net_input):
    output = model(**net_input)
    return model.get_normalized_probs(output, log_probs=True).float()


def naive_token_level(log_probs, target, alpha):
    nll = penalty = 0.0
    for lp, text in zip(log_probs, target.tolist()):
        for t, own in enumerate(text):
            if own != PAD:
                nll -= lp[t, own]
                for c in set(text[:t]) - {own}:
                    penalty -= (1 - lp[t, c].exp()).log()
    return nll + alpha * penalty, nll, penalty


@pytest.mark.parametrize("make", [captioner, pointer_generator])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_the_token_level_equals_loops_over_equation_5(make, alpha):
    criterion, model, sample = setting(make, unlikelihood_weight=alpha)
    model.eval()  # without dropout
    loss, size, log = criterion(model, sample)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    log_probs = log_probabilities(model, sample["net_input"])
    expected, nll, penalty = naive_token_level(log_probs, TARGET, alpha)
    expected.backward()
    assert_close(loss, expected.detach())
    assert_close(log["nll_loss"], nll.detach())
    assert_close(log["unlikelihood"], penalty.detach())
    assert size == sample["ntokens"] == 15
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert_close(gradients[name], parameter.grad, msg=name)


@pytest.mark.parametrize("make", [captioner, pointer_generator])
def test_without_weight_the_loss_is_fairseqs_label_smoothed_cross_entropy(make):
    criterion, model, sample = setting(make, unlikelihood_weight=0.0, label_smoothing=0.1)
    model.eval()
    theirs = CRITERION_REGISTRY["label_smoothed_cross_entropy"](criterion.task, False, 0.1)
    assert_close(criterion(model, sample)[0], theirs(model, sample)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float32_and_finite(dtype):
    criterion, model, sample = setting(captioner)
    expected = criterion(model.eval(), sample)[0].item()
    sample["net_input"]["features"] = sample["net_input"]["features"].to(dtype)
    loss = criterion(model.to(dtype), sample)[0]
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=0.02)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_too_little_memory_says_nothing_about_the_output_layer(monkeypatch):
    criterion, model, sample = setting(captioner)
    fits, own = [False, True], type(model).forward

    def forward(self, **net_input):
        if not fits.pop(0):
            raise RuntimeError("CUDA out of memory.")
        return own(self, **net_input)

    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(RuntimeError, match="out of memory"):
        criterion(model, sample)
    criterion(model, sample)
    assert criterion.is_linear[model]


class FullySharded(torch.nn.Module):
    """Wrapper; the criterion knows fairscale's wrapper by this name."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **net_input):
        return self.module(**net_input)


def test_weights_spread_over_processes_cannot_generate():
    criterion, model, sample = setting(captioner)
    assert criterion(FullySharded(model), sample)[0].isfinite()
    criterion.sequence_fraction = 1.0
    with pytest.raises(UserError, match="cannot generate texts with weights that are spread"):
        criterion(FullySharded(model), sample)


class Generating:
    """Task that generates given texts."""

    def __init__(self, task, texts):
        self.__dict__.update(vars(task))
        self.texts = texts
        self.inputs = []

    def build_generator(self, models, args):
        self.args = args
        self.search = Namespace()
        return Namespace(search=Namespace(search=self.search))

    def inference_step(self, generator, models, sample):
        assert not any(part.training for part in models[0].modules())
        self.inputs.append(sample["net_input"])
        self.max_len = generator.max_len_b
        return [[{"tokens": torch.tensor(text)}] for text in self.texts]


@pytest.mark.parametrize("start", [None, 0])
def test_the_sequence_level_equals_a_loop_over_generated_texts(start):
    texts = [[9, 4, 9, 4, 9, 4, EOS], [5, 6, EOS], [7, 7, 7, EOS]]
    criterion, model, sample = setting(captioner, sequence_fraction=1.0, sequence_ngram=2)
    criterion.task = task = Generating(criterion.task, texts)
    task.start_index = start
    frozen = model.encoder.eval()
    loss, size, log = criterion(model, sample)
    assert model.training
    assert not frozen.training
    assert "prev_output_tokens" not in task.inputs[0]
    assert (task.max_len, task.args.no_repeat_ngram_size) == (5, 0)
    expected, marked = 0.0, 0
    model.eval()
    for row, text in enumerate(texts):
        net_input = {k: v[row : row + 1] for k, v in sample["net_input"].items()}
        net_input["prev_output_tokens"] = torch.tensor(
            [[EOS if start is None else start, *text[:-1]]]
        )
        lp = log_probabilities(model, net_input)[0]
        repeated = repeated_ngrams(torch.tensor([text]), 2, PAD)[0]
        for t, word in enumerate(text):
            if repeated[t]:
                expected -= (1 - lp[t, word].exp()).log()
                marked += 1
    assert_close(loss, expected.detach())
    assert size == log["generated_tokens"] == 14
    # 9 4 9 4 of the first text, and 7 7 of the third
    assert log["repeated_tokens"] == marked == 6
    assert log["target_tokens"] == 0
    assert loss.requires_grad


def test_the_generator_is_no_part_of_the_criterion():
    criterion, model, sample = setting(captioner, sequence_fraction=1.0)
    criterion.task = Generating(criterion.task, [[4, EOS]] * 3)
    criterion(model, sample)
    assert not list(criterion.parameters())


def test_the_seed_of_an_update_is_the_seed_of_its_samples():
    criterion, model, sample = setting(captioner, sequence_fraction=1.0, sequence_sampling=True)
    criterion.task = task = Generating(criterion.task, [[4, EOS]] * 3)
    for seed in (7, 8):
        torch.manual_seed(seed)
        criterion(model, sample)
        assert task.search.seed == seed
    assert task.args.sampling


def test_validation_is_at_token_level():
    criterion, model, sample = setting(captioner, sequence_fraction=1.0, contrastive_weight=1.0)
    log = criterion(model.eval(), sample)[2]
    assert log["target_tokens"] == 15
    assert log["contrast"] == 0


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_with_sentence_avg_the_divisor_is_the_number_of_texts(fraction):
    criterion, model, sample = setting(captioner, sequence_fraction=fraction)
    criterion.task = Generating(criterion.task, [[4, 4, EOS]] * 3)
    criterion.sentence_avg = True
    _, size, log = criterion(model, sample)
    assert size == log["sample_size"] == 3


def test_the_share_of_sequence_updates_is_the_fraction_and_depends_on_the_seed():
    criterion, _, _ = setting(captioner, sequence_fraction=0.3)
    chosen = []
    for seed in range(500):
        torch.manual_seed(seed)
        torch.rand(seed % 7)  # the state of random numbers differs between processes
        chosen.append(criterion.is_sequence_update())
    assert np.mean(chosen) == pytest.approx(0.3, abs=0.05)
    torch.manual_seed(5)
    assert criterion.is_sequence_update() == chosen[5]


def test_the_contrastive_loss_equals_a_loop_over_texts():
    options = {"unlikelihood_weight": 0.0, "contrastive_weight": 0.5}
    criterion, model, sample = setting(captioner, **options)
    features = sample["net_input"]["features"]
    features[2] = features[0]  # the other source of text 2 is its own
    log = criterion(model, sample)[2]

    def text_log_prob(row, source):
        net_input = {k: v[row : row + 1] for k, v in sample["net_input"].items()}
        net_input["features"] = features[source : source + 1]
        lp = log_probabilities(model, net_input)[0]
        return sum(lp[t, own] for t, own in enumerate(TARGET[row].tolist()) if own != PAD)

    expected = 0.0
    for row in (0, 1):
        margin = text_log_prob(row, row) - text_log_prob(row, row + 1)
        expected += (1 + (-margin).exp()).log()
    assert_close(log["contrast"], expected.detach())
    assert_close(log["loss"], log["nll_loss"] + 0.5 * log["contrast"])


def test_logs_are_means_over_the_updates_of_their_level():
    entry = {"loss": 20.0, "nll_loss": 16.0, "unlikelihood": 4.0, "contrast": 2.0}
    token = {**entry, "target_tokens": 8, "generated_tokens": 0, "repeated_tokens": 0}
    sequence = {**dict.fromkeys(token, 0), "loss": 4.0, "generated_tokens": 10}
    sequence["repeated_tokens"] = 5
    logs = [{**token, "sample_size": 8}, {**sequence, "sample_size": 10}]
    with metrics.aggregate(new_root=True) as values:
        CRITERION_REGISTRY["unlikelihood"].reduce_metrics(logs)
    found = values.get_smoothed_values()
    assert found["loss"] == pytest.approx(24 / 18 / math.log(2), abs=1e-3)
    assert found["nll_loss"] == pytest.approx(2 / math.log(2), abs=1e-3)
    assert found["ppl"] == pytest.approx(math.exp(2), abs=0.02)
    assert found["unlikelihood"] == 0.5
    assert found["contrast"] == 0.25
    assert found["repeated"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unlikelihood_weight": -1.0}, "--unlikelihood-weight must be 0 or more"),
        ({"contrastive_weight": math.nan}, "--contrastive-weight must be 0 or more and finite"),
        ({"sequence_fraction": 1.5}, "--sequence-fraction must be from 0 to 1, but is 1.5"),
        ({"sequence_ngram": 0}, "--sequence-ngram must be 1 or more"),
        ({"sequence_sampling": True}, "--sequence-sampling needs --sequence-fraction above 0"),
        ({"label_smoothing": 1.0}, r"--label-smoothing must be in \[0, 1\), but is 1"),
        ({"chunk_megabytes": 0}, "--chunk-megabytes must be 1 or more"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        setting(captioner, **options)


@pytest.mark.parametrize("option", ["sequence_fraction", "contrastive_weight"])
def test_a_language_model_has_no_source(option):
    criterion, _, sample = setting(captioner, **{option: 1.0})
    model = build_model("gcnn_lm_tiny", criterion.task, tokens_per_sample=20).train()
    previous = sample["net_input"]["prev_output_tokens"]
    sample["net_input"] = {"src_tokens": previous, "src_lengths": torch.tensor([6, 4, 5])}
    name = option.replace("_", "-")
    with pytest.raises(UserError, match=f"--{name}: GcnnLmModel is a language model"):
        criterion(model, sample)


FOLDERS = {
    "multimodal_captioning": ("m_rnn_tiny", make_captions_folder, ()),
    "visual_storytelling": (
        "transtory_decoder_tiny",
        write_story_split,
        ("--max-words-per-sentence", "5", "--train-subset", "valid"),
    ),
    "hierarchical_story": (
        "conv_story_tiny",
        make_story_folder,
        ("--max-target-positions", "44"),
    ),
    "video_summarization": ("mffg_rnn_tiny", make_videos_folder, ()),
}


@pytest.mark.parametrize("search", [(), ("--sequence-sampling",)])
@pytest.mark.parametrize("task", FOLDERS)
def test_every_generating_task_trains(task, search, tmp_path, monkeypatch, caplog):
    arch, make, options = FOLDERS[task]
    data = make(tmp_path / "data")
    caplog.set_level("INFO")
    run_fairseq(
        *(monkeypatch, "train", data, "--task", task, "--arch", arch, *options, *search),
        *("--criterion", "unlikelihood", "--sequence-fraction", "0.5", "--sequence-ngram", "1"),
        *("--contrastive-weight", "0.1", "--optimizer", "adam", "--lr", "1e-3", "--max-update"),
        *("6", "--batch-size", "4", "--cpu", "--no-save", "--num-workers", "0"),
        *("--log-format", "simple", "--log-interval", "1", "--disable-validation"),
    )
    found = {
        name: [float(x) for x in re.findall(rf"\b{name}=([\d.]+)", caplog.text)]
        for name in ("loss", "ppl", "repeated", "contrast")
    }
    assert len(found["loss"]) == 6
    assert all(found.values()), found
