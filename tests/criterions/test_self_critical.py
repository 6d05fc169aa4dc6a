"""Self-critical training: against the exact gradient of the expected reward, and naive loops."""

import functools
import gc
import itertools
import json
import multiprocessing
import os
import signal
import time
from argparse import Namespace
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq import tasks, utils
from fairseq.criterions import CRITERION_REGISTRY
from numerics import assert_close
from toy_data import (
    build_model,
    make_captions_folder,
    make_dictionary,
    make_videos_folder,
    make_visual_stories_folder,
    run_fairseq,
)
from toy_processes import all_children_end, needs_fork
from toy_story_models import make_story_folder

from fairseq_mm.criterions.self_critical import References, baselines, evaluation_mode
from fairseq_mm.errors import UserError
from fairseq_mm.generation.sampling_policy import Drawn
from fairseq_mm.generation.seeded_sampling import SeededSampling
from fairseq_mm.metrics.cider import InverseDocumentFrequencies
from fairseq_mm.metrics.rewards import Job, Rewards, RewardWorkers

pytestmark = needs_fork


FOLDERS = {
    "multimodal_captioning": make_captions_folder,
    "visual_storytelling": make_visual_stories_folder,
    "hierarchical_story": make_story_folder,
    "video_summarization": make_videos_folder,
    # no transcript has <unk-1>, which the search then forbids
    "indexed_oov": functools.partial(make_videos_folder, indexed_oov=2),
}
LENGTHS = '{"max_len_b": 8, "min_len": 2}'
OPTIONS = {
    "rewards": "cider=1",
    "num_samples": 3,
    "baseline": "samples",
    "sample_args": LENGTHS,
    "sample_dropout": False,
    "reward_workers": 0,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The data of each task."""
    folder = tmp_path_factory.mktemp("data")
    return {task: make(folder / task) for task, make in FOLDERS.items()}


def load(folders, name, *, arch=None, folder=None, **options):
    """The task with its training split, and a model whose words depend on its inputs."""
    cls = tasks.TASK_REGISTRY[name]
    cfg = cls.config(data=str(folders[folder or name]), seed=5, **options)
    task = cls.setup_task(cfg)
    if arch is None:
        task.load_dataset("train", combine=True, epoch=1)
        return task
    if arch.startswith("vg_"):
        task.open_features()
    lengths = dict.fromkeys(("max_source_positions", "max_target_positions"), 60)
    model = build_model(arch, task, **(lengths if name == "hierarchical_story" else {}))
    task.start_index = getattr(model, "start_index", task.start_index)
    if hasattr(task, "models"):
        task.models.append(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    task.load_dataset("train", combine=True, epoch=1)
    return task, model.train()


def policy_of(task, model, number, text):
    """A policy of so many samples; building it must not change the model's mode."""
    with evaluation_mode(model):
        return task.build_policy(model, number, sampling=True, text=text)


def batch_of(task, *indices):
    dataset = task.datasets["train"]
    return dataset.collater([dataset[index] for index in indices])


def criterion_of(task, **options):
    cls = CRITERION_REGISTRY["self_critical"]
    return cls(task, False, **{**OPTIONS, **options})


def rewards_of(found):
    """The rewards that a criterion computes, with the frequencies of the training split."""
    references = References(found.task.datasets["train"], found.text)
    return Rewards(found.weights, references.count_frequencies())


def gradients(model):
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    )


