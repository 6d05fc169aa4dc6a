"""The task of video summaries under fairseq's own commands."""

import json
import logging
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from toy_data import make_videos_folder, run_fairseq

from fairseq_mm.data.feature_store import open_features
from fairseq_mm.data.indexed_oov import restore_oov_words
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.metrics.rouge import rouge_n_f1
from fairseq_mm.models._provenance import STATE_KEY
from fairseq_mm.tasks.video_summarization import (
    VideoSummarizationConfig,
    VideoSummarizationTask,
)

TASK = ("--task", "video_summarization")
SIZES = (
    *("--encoder-embed-dim", "8", "--decoder-embed-dim", "8", "--encoder-layers", "1"),
    *("--decoder-layers", "1", "--dropout", "0.1"),
)
LSTM = ("--arch", "lstm", *SIZES, "--encoder-hidden-size", "8", "--decoder-hidden-size", "8")
TRANSFORMER = (
    *("--arch", "transformer", *SIZES, "--encoder-attention-heads", "2"),
    *("--decoder-attention-heads", "2", "--encoder-ffn-embed-dim", "8"),
    *("--decoder-ffn-embed-dim", "8"),
)
VIDEO = ("--arch", "vg_bart_tiny")
T5, POINTER = ("--arch", "t5_tiny"), ("--arch", "pointer_generator_tiny")
TRAINING = (
    *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", "0.01", "--batch-size", "3"),
    *("--max-epoch", "2", "--num-workers", "0", "--cpu", "--no-epoch-checkpoints"),
    *("--log-format", "none"),
)
EVALUATION = ("--eval-gen", "--eval-gen-args", '{"beam": 2, "max_len_b": 9}')
METRIC = ("--best-checkpoint-metric", "rouge2", "--maximize-best-checkpoint-metric")


@pytest.fixture
def data(tmp_path):
    return make_videos_folder(tmp_path / "data")


def train(monkeypatch, data, save_dir, *options):
    run_fairseq(monkeypatch, "train", data, *TASK, *TRAINING, "--save-dir", save_dir, *options)
    return save_dir / "checkpoint_last.pt"


def generate(monkeypatch, capsys, data, checkpoint, *options, kind="D"):
    """Line -> texts."""
    capsys.readouterr()
    arguments = (data, *TASK, "--path", checkpoint, "--cpu", "--max-len-b", "9", *options)
    run_fairseq(monkeypatch, "generate", *arguments)
    texts = {}
    pattern = rf"^{kind}-(\d+)\t(?:\S+\t)?(.*)$" if kind in "HD" else rf"^{kind}-(\d+)()\t(.*)$"
    for found in re.findall(pattern, capsys.readouterr().out, flags=re.MULTILINE):
        texts.setdefault(int(found[0]), []).append(found[-1])
    return texts


@pytest.mark.parametrize(
    "model",
    [
        LSTM,
        VIDEO,
        *(pytest.param(model, marks=pytest.mark.slow) for model in (TRANSFORMER, T5, POINTER)),
    ],
)
def test_each_test_video_is_summarised_once(monkeypatch, capsys, tmp_path, data, model):
    if model is not VIDEO:  # models of text ask for no videos
        (data / "features.h5").unlink()
        for split in ("train", "valid", "test"):
            (data / f"{split}.visual_ids").unlink()
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *model, *EVALUATION, *METRIC)
    texts = generate(monkeypatch, capsys, data, checkpoint, "--beam", "2", "--batch-size", "2")
    assert sorted(texts) == list(range(5))
    assert all(len(of_line) == 1 for of_line in texts.values())
    rouge2 = torch.load(checkpoint)["extra_state"]["val_loss"]
    texts = generate(monkeypatch, capsys, data, checkpoint, "--beam", "2", "--gen-subset", "valid")
    references = [json.loads(x) for x in (data / "valid.references.jsonl").read_text().splitlines()]
    pairs = [(texts[i][0].split(), references[i]["references"][0].split()) for i in range(5)]
    assert rouge2 == pytest.approx(sum(rouge_n_f1(*pair, 2) for pair in pairs) / 5, abs=1e-4)


