"""`fairseq-mm perplexity` against fairseq-validate, and its messages."""

import json
import math
import re
import shutil

import pytest
from fairseq.logging import progress_bar
from toy_data import make_captions_folder, make_videos_folder, run_fairseq
from toy_story_models import make_story_folder, train_stories

from fairseq_mm.cli import split_texts
from fairseq_mm.cli.main import main

PAIR = ["--task", "translation", "--source-lang", "wp_source", "--target-lang", "wp_target"]
LM = ["--task", "language_modeling", "--sample-break-mode", "eos", "--tokens-per-sample", 64]
LSTM_LM = "--decoder-embed-dim 8 --decoder-hidden-size 8 --decoder-out-embed-dim 6"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and checkpoints: two of stories, fairseq's LSTM and language model."""
    folder = tmp_path_factory.mktemp("perplexity")
    data = make_story_folder(folder / "data")
    lstm = "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-hidden-size 8 "
    lstm += "--decoder-hidden-size 8 --decoder-out-embed-dim 6 --encoder-layers 1"
    return data, {
        "story": train_stories(data, folder / "a", "conv_story_tiny", "--lr 0.001"),
        "other": train_stories(data, folder / "b", "conv_story_tiny", "--lr 0.002"),
        "lstm": train_stories(data, folder / "c", "lstm", lstm),
        "lm": train_stories(data / "stories", folder / "d", "lstm_lm", LSTM_LM),
        "gcnn": train_stories(data / "prompts", folder / "e", "gcnn_lm_tiny"),
    }


@pytest.fixture
def perplexity(trained, tmp_path, capsys):
    """Runs the command; returns exit status, result, stdout, stderr."""
    data, checkpoints = trained

    def run(name, *options, data=data):
        path = ":".join(str(checkpoints.get(part, part)) for part in name.split(":"))
        file = tmp_path / "result.json"
        file.unlink(missing_ok=True)
        arguments = [data, "--checkpoint", path, "--json", file, *options]
        status = main(["perplexity", *map(str, arguments)])
        result = json.loads(file.read_text()) if file.exists() else {}
        printed = capsys.readouterr()
        return status, result, printed.out, printed.err

    return run


def validated(data, path, task, monkeypatch):
    """fairseq's own loss in bits, of all texts: it drops uneven batches otherwise."""
    seen = []
    monkeypatch.setattr(
        progress_bar.SimpleProgressBar, "print", lambda self, stats, **_: seen.append(stats)
    )
    options = "--batch-size 3 --required-batch-size-multiple 1 --num-workers 0 --cpu"
    options += " --log-format simple --valid-subset valid"
    run_fairseq(monkeypatch, "validate", data, *task, "--path", path, *options.split())
    (stats,) = seen
    return stats["loss"]


@pytest.mark.parametrize(
    ("name", "task"), [("story", PAIR), ("lstm", PAIR), ("lm", LM), ("gcnn", LM)]
)
def test_all_tokens_have_the_perplexity_of_fairseq_validate(
    perplexity, trained, name, task, monkeypatch
):
    data, checkpoints = trained
    folder = data / {"lm": "stories", "gcnn": "prompts"}.get(name, "")
    bits = validated(folder, checkpoints[name], task, monkeypatch)
    status, result, out, _ = perplexity(name, data=folder)
    assert status == 0
    entry = result["perplexities"]["all"]
    assert math.log2(entry["perplexity"]) == pytest.approx(bits, abs=6e-4)
    side = "wp_source" if name == "gcnn" else "wp_target"
    words = len((data / f"text/valid.{side}").read_text().split())
    assert (entry["tokens"], result["words"], result["ends"]) == (words + 13, words, 13)
    assert f"{entry['perplexity']:.2f}" in out