def naive_log_probability(task, model, net_input, words, *, end, min_len):
    """One text of an input, word by word, with the words alone that may be sampled."""
    dictionary = task.target_dictionary
    tokens = [dictionary.eos(), *words]
    targets = [*words, dictionary.eos()] if end else words
    total = 0.0
    for t, word in enumerate(targets):
        logits = model(
            net_input["features"], net_input["padding_mask"], torch.tensor([tokens[: t + 1]])
        )[0][0, -1]
        allowed = torch.ones(len(dictionary), dtype=torch.bool)
        allowed[[dictionary.bos(), dictionary.pad(), dictionary.unk()]] = False
        allowed[dictionary.eos()] = t >= min_len
        total = total + logits[word] - logits[allowed].logsumexp(0)
    return total


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_the_mean_over_samples_approaches_the_exact_gradient(folders, baseline):
    task, model = load(folders, "multimodal_captioning", arch="m_rnn_tiny")
    lengths = '{"max_len_b": 2}'
    found = criterion_of(
        task, sample_args=lengths, num_samples=40, baseline=baseline, rewards="cider,rouge_l=2"
    )
    sample = batch_of(task, 0)
    policy = policy_of(task, model, 2, lengths)
    words = range(task.dictionary.nspecial, len(task.dictionary))
    end, pad = task.dictionary.eos(), task.dictionary.pad()
    texts = [[w, end, pad] for w in words]
    texts += [[*pair, end] for pair in itertools.product(words, words)]
    # a text of two words is cut, and has no end
    samples = [[w for w in t if w != pad] if t[1] == end else t[:2] for t in texts]
    lines = [task.datasets["train"].target[i].tolist() for i in range(3)]
    rewards = rewards_of(found).score(Job(samples, lines))
    with evaluation_mode(model):
        probabilities = policy.log_probabilities(sample, Drawn(torch.tensor([texts]), None)).exp()
    (-(probabilities[0] * torch.tensor(rewards)).sum()).backward()
    exact = gradients(model)
    parts = []
    for update in range(60):
        model.zero_grad()
        found.update_num = update
        loss, size, _ = found(model, sample)
        (loss / size).backward()
        parts.append(gradients(model))
    parts = torch.stack(parts)
    mean, error = parts.mean(0), parts.std(0) / len(parts) ** 0.5
    # the squared distance is as large as the errors of the mean let expect
    distance = (mean - exact).square().sum().item()
    expected = error.square().sum().item()
    assert distance < 2 * expected
    # and the direction is the exact one
    assert torch.cosine_similarity(mean, exact, 0) > 0.95
    assert expected < 0.1 * exact.square().sum().item()


@pytest.mark.parametrize("baseline", ["samples", "greedy"])
def test_the_gradient_of_given_samples_is_that_of_the_loop(folders, baseline, monkeypatch):
    from metrics.naive_cider import naive_cider_d

    task, model = load(folders, "multimodal_captioning", arch="m_rnn_tiny")
    found = criterion_of(task, baseline=baseline)
    sample = batch_of(task, 4, 9)
    drawn = []
    own = type(found)._draw
    monkeypatch.setattr(type(found), "_draw", lambda *args: drawn.append(own(*args)) or drawn[-1])
    loss, size, log = found(model, sample)
    loss.backward()
    fast = gradients(model)
    model.zero_grad()
    dataset = task.datasets["train"]
    items = [[dataset.target[3 * i + k].tolist() for k in range(3)] for i in range(12)]
    model.eval()
    total, rewards_of_all, greedy_rewards, words = 0.0, 0.0, 0.0, 0
    for row, index in enumerate((4, 9)):
        item = dataset.item[dataset.lines[index]]
        texts = [
            [t[: t.index(2) + (not cut)] for t, cut in zip(d.tokens[row].tolist(), d.is_cut[row])]
            for d in drawn[0]
        ]
        rewards = [
            [naive_cider_d(text, items[item], items) for text in several] for several in texts
        ]
        net_input = batch_of(task, index)["net_input"]
        for k, text in enumerate(texts[0]):
            others = [r for j, r in enumerate(rewards[0]) if j != k]
            base = rewards[1][0] if baseline == "greedy" else sum(others) / 2
            end = text[-1] == 2
            log_probability = naive_log_probability(
                task, model, net_input, text[:-1] if end else text, end=end, min_len=2
            )
            total = total - (rewards[0][k] - base) * log_probability
            rewards_of_all += rewards[0][k]
            greedy_rewards += rewards[1][0] if baseline == "greedy" else 0
            words += len(text) - end
    assert_close(loss, total)
    total.backward()
    assert_close(fast, gradients(model))
    assert fast.any()
    assert size == 6
    assert log["reward"] == pytest.approx(rewards_of_all)
    assert log["greedy_reward"] == pytest.approx(greedy_rewards)
    assert log["sample_length"] == words


def test_the_baseline_of_a_sample_is_the_mean_of_the_others():
    rewards = torch.tensor([[0.5, 2.0, 3.5], [0.1, 0.1, 0.1]], dtype=torch.float64)
    found = baselines(rewards, 3)
    assert found.tolist() == [[2.75, 2.0, 1.25], [0.1, 0.1, 0.1]]
    assert baselines(rewards, 2).tolist() == [[3.5, 3.5], [0.1, 0.1]]