def task_of(data, arch=None, **options):
    """A task, and the model of an architecture that it has built."""
    # values that fairseq reads from elsewhere
    elsewhere = {"seed": 1, "maximize_best_checkpoint_metric": False}
    cfg = VideoSummarizationConfig(data=str(data), **{**elsewhere, **options})
    task = VideoSummarizationTask.setup_task(cfg)
    return task if arch is None else (task, task.build_model(options_of(arch)))


def options_of(arch):
    """The configuration of an architecture, as of a command line without options."""
    fields = ARCH_MODEL_REGISTRY[arch].__dataclass.__dataclass_fields__
    cfg = Namespace(_name=arch)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    return Namespace(**{**{name: field.default for name, field in fields.items()}, **vars(cfg)})


def batch_of(task, split="valid"):
    """All lines of a split as a batch, in its order of lines."""
    task.load_dataset(split, epoch=1)
    dataset = task.dataset(split)
    batch = dataset.collater([dataset[i] for i in range(len(dataset))])
    return batch, batch["id"].argsort()


def test_models_of_text_get_no_video_and_begin_as_they_were_trained(data):
    task, _ = task_of(data, "vg_bart_tiny")
    batch, order = batch_of(task)
    net_input = batch["net_input"]
    assert set(net_input) == {
        *("src_tokens", "src_lengths", "features", "padding_mask", "prev_output_tokens")
    }
    assert net_input["prev_output_tokens"][:, 0].tolist() == [2] * 5
    store = open_features([data / "features.h5"])
    frames = [store.count_rows(f"valid{i}") for i in range(5)]
    assert net_input["padding_mask"].logical_not().sum(dim=1)[order].tolist() == frames
    row = net_input["features"][order[3], : frames[3]].numpy()
    assert np.array_equal(row, store.read("valid3"))
    (data / "features.h5").unlink()
    task, _ = task_of(data, "t5_tiny")
    batch, _ = batch_of(task)
    assert set(batch["net_input"]) == {"src_tokens", "src_lengths", "prev_output_tokens"}
    assert batch["net_input"]["prev_output_tokens"][:, 0].tolist() == [1] * 5
    assert (task.feature_dim, task.feature_attributes) == (0, {})


@pytest.mark.parametrize(
    ("ends", "before", "after"), [("end", [], [2]), ("both", [0], [2]), ("none", [], [])]
)
def test_transcripts_have_the_ends_asked_for(data, ends, before, after):
    task, _ = task_of(data, "pointer_generator_tiny", source_ends=ends)
    batch, order = batch_of(task)
    words = (data / "text" / "valid.tran").read_text().splitlines()[1]
    tokens = [task.dictionary.index(word) for word in words.split()]
    length = int(batch["net_input"]["src_lengths"][order[1]])
    assert batch["net_input"]["src_tokens"][order[1], -length:].tolist() == [
        *before,
        *tokens,
        *after,
    ]


def test_what_is_too_long_is_cut_and_counted(data, caplog):
    limits = {"max_source_positions": 6, "max_target_positions": 5, "max_frames": 4}
    task, _ = task_of(data, "vg_bart_tiny", **limits)
    with caplog.at_level(logging.INFO):
        batch, order = batch_of(task)
    net_input = batch["net_input"]
    assert net_input["src_tokens"].shape == (5, 6)
    assert net_input["features"].shape == (5, 4, 5)
    assert batch["target"].shape == (5, 5)
    assert batch["target"].eq(2).sum(dim=1).tolist() == [1] * 5
    texts = {side: (data / "text" / f"valid.{side}").read_text() for side in ("tran", "desc")}
    words = {side: [line.split() for line in text.splitlines()] for side, text in texts.items()}
    expected = [task.dictionary.index(word) for word in words["tran"][0][:5]] + [2]
    length = len(expected)
    assert net_input["src_tokens"][order[0], -length:].tolist() == expected
    store = open_features([data / "features.h5"])
    counts = [
        sum(len(line) > 5 for line in words["tran"]),
        sum(len(line) > 4 for line in words["desc"]),
        sum(store.count_rows(f"valid{i}") > 4 for i in range(5)),
    ]
    assert all(0 < count <= 5 for count in counts)
    message = "valid: 5 summaries; cut: {} transcripts, {} summaries, {} videos".format(*counts)
    assert caplog.text.count(message) == 1