@pytest.mark.parametrize("name", ["captions", "summaries"])
def test_captions_and_summaries_have_the_perplexity_of_fairseq_validate(
    name, tmp_path, monkeypatch, capsys
):
    if name == "captions":
        data = make_captions_folder(tmp_path / "data")
        task = ["--task", "multimodal_captioning"]
        arch = "m_rnn_tiny"
    else:
        data = make_videos_folder(tmp_path / "data")
        task = ["--task", "video_summarization"]
        arch = "vg_bart_tiny"
    options = f"--arch {arch} --criterion cross_entropy --max-epoch 1 --batch-size 4 --cpu "
    options += "--optimizer adam --lr 0.01 --num-workers 0 --no-epoch-checkpoints --log-format none"
    save = ["--save-dir", tmp_path / "model"]
    with pytest.MonkeyPatch.context() as patch:
        run_fairseq(patch, "train", data, *task, *options.split(), *save)
    path = tmp_path / "model/checkpoint_best.pt"
    monkeypatch.setitem(split_texts.BATCH_TOKENS, "cpu", 30)
    capsys.readouterr()
    arguments = [data, "--checkpoint", path, "--json", tmp_path / "p.json"]
    assert main(["perplexity", *map(str, arguments), "--device", "cpu"]) == 0
    result = json.loads((tmp_path / "p.json").read_text())
    bits = validated(data, path, task, monkeypatch)
    assert math.log2(result["perplexities"]["all"]["perplexity"]) == pytest.approx(bits, abs=6e-4)
    assert result["texts"] == result["texts_available"] == result["ends"]
    assert main(["perplexity", *map(str, arguments), "--words", "3"]) == 2
    assert (
        f"--words: is for checkpoints of stories of prompts, but {path}" in capsys.readouterr().err
    )


def test_parts_join_to_the_whole(perplexity, trained):
    data, _ = trained
    _, result, out, _ = perplexity("story")
    known = set((data / "dict.wp_target.txt").read_text().split()[::2])
    words = (data / "text/valid.wp_target").read_text().split()
    unknown = sum(word not in known for word in words)
    assert result["unknown_words"] == unknown > 0
    parts = result["perplexities"]
    assert parts["known_words"]["tokens"] == len(words) - unknown
    assert parts["without_ends"]["tokens"] == len(words)
    assert f"{unknown} of them unknown" in out
    assert "ends:left-out|unk:counted" in parts["without_ends"]["signature"]


@pytest.mark.parametrize("name", ["story", "story:other"])
def test_no_other_temperature_is_better(perplexity, trained, name, monkeypatch):
    _, plain, _, _ = perplexity(name)
    status, result, out, _ = perplexity(name, "--tune-temperature", "--top-k", 4)
    assert status == 0
    for key, entry in plain["perplexities"].items():
        same = result["perplexities"][key]["perplexity"]
        assert same == pytest.approx(entry["perplexity"], rel=1e-5)
    found = result["temperatures"]["softmax"]
    assert found["is_inside"]
    assert found["perplexity"] < plain["perplexities"]["all"]["perplexity"]
    # with the weights divided by the temperature found, the best temperature is 1
    import torch

    build = split_texts.build_models

    def sharpened(*args):
        models = build(*args)
        with torch.no_grad():
            for model in models.models:
                model.decoder.output_proj.weight.div_(found["temperature"])
                model.decoder.output_proj.bias.div_(found["temperature"])
        return models

    monkeypatch.setattr(split_texts, "build_models", sharpened)
    _, again, _, _ = perplexity(name, "--tune-temperature", "--top-k", 4)
    assert again["temperatures"]["softmax"]["temperature"] == pytest.approx(1, abs=1e-3)
    assert again["perplexities"]["all"]["perplexity"] == pytest.approx(
        found["perplexity"], rel=1e-5
    )
    assert ("top_4" in result["temperatures"]) == (":" not in name)
    if ":" not in name:
        top = result["temperatures"]["top_4"]
        assert 0 < top["tokens"] < result["perplexities"]["all"]["tokens"]
        assert top["perplexity"] < found["perplexity"]
        assert "temperature, top 4" in out


def test_the_dictionary_tells_the_side(perplexity, trained, tmp_path):
    data, _ = trained
    assert perplexity("lm", data=data / "stories")[1]["side"] == "wp_target"
    assert perplexity("gcnn")[1]["side"] == "wp_source"
    other = tmp_path / "data"
    shutil.copytree(data, other)
    (other / "dict.wp_target.txt").write_text("word 1\n")
    status, _, _, err = perplexity("lm", data=other / "stories")
    assert status == 2
    assert "must be that of prompts or of stories, but is that of neither" in err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("story", ["--json", "/nowhere/a.json"], "there is no folder /nowhere"),
        ("nothing", [], "nothing: no such checkpoint or folder"),
        ("story:gcnn", [], "other dictionary than"),
    ],
)
def test_mistakes_are_reported_in_one_line(perplexity, name, options, message):
    status, _, _, err = perplexity(name, *options)
    assert status == 2
    (line,) = [x for x in err.splitlines() if x.startswith("fairseq-mm perplexity:")]
    assert re.search(message, line)
