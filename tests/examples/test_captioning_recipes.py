"""Recipes of captions and embeddings give one batch, whatever the number of GPUs."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from recipe_calls import parse_training

POSITIONAL = ("data", "saved", "embedding")
EXAMPLE = Path(__file__).parents[2] / "examples" / "multimodal_captioning"


@pytest.mark.parametrize("recipe", ["train_m_rnn", "train_vse", "train_transformer"])
def test_any_number_of_gpus_gives_the_same_batch(run_recipe, recipe):
    for gpus in (1, 2, 16, 64):
        (call,) = run_recipe(EXAMPLE, recipe, "data", "saved", GPUS=str(gpus))
        args = parse_training(call)
        assert args.distributed_world_size == gpus
        assert gpus * args.batch_size == 128


@pytest.mark.parametrize(("flags", "is_left"), [("amx_bf16", True), ("avx2", False)])
def test_bfloat16_is_chosen_by_the_processor(run_recipe, tmp_path, flags, is_left):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags : {flags}\n")
    words = ("data", "saved", "m_rnn", "--bf16", "--lr", "a b")
    (call,) = run_recipe(EXAMPLE, "train_m_rnn", *words, CPUINFO=str(cpuinfo))
    assert call[-2:] == ["--lr", "a b"]
    assert ("--bf16" in call) is is_left


def test_rewards_train_a_checkpoint_on(run_recipe):
    for gpus in (1, 2, 16):
        (call,) = run_recipe(
            EXAMPLE, "train_self_critical", "data", "saved", "best.pt", "--lr", "1", GPUS=str(gpus)
        )
        args = parse_training(call)
        assert gpus * args.batch_size == 32
        assert (args.criterion, args.finetune_from_model) == ("self_critical", "best.pt")
        assert args.sample_dropout
        assert (args.one_per_item, args.lr) == (True, [1.0])
    stderr = run_recipe(EXAMPLE, "train_self_critical", "data", "saved", status=2)
    assert "train_self_critical.sh DATA SAVE_DIR CHECKPOINT" in stderr


def test_the_image_network_is_trained_and_separated(run_recipe, tmp_path):
    arguments = ("data", "photos", "saved", "from/best.pt")
    for arch, criterion, metric, batch in (
        ("m_rnn", "label_smoothed_cross_entropy", "cider", 160),
        ("vse_lstm", "pairwise_ranking", "rsum", 320),
    ):
        trained, separated = run_recipe(EXAMPLE, "train_network", *arguments, arch, GPUS="2")
        args = parse_training(trained)
        assert (args.arch, args.criterion, args.batch_size) == (arch, criterion, batch)
        assert args.best_checkpoint_metric == metric
        # no file beside the checkpoint: published weights
        assert (args.photos, args.image_network) == ("photos", None)
        assert args.finetune_from_model == "from/best.pt"
        assert separated[1:] == ["export", "saved", "saved/separated", "--separate-network"]
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "mobilenet_v2.pt").touch()
    trained, _ = run_recipe(EXAMPLE, "train_network", *arguments, "m_rnn")
    assert parse_training(trained).image_network == "from/mobilenet_v2.pt"
    trained, _ = run_recipe(EXAMPLE, "train_network", *arguments, "m_rnn", WEIGHTS="w.pt")
    assert parse_training(trained).image_network == "w.pt"
    # further runs: export refuses a folder with files, and nothing of the last run is lost
    for name in ("first", "second"):
        (tmp_path / "saved" / "separated").mkdir(parents=True)
        (tmp_path / "saved" / "separated" / name).touch()
        run_recipe(EXAMPLE, "train_network", *arguments, "m_rnn")
        assert not (tmp_path / "saved" / "separated").exists()
        assert [x.name for x in (tmp_path / "saved" / "separated.old").iterdir()] == [name]
    stderr = run_recipe(EXAMPLE, "train_network", *arguments, status=2)
    assert "train_network.sh DATA PHOTOS SAVE_DIR CHECKPOINT ARCH" in stderr


def test_the_papers_embedding_is_trained_as_it_says(run_recipe):
    """Kiros et al. 2014, sections 2.2 and 3.1: what the paper names, and nothing else."""
    (call,) = run_recipe(EXAMPLE, "train_vse", "data", "saved", PAPER="1")
    args = parse_training(call)
    assert (args.arch, args.negatives, args.margin) == ("vse_lstm", "random", 0.2)
    assert (args.optimizer, args.lr, args.momentum) == ("sgd", [1.0], 0.0)
    assert (args.lr_scheduler, args.decay_epochs) == ("epoch_decay", 1)
    assert 0 < args.decay_factor < 1
    assert (args.clip_norm, args.weight_decay, args.batch_size) == (0, 0, 40)
    model = convert_namespace_to_omegaconf(args).model
    assert (model.feature_scaling, model.feature_dropout, model.word_dropout) == ("none", 0, 0)


def test_the_log_bilinear_code_trains_by_sgd(run_recipe, tmp_path):
    files = ["data/dict.txt"]
    for split in ("train", "valid"):
        files.append(f"data/{split}.jsonl")
        files.append(f"saved/data/{split}.{split}.jsonl")  # of `embed`, which is not run
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"captions": ["a dog"], "tags": ["D N"]}\n')
    *_, call = run_recipe(EXAMPLE, "train_sc_nlm", *POSITIONAL, PAPER="1")
    assert sorted(path.name for path in (tmp_path / "saved" / "data").iterdir()) == [
        *("dict.txt", "train.jsonl", "valid.jsonl")
    ]
    args = parse_training(call)
    assert (args.arch, args.optimizer, args.momentum) == ("sc_nlm", "sgd", 0.23)
    # a step of .43 / 40 times (1 - .23) of the gradient is what the code takes
    assert args.lr[0] == pytest.approx(0.43 / 40 * (1 - 0.23), rel=0.01)
    assert (args.clip_norm, args.batch_size, args.max_epoch) == (0, 4, 10)
    # .99 for each 100,000 of an epoch's 354,000 words, and for the epoch
    assert args.decay_factor == pytest.approx(0.99 ** (3 + 1), abs=0.002)


def subcommands(calls):
    return [call[1] if call[0] == "fairseq-mm" else call[0] for call in calls]


AFTER_DATA = [
    *("fairseq-train", "fairseq-train"),
    *("caption", "score", "rank", "report", "index"),
]


def make_release(folder):
    (folder / "my photos").mkdir()
    (folder / "my models" / "data").mkdir(parents=True)
    for split, name in (("train", "1.jpg"), ("valid", "2.jpg")):
        (folder / "my photos" / name).touch()
        record = {"id": name, "captions": ["a dog"] * 5}
        (folder / "my models" / "data" / f"{split}.jsonl").write_text(f"{json.dumps(record)}\n")


def test_one_command_leads_from_the_release_to_models_and_is_continued(run_recipe, tmp_path):
    arguments = ("release", "my photos", "my models")
    make_release(tmp_path)
    calls = run_recipe(EXAMPLE, "flickr8k", *arguments)
    assert subcommands(calls) == ["prepare", "extract", *AFTER_DATA]
    # the steps and their time are told before the first of them
    told, time, _, *lines = run_recipe.stdout.splitlines()
    steps = re.findall(r"^\[\d/8\] (.*), begun at", "\n".join(lines), re.M)
    assert told == f"8 steps: {', '.join(steps)}"
    assert time.startswith("On two cores, they took 16 minutes")
    captioner, embedding = map(parse_training, calls[2:4])
    assert (captioner.arch, captioner.max_update) == ("m_rnn", 4700)
    assert float(captioner.total_num_update) == 4700
    assert (embedding.arch, embedding.max_update) == ("vse_bow", 3525)
    assert embedding.loss == "info_nce"
    assert captioner.save_dir == "my models/m_rnn"
    assert calls[-1][1:4] == ["index", "my photos", "--checkpoint"]
    assert run_recipe(EXAMPLE, "flickr8k", *arguments) == []
    # a step that has failed is done again, with the steps after it that were not done
    for name in ("score", "page"):
        (tmp_path / "my models" / "done" / name).unlink()
    assert subcommands(run_recipe(EXAMPLE, "flickr8k", *arguments)) == ["score", "rank", "report"]


def test_a_release_without_some_of_its_images_is_refused_before_features(run_recipe, tmp_path):
    arguments = ("release", "my photos", "my models")
    make_release(tmp_path)
    (tmp_path / "my photos" / "2.jpg").unlink()
    error = run_recipe(EXAMPLE, "flickr8k", *arguments, status=2)
    assert error == "my photos: images of the release are missing: 1, such as 2.jpg.\n"
    (tmp_path / "my photos" / "2.jpg").touch()
    assert subcommands(run_recipe(EXAMPLE, "flickr8k", *arguments)) == ["extract", *AFTER_DATA]


def test_own_images_are_trained_on_as_long_as_their_number_asks(run_recipe, tmp_path):
    (tmp_path / "own").mkdir()
    line = '{"image": "pictures/1.jpg", "captions": ["A dog ."]}\n'
    for images, captions, size, updates in (
        (30, 100, "3", 500),
        (4000, 20_000, "400", 3125),
        (20_000, 100_000, "1000", 4700),
    ):
        out = tmp_path / f"out{images}"
        (out / "data").mkdir(parents=True)
        (out / "data" / "prepare.json").write_text(f'"captions": {captions},\n')
        (tmp_path / "own" / "captions.jsonl").write_text(line * images)
        calls = run_recipe(EXAMPLE, "own_images", "own/captions.jsonl", out.name)
        assert subcommands(calls) == ["extract", "prepare", *AFTER_DATA]
        prepare = calls[1]
        assert prepare[prepare.index("--valid-size") + 1] == size
        assert ("--threshold" in prepare) == (images < 1000)
        for call in calls[2:4]:
            assert parse_training(call).max_update == updates
        assert calls[-1][2] == "own/pictures"  # which is indexed
    # lines that have a split keep it; another number of updates, and other weights
    (tmp_path / "own" / "captions.jsonl").write_text(line.replace("}", ', "split": "train"}'))
    (tmp_path / "w.pt").touch()
    for name in ("begun", "prepare", "extract", "train m_rnn"):
        (tmp_path / "out4000" / "done" / name).unlink()
    extract, prepare, train = run_recipe(
        EXAMPLE, "own_images", "own/captions.jsonl", "out4000", UPDATES="7", WEIGHTS="w.pt"
    )
    assert "--valid-size" not in prepare
    assert extract[extract.index("--weights") + 1] == "w.pt"
    assert parse_training(train).max_update == 7
    assert (tmp_path / "out4000" / "m_rnn" / "mobilenet_v2.pt").exists()


def test_steps_that_were_done_with_other_inputs_are_refused(run_recipe, tmp_path):
    make_release(tmp_path)
    arguments = ("release", "my photos", "my models")
    assert run_recipe(EXAMPLE, "flickr8k", *arguments, UPDATES="5") != []
    assert "minutes" not in run_recipe.stdout  # which are of the usual number of updates
    error = run_recipe(EXAMPLE, "flickr8k", *arguments, status=2)
    assert error.startswith("my models: holds a run of other inputs or settings ")
    assert f"({tmp_path / 'release'} " in error
    assert "UPDATES=5 WEIGHTS=; now: " in error
    assert error.endswith(" UPDATES= WEIGHTS=): name another OUT.\n")
    (tmp_path / "own").mkdir()
    captions = tmp_path / "own" / "captions.jsonl"
    captions.write_text('{"image": "1.jpg", "captions": ["A dog ."]}\n')
    (tmp_path / "out" / "data").mkdir(parents=True)
    (tmp_path / "out" / "data" / "prepare.json").write_text('"captions": 1,\n')
    assert run_recipe(EXAMPLE, "own_images", "own/captions.jsonl", "out") != []
    assert run_recipe(EXAMPLE, "own_images", "own/captions.jsonl", "out") == []
    captions.write_text(captions.read_text() * 2)
    error = run_recipe(EXAMPLE, "own_images", "own/captions.jsonl", "out", status=2)
    assert error.startswith("out: holds a run of other inputs or settings (captions of checksum ")
    error = run_recipe(EXAMPLE, "own_images", "own/captions.jsonl", "", status=2)
    assert error == "OUT must be a folder, but is empty.\n"


def make_text(folder):
    folder.mkdir()
    for name in ("dict.txt", "prepare.json", "train.bin", "train.idx", "train.jsonl"):
        (folder / name).touch()
    (folder / "features.h5").write_text("pooled")


def test_one_command_trains_on_a_grid_and_then_for_cider(run_recipe, tmp_path):
    make_text(tmp_path / "text")
    (tmp_path / "out" / "transformer_captioner").mkdir(parents=True)
    (tmp_path / "out" / "transformer_captioner" / "checkpoint_best.pt").touch()
    (tmp_path / "w.pt").touch()
    calls = run_recipe(EXAMPLE, "strong", "text", "photos", "out", WEIGHTS="w.pt")
    separated = tmp_path / "out" / "network" / "separated"
    separated.mkdir(parents=True)
    (separated / "mobilenet_v2.pt").touch()
    calls += run_recipe(
        EXAMPLE, "strong", "text", "photos", "out", CRITICAL_UPDATES="940", WEIGHTS="w.pt"
    )
    assert (tmp_path / "out" / "self_critical" / "mobilenet_v2.pt").exists()
    described = ["caption", "score", "perplexity"]
    assert subcommands(calls) == [
        *("extract", "fairseq-train", *described),
        *("fairseq-train", "export", "extract", *described),
        *("fairseq-train", *described),
    ]
    again = [call for call in calls if "extract" in call][1]
    assert {"out/network/separated/mobilenet_v2.pt", "out/network_data/features.h5"} <= set(again)
    assert {"--grid", "out/data/features.h5"} <= set(calls[0])
    assert not (tmp_path / "out" / "data" / "features.h5").exists()  # not the pooled ones
    for copied in ("train.jsonl", "prepare.json", "train.idx"):
        assert (tmp_path / "out" / "data" / copied).exists()
    first, joint, second = (parse_training(call) for call in calls if call[0] == "fairseq-train")
    assert (first.arch, first.max_update, first.label_smoothing) == (
        "transformer_captioner", 2820, 0.1,
    )  # fmt: skip
    assert (joint.photos, joint.image_network, joint.max_update) == ("photos", "w.pt", 564)
    assert joint.finetune_from_model == "out/transformer_captioner/checkpoint_best.pt"
    assert (second.criterion, second.max_update) == ("self_critical", 940)
    assert second.arch == "transformer_captioner"
    assert second.finetune_from_model == "out/network/separated/checkpoint_best.pt"
    assert run_recipe(EXAMPLE, "strong", "text", "photos", "out", WEIGHTS="w.pt") == []
    (tmp_path / "out" / "done" / "score self_critical").unlink()
    # not asked for
    assert run_recipe(EXAMPLE, "strong", "text", "photos", "out", WEIGHTS="w.pt") == []


@pytest.mark.parametrize(
    ("before", "after", "folder"),
    [
        ({"NETWORK_UPDATES": "8"}, {"NETWORK_UPDATES": "9"}, "network"),
        (
            {"NETWORK_UPDATES": "0", "CRITICAL_UPDATES": "5"},
            {"NETWORK_UPDATES": "8", "CRITICAL_UPDATES": "5"},
            "self_critical",
        ),
    ],
)
def test_the_strong_recipe_refuses_other_updates_than_it_began_with(
    run_recipe, tmp_path, before, after, folder
):
    make_text(tmp_path / "text")
    (tmp_path / "out" / "transformer_captioner").mkdir(parents=True)
    (tmp_path / "out" / "transformer_captioner" / "checkpoint_best.pt").touch()
    assert run_recipe(EXAMPLE, "strong", "text", "photos", "out", **before) != []
    assert run_recipe(EXAMPLE, "strong", "text", "photos", "out", **before) == []
    error = run_recipe(EXAMPLE, "strong", "text", "photos", "out", status=2, **after)
    assert error.startswith(
        f"out/{folder}: was begun with NETWORK_UPDATES={before['NETWORK_UPDATES']}"
    )
    assert error.count("\n") == 1


def test_ctrl_c_ends_a_recipe_with_one_line(tmp_path):
    script = 'out=out total=1; source "$1"; begin; step nap sleep 5; step never true'
    recipe = subprocess.Popen(
        [
            *("env", "--default-signal=INT"),
            *("bash", "-euc", script, "recipe", EXAMPLE.parent / "steps.sh"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert recipe.stdout.readline().startswith("[1/1] nap, begun at")
    os.killpg(recipe.pid, signal.SIGINT)
    out, err = recipe.communicate(timeout=20)
    assert (recipe.returncode, out) == (130, "")
    assert err == "Interrupted: run the same command again to continue.\n"
    assert not (tmp_path / "out").exists()