def test_published_barts_have_positions_for_their_weights(data):
    cfg = options_of("vg_bart_tiny")
    cfg.max_source_positions = cfg.max_target_positions = 64  # as of the task's options
    task = task_of(data)
    model = task.build_model(cfg)
    assert model.max_positions() == (1024, 1024)
    assert task.max_positions() == (512, 64)
    assert cfg.max_source_positions == 1024  # a checkpoint has it


def test_noise_takes_the_place_of_videos(data):
    (clean, _), (noisy, _) = (
        batch_of(task_of(data, "vg_bart_tiny", noise_features=noise)[0]) for noise in (False, True)
    )
    assert torch.equal(clean["id"], noisy["id"])
    features = noisy["net_input"]["features"]
    padding = noisy["net_input"]["padding_mask"]
    assert torch.equal(padding, clean["net_input"]["padding_mask"])
    real = features[~padding]
    assert bool(((real > 0) & (real < 3)).all())
    again, _ = batch_of(task_of(data, "vg_bart_tiny", noise_features=True)[0])
    assert torch.equal(again["net_input"]["features"], features)


def test_indexed_oov_tokens_become_their_words(monkeypatch, capsys, tmp_path):
    data = make_videos_folder(tmp_path / "data", indexed_oov=2)
    for split in ("valid", "test"):
        words = [[f"{split}{i}"] for i in range(5)]
        (data / f"{split}.unknowns.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in words))
    checkpoint = train(monkeypatch, data, tmp_path / "ck", *POINTER, "--max-epoch", "1")
    # the second word of each summary is its first unknown
    forced = ("--prefix-size", "2", "--beam", "3", "--nbest", "2", "--batch-size", "3")
    texts = generate(monkeypatch, capsys, data, checkpoint, *forced)
    raw = generate(monkeypatch, capsys, data, checkpoint, *forced, kind="H")
    for line in range(5):
        assert [text.split()[1] for text in texts[line]] == [f"test{line}"] * 2
        assert [text.split()[1] for text in raw[line]] == ["<unk-0>"] * 2
    # nothing but the words differs
    for line, hypotheses in raw.items():
        for text, tokens in zip(texts[line], hypotheses):
            assert restore_oov_words(tokens, [f"test{line}"]) == text
    task, model = task_of(data, "pointer_generator_tiny", eval_gen=True)
    batch, _ = batch_of(task)
    monkeypatch.setattr(
        task, "inference_step", lambda *_: [[{"tokens": tokens}] for tokens in batch["target"]]
    )
    scored = {}
    scores = task.generated_text_scores["valid"]
    monkeypatch.setattr(scores, "sums", lambda hypotheses: scored.update(hypotheses) or {})
    task._generate_and_score(batch, model)
    assert [scored[line].split()[1] for line in range(5)] == [f"valid{i}" for i in range(5)]


def test_a_checkpoint_is_read_as_it_was_trained(data, caplog):
    trained = task_of(data, source_ends="both", max_frames=100, noise_features=True)
    state = json.loads(json.dumps(trained.state_dict()))
    task = task_of(data, max_frames=9)
    with caplog.at_level(logging.INFO):
        task.load_state_dict(state)
    assert (task.cfg.source_ends, task.cfg.max_frames) == ("both", 9)  # an option that is given
    assert not task.cfg.noise_features
    assert "--source-ends both, as the checkpoint was trained" in caplog.text
    assert "was trained on noise in the place of videos" in caplog.text


def test_a_task_of_a_checkpoint_needs_no_folder(monkeypatch, tmp_path, data):
    options = (*VIDEO, "--source-ends", "none", "--max-frames", "7", "--max-epoch", "1")
    checkpoint = Checkpoint.open(train(monkeypatch, data, tmp_path / "ck", *options))
    assert checkpoint.command == "summarize"
    loaded = checkpoint.build("cpu")
    task, (model,) = loaded.task, loaded.models
    assert (task.cfg.source_ends, task.max_frames, task.feature_dim) == ("none", 7, 5)
    assert task.subwords.kind == "none"
    assert task.reads_video
    assert torch.equal(model.state_dict()[STATE_KEY], checkpoint.weights[STATE_KEY])
    # another extractor's dimension
    (data / "features.h5").unlink()
    make_videos_folder(data, dim=4)
    with pytest.raises(UserError, match=r"trained on 5-dimensional features, .* store has 4"):
        checkpoint.build_model(task_of(data))


def test_interactive_reads_transcripts_but_no_videos(monkeypatch, capsys, tmp_path, data):
    monkeypatch.setattr("fileinput.input", lambda **_: FakeInput(["a dog runs\n"]))
    checkpoint = train(monkeypatch, data, tmp_path / "text", *POINTER, "--max-epoch", "1")
    arguments = (data, *TASK, "--cpu", "--max-len-b", "5")
    capsys.readouterr()
    run_fairseq(monkeypatch, "interactive", *arguments, "--path", checkpoint)
    printed = capsys.readouterr().out
    assert re.search(r"^S-0\ta dog runs$", printed, re.MULTILINE)
    assert re.search(r"^D-0\t\S+\t\w", printed, re.MULTILINE)
    monkeypatch.setattr("fileinput.input", lambda **_: FakeInput(["\n"]))
    with pytest.raises(UserError, match="transcript 1 is empty"):
        run_fairseq(monkeypatch, "interactive", *arguments, "--path", checkpoint)
    checkpoint = train(monkeypatch, data, tmp_path / "video", *VIDEO, "--max-epoch", "1")
    with pytest.raises(UserError, match="fairseq-interactive reads lines of text, and no videos"):
        run_fairseq(monkeypatch, "interactive", *arguments, "--path", checkpoint)


class FakeInput(list):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"best_checkpoint_metric": "rouge2"}, "rouge2: .* need --eval-gen"),
        ({"max_source_positions": 2}, "--max-source-positions must be 3 or more, but is 2"),
        ({"max_target_positions": 1}, "--max-target-positions must be 2 or more, but is 1"),
        ({"max_frames": 0}, "--max-frames must be 1 or more, but is 0"),
        ({"eval_gen": True, "eval_gen_args": '{"bean": 2}'}, "`bean` is no option of --eval-gen"),
    ],
)
def test_wrong_options_are_named(data, options, message):
    with pytest.raises(UserError, match=message):
        task_of(data, "pointer_generator_tiny", **options)