SYSTEMS = [
    ("multimodal_captioning", "m_rnn_tiny"),
    ("multimodal_captioning", "lbl_tiny"),
    ("visual_storytelling", "glac_tiny"),
    ("visual_storytelling", "transtory_xl_tiny"),
    ("hierarchical_story", "conv_story_tiny"),
    ("video_summarization", "pointer_generator_tiny"),
    ("video_summarization", "vg_bart_tiny"),
    ("video_summarization", "vg_t5_tiny"),
    ("video_summarization", "t5_tiny"),
    ("indexed_oov", "pointer_generator_tiny"),
]


@pytest.mark.parametrize(("name", "arch"), SYSTEMS, ids=["-".join(x) for x in SYSTEMS])
def test_log_probabilities_are_those_of_the_search(folders, name, arch, monkeypatch):
    """Of every task: one pass with gradients, and the step-by-step search with its constraints."""
    options = {"max_words_per_sentence": 3} if name == "visual_storytelling" else {}
    folder, name = name, name.replace("indexed_oov", "video_summarization")
    task, model = load(folders, name, arch=arch, folder=folder, **options)
    own_step = SeededSampling.step
    # the scores of texts become the log-probabilities over the words that are allowed
    monkeypatch.setattr(
        SeededSampling,
        "step",
        lambda self, step, lprobs, *args: own_step(
            self, step, lprobs.double().log_softmax(2), *args
        ),
    )
    text = "{}" if name == "visual_storytelling" else LENGTHS
    policy = policy_of(task, model, 4, text)
    results = []
    own = type(task).inference_step
    monkeypatch.setattr(
        type(task), "inference_step", lambda *args: results.append(own(*args)) or results[-1]
    )
    sample = batch_of(task, 1, 3, 4)
    if folder == "indexed_oov":  # one transcript has <unk-1>, so the search may write it there
        sample["net_input"]["src_tokens"][1, -2] = task.target_dictionary.index("<unk-1>")
    with evaluation_mode(model):
        drawn = policy.draw(sample, 7)
        policy.draw(batch_of(task, 0), 7)  # the search has begun with another source
        found = policy.log_probabilities(sample, drawn)
    expected = torch.tensor([[float(text["score"]) for text in texts] for texts in results[0]])
    assert_close(found, expected)
    assert len({tuple(t) for t in drawn.tokens.view(12, -1).tolist()}) > 6
    found.sum().backward()
    assert gradients(model).any()
    assert model.training


def test_samples_depend_on_the_input_and_the_update_alone(folders):
    task, model = load(folders, "multimodal_captioning", arch="m_rnn_tiny")
    policy = policy_of(task, model, 3, LENGTHS)

    def draw(stream, *indices):
        with evaluation_mode(model):
            tokens = policy.draw(batch_of(task, *indices), stream).tokens
        return [[utils.strip_pad(t, 1).tolist() for t in texts] for texts in tokens]

    whole = draw(1, 0, 7, 20)
    assert draw(1, 20, 7) == [whole[2], whole[1]]
    assert draw(2, 0, 7, 20) != whole


TRAINING = (
    *("--cpu", "--num-workers", "0", "--optimizer", "adam", "--lr", "0.01", "--max-update", "2"),
    *("--batch-size", "4", "--required-batch-size-multiple", "1", "--criterion", "self_critical"),
    *("--no-save", "--log-format", "json", "--log-interval", "1", "--num-samples", "2"),
)


def train(monkeypatch, data, task, arch, *options):
    run_fairseq(monkeypatch, "train", data, "--task", task, "--arch", arch, *TRAINING, *options)


