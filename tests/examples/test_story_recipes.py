"""The recipes of examples/hierarchical_story: their commands run, with small sizes, one after the
other."""

import json
import re
import subprocess
from argparse import Namespace

import pytest
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY
from recipe_calls import parse_training
from toy_data import PACKAGE, run_fairseq
from toy_story_models import make_story_folder

from fairseq_mm.cli.main import main
from fairseq_mm.models.conv_story import ConvStoryModel, part_options
from fairseq_mm.prepare.upgrade import upgrade_folder

EXAMPLE = PACKAGE.parent / "examples/hierarchical_story"
WIDTHS = "--decoder-embed-dim 8 --decoder-out-embed-dim 6"
LAYERS = "--encoder-embed-dim 8 --encoder-layers [(8,3)] --decoder-layers [(12,4)]"
LSTM = "--encoder-embed-dim 8 --encoder-hidden-size 8 --decoder-hidden-size 8"
RUN = "--max-update 2 --num-workers 0 --cpu"


def model_options(call):
    return convert_namespace_to_omegaconf(parse_training(call)).model


def test_recipes_train_tell_and_score(calls_of, tmp_path, monkeypatch, capsys):
    data = make_story_folder(tmp_path / "data with a space", train=6, valid=12)
    upgrade_folder(data)
    monkeypatch.chdir(tmp_path)
    sequence = (
        ("1_train_prompt_lm", "prompts", "lm", ["gcnn_lm_self_att"], "--decoder-layers [(12,4)]"),
        ("2_train_seq2seq", "", "story", ["conv_story_gated"], LAYERS),
        ("2_train_seq2seq", "", "second", ["conv_story_gated"], f"{LAYERS} --seed 2"),
        ("3_train_fusion", "", "fusion", ["story/checkpoint_best.pt"], LAYERS),
        ("4_train_lstm", "", "lstm", [], LSTM),
    )
    for recipe, part, saved, arguments, sizes in sequence:
        small = f"{sizes} {WIDTHS} {RUN}".split()
        (call,) = calls_of(recipe, data / part, saved, *arguments, *small, SIZE="small")
        parse_training(call)
        run_fairseq(monkeypatch, "train", *call[1:])
        assert (tmp_path / saved / "checkpoint_best.pt").exists()

    for model, words in (("fusion", 7), ("story:second", 4), ("lstm", 5)):
        calls = calls_of(
            "5_tell_and_score",
            data,
            "out",
            model,
            "valid",
            *("--min-len", words, "--max-len-b", words),
            STORIES="3",
            DRAWS="2",
        )
        capsys.readouterr()
        for call in calls:
            assert call[0] == "fairseq-mm"
            assert main(call[1:]) == 0
        printed = capsys.readouterr().out
        assert "perplexity, all tokens" in printed
        assert "2 draws" in printed
        assert "copied_words" in printed
        generated = [
            json.loads(line) for line in (tmp_path / "out/generated.jsonl").read_text().splitlines()
        ]
        assert [story["words"] for story in generated] == [words] * 3
        figures = json.loads((tmp_path / "out/generated.json").read_text())
        assert "copied_words" in {score["metric"] for score in figures["scores"]}
        subprocess.run(["rm", "-r", str(tmp_path / "out")], check=True)


def test_any_number_of_gpus_gives_the_same_batch(calls_of):
    for gpus in (1, 2, 4, 8):
        for tokens in ({}, {"TOKENS": "1500"}):
            (call,) = calls_of("2_train_seq2seq", "data", "saved", GPUS=str(gpus), **tokens)
            args = parse_training(call)
            assert args.distributed_world_size == gpus
            assert gpus * args.update_freq[0] * args.max_tokens == 12_000
            assert args.max_tokens == (1500 if tokens else 12_000 // gpus)


def test_full_size_has_the_papers_optimization(calls_of):
    (story,) = calls_of("3_train_fusion", "data", "saved", "trained.pt")
    (language,) = calls_of("1_train_prompt_lm", "data", "saved")
    assert (parse_training(story).lr, parse_training(language).lr) == ([0.25], [1.0])
    for args in (parse_training(story), parse_training(language)):
        assert (args.optimizer, args.momentum, args.clip_norm) == ("nag", 0.99, 0.1)
        assert (args.weight_decay, args.lr_scheduler) == (1e-7, "reduce_lr_on_plateau")
    assert (model_options(story).dropout, model_options(language).dropout) == (0.3, 0.1)


def dictionary(types):
    words = Dictionary()
    for number in range(types - words.nspecial):
        words.add_symbol(f"w{number}")
    return words


@pytest.mark.slow
def test_parameters_of_the_full_size_are_those_of_the_table(calls_of):
    page = (PACKAGE.parent / "docs/results/hierarchical_story.md").read_text("utf-8")
    table = page.split("| `--arch` | paper, million | here |\n")[1].split("\n\n")[0]
    source, target = dictionary(19_025), dictionary(104_960)

    def task(source, target):
        return Namespace(
            source_dictionary=source,
            target_dictionary=target,
            dictionary=target,
            cfg=Namespace(data=None),
        )

    def count(recipe, *arguments, words=(source, target)):
        (call,) = calls_of(recipe, "data", "saved", *arguments)
        arch, cfg = parse_training(call).arch, model_options(call)
        if arch == "conv_story_fusion":
            (frozen,) = calls_of("2_train_seq2seq", "data", "saved")
            model = ConvStoryModel(cfg, *words, part_options(model_options(frozen)))
        else:
            model = ARCH_MODEL_REGISTRY[arch].build_model(cfg, task(*words))
        trained = sum(x.numel() for x in model.parameters() if x.requires_grad)
        return sum(x.numel() for x in model.parameters()), trained

    for arch in ("conv_story", "conv_story_gated"):
        number = count("2_train_seq2seq", arch)[0]
        assert re.search(rf"^\| `{arch}`.* \| {number:,} \|$", table, re.M)
    total, trained = count("3_train_fusion", "trained.pt")
    assert f"| {total:,}, of which {trained:,} are trained |" in table
    for arch in ("gcnn_lm", "gcnn_lm_self_att"):
        number = count("1_train_prompt_lm", arch, words=(target, target))[0]
        assert re.search(rf"^\| `{arch}` of stories \| .* \| {number:,} \|$", table, re.M)
    assert f"`4_train_lstm.sh` | 110.3 | {count('4_train_lstm')[0]:,} |" in table


def test_one_command_trains_the_strongest_rung_and_scores_it(calls_of, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "valid.jsonl").touch()
    arguments = ("strong", "data", "out", "--max-update", "7")
    calls = calls_of(*arguments, SIZE="small")
    first, second = (parse_training(call) for call in calls[:2])
    assert (first.arch, second.arch) == ("conv_story_gated", "conv_story_fusion")
    assert second.pretrained_checkpoint == f"{first.save_dir}/checkpoint_best.pt"
    assert (first.max_update, second.max_update) == (7, 7)
    assert {"tell", "rank", "perplexity", "score"} <= {call[1] for call in calls[2:]}
    (tmp_path / "out" / "done" / "train conv_story_fusion").unlink()
    (again,) = calls_of(*arguments, SIZE="small")
    assert parse_training(again).arch == "conv_story_fusion"
    assert calls_of(*arguments, status=2).endswith(": name another OUT.\n")  # the full size