def test_other_architectures_and_ensembles_are_refused(data):
    task = task_of(data)
    for other in ("gcnn_lm_tiny", "glac_tiny", "m_rnn_tiny"):
        with pytest.raises(UserError, match=f"--arch {other}: reads no transcript"):
            task.build_model(options_of(other))
    task = task_of(data)
    task.build_model(options_of("pointer_generator_tiny"), from_checkpoint=True)
    for other in ("vg_bart_tiny", "t5_tiny"):
        with pytest.raises(UserError, match=f"--arch {other} cannot be in an ensemble with the"):
            task.build_model(options_of(other), from_checkpoint=True)
    assert len(task.models) == 1


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "valid.visual_ids",
            lambda text: text.replace("valid3\n", "elsewhere\n"),
            r"no features for 'elsewhere' .* \(1 of 5 videos of valid have none there",
        ),
        (
            "dict.desc.txt",
            lambda text: text.replace("zebra", "a") + "more 1\n",
            r"dict\.tran\.txt and .*dict\.desc\.txt must be equal, but have 20 and 21 types",
        ),
        (
            "valid.unknowns.jsonl",
            lambda text: "[]\n",
            r"unknowns: must agree line by line \(zip",
        ),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, name, change, message):
    indexed_oov = 1 if name.startswith("valid.unknowns") else 0
    data = make_videos_folder(tmp_path / "data", indexed_oov=indexed_oov)
    (data / name).write_text(change((data / name).read_text()))
    with pytest.raises(UserError, match=message):
        batch_of(task_of(data, "vg_bart_tiny", eval_gen=True)[0])