@pytest.mark.parametrize(
    ("task", "arch", "options"),
    [
        ("multimodal_captioning", "m_rnn_tiny", ("--one-per-item", "--eval-gen")),
        ("visual_storytelling", "glac_tiny", ("--max-words-per-sentence", "3")),
        (
            *("hierarchical_story", "conv_story_tiny"),
            ("--max-source-positions", "40", "--max-target-positions", "44"),
        ),
        ("video_summarization", "vg_bart_tiny", ("--baseline", "greedy", "--bf16")),
    ],
)
def test_every_task_trains(folders, task, arch, options, monkeypatch, caplog):
    caplog.set_level("INFO")
    lengths = () if task == "visual_storytelling" else ("--sample-args", LENGTHS)
    train(monkeypatch, folders[task], task, arch, *options, *lengths)
    lines = [
        json.loads(r.getMessage()) for r in caplog.records if r.name in ("train_inner", "valid")
    ]
    assert float(lines[0]["reward"]) >= 0
    assert float(lines[0]["loss"]) == -float(lines[0]["reward"])
    assert ("greedy_reward" in lines[0]) == ("greedy" in options)
    assert float(lines[-1]["valid_ppl"]) > 1  # validation has the loss of cross-entropy
    gc.collect()
    assert all_children_end()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": "cider=1,bleu=0"}, "but one is 'bleu=0'"),
        ({"rewards": "meteor"}, "each part must be one of cider, bleu, rouge_l"),
        ({"rewards": "bleu,bleu=2"}, "but one is 'bleu=2'"),
        ({"num_samples": 1}, "--num-samples must be 2 or more with --baseline samples"),
        ({"num_samples": 0, "baseline": "greedy"}, "--num-samples must be 1 or more"),
        ({"reward_workers": -1}, "--reward-workers must be 0 or more"),
    ],
)
def test_options_out_of_range_are_refused(folders, options, message):
    task = load(folders, "multimodal_captioning")
    with pytest.raises(UserError, match=message):
        criterion_of(task, **options)


def test_a_task_of_others_is_refused():
    task = Namespace(target_dictionary=make_dictionary(), cfg=Namespace(_name="translation"))
    with pytest.raises(UserError, match="--task translation does not sample"):
        criterion_of(task)


def naive_frequencies(items):
    """In how many items, each a list of texts, the n-grams of 1 to 4 words occur."""
    return Counter(
        ngram
        for texts in items
        for ngram in {
            tuple(text[i : i + n])
            for text in texts
            for n in range(1, 5)
            for i in range(len(text) - n + 1)
        }
    )


@pytest.mark.parametrize("name", ["multimodal_captioning", "visual_storytelling"])
@pytest.mark.parametrize("is_part", [False, True])
def test_document_frequencies_are_counted_once_an_item(folders, name, is_part, monkeypatch):
    task = load(folders, name)
    text = task.reward_text()
    references = References(task.datasets["train"], text)
    lines = [text.words(line.tolist()) for line in references.lines]
    per_item = {"multimodal_captioning": 3, "visual_storytelling": 2}[name]
    items = [lines[i : i + per_item] for i in range(0, len(lines), per_item)]
    if is_part:  # every second item
        words = sum(len(line) for line in references.lines)
        monkeypatch.setattr("fairseq_mm.criterions.self_critical._MAX_WORDS", words // 2 + 1)
        items = items[::2]
    expected = InverseDocumentFrequencies(naive_frequencies(items), len(items))
    assert references.count_frequencies().squares == expected.squares


def test_workers_give_the_rewards_of_one_process_and_end(folders):
    task = load(folders, "multimodal_captioning")
    found = criterion_of(task, rewards="cider=1,bleu=0.5,rouge_l=0.25")
    rewards = rewards_of(found)
    generator = np.random.default_rng(0)
    jobs = [
        Job(
            [[*generator.integers(4, 20, size=6).tolist(), 2] for _ in range(4)],
            [[*generator.integers(4, 20, size=5).tolist(), 2] for _ in range(3)],
        )
        for _ in range(7)
    ]
    expected = [rewards.score(job) for job in jobs]
    for count in (0, 1, 2, 9):
        workers = RewardWorkers(rewards, count)
        for _ in range(2):
            workers.submit(jobs)
            assert workers.collect() == expected
        workers.close()
        assert all_children_end()


def test_workers_end_with_a_process_that_is_killed(folders):
    task = load(folders, "multimodal_captioning")
    found = criterion_of(task)
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        workers = RewardWorkers(rewards_of(found), 2)
        while True:
            workers.submit([])
            workers.collect()  # fails if a worker has ended
            theirs.send([process.pid for process in workers._processes])
            theirs.recv()
    processes = ours.recv()
    for process in processes:
        os.kill(process, signal.SIGINT)  # the keyboard's, which reaches all
    ours.send("again")
    assert ours.recv() == processes
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while any(map(is_running, processes)):  # pytest's own limit ends it
        time.sleep(0.01)


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
