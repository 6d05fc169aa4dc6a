"""The recipes of examples/video_summarization: their commands parse, and run with small sizes."""

import json

import pytest
import torch
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from recipe_calls import parse_training
from toy_bart import TINY_BART, write_bart
from toy_data import PACKAGE, make_videos_folder, run_fairseq

from fairseq_mm.cli.main import main

EXAMPLE = PACKAGE.parent / "examples/video_summarization"
TABLE_1_WORDS = {
    "s2s": "lstm",
    "tf": "transformer",
    "pointer_generator": "pointer_generator",
    "pointer_generator_coverage": "pointer_generator",
    "hierarchical_attention_rnn": "hierarchical_attention_rnn",
    "hierarchical_attention_transformer": "hierarchical_attention_transformer",
    "mffg_rnn": "mffg_rnn",
    "mffg_transformer": "mffg_transformer",
}
PRETRAINED = {
    "bart": "bart_base",
    "t5": "t5_base",
    "vg_bart_dot_product": "vg_bart_base",
    "vg_bart_dot_product_projected": "vg_bart_base",
    "vg_bart_dot_product_fg": "vg_bart_dot_product_fg",
    "vg_bart_dot_product_fg_vtf": "vg_bart_dot_product_fg_vtf",
    "vg_bart_multi_head": "vg_bart_base",
    "vg_bart_fg": "vg_bart_base",
    "vg_bart_vtf": "vg_bart_base",
    "vg_bart_fg_vtf": "vg_bart_base",
    "vg_t5_dot_product": "vg_t5_base",
    "vg_t5_multi_head": "vg_t5_base",
}


def option(name):
    return f"--{name.replace('_', '-')}"


def configuration(call):
    return convert_namespace_to_omegaconf(parse_training(call))


@pytest.mark.parametrize("system", TABLE_1_WORDS)
def test_baselines_have_their_papers_optimization(calls_of, system):
    (call,) = calls_of("1_train", "data", "saved", system, PRETRAINED="pg.pt")
    cfg = configuration(call)
    assert cfg.model._name == TABLE_1_WORDS[system]
    assert cfg.optimization.lr == [1.5e-4]
    is_transformer = "transformer" in TABLE_1_WORDS[system]
    assert cfg.optimization.clip_norm == (0.1 if is_transformer else 1)
    batch = cfg.dataset.batch_size * cfg.optimization.update_freq[0]
    assert batch == (8 if is_transformer else 4)
    # as in MFFG's released code: AMSGrad in its transformer alone, weight decay in neither
    optimizer = cfg.optimizer
    assert (optimizer._name, optimizer.weight_decay) == ("adam_l2", 0)
    assert optimizer.amsgrad is is_transformer
    # and its epochs and lengths
    assert cfg.optimization.max_epoch == (10 if is_transformer else 50)
    assert cfg.lr_scheduler._name == "fixed"
    assert cfg.task.max_source_positions == (800 if is_transformer else 600)
    assert cfg.task.max_frames == 1024
    metric = cfg.checkpoint.best_checkpoint_metric
    assert metric == ("loss" if is_transformer else "rouge_l_f1")
    assert cfg.checkpoint.patience == (-1 if is_transformer else 66)
    if not is_transformer:
        assert json.loads(cfg.task.eval_gen_args)["beam"] == 6


def test_coverage_goes_on_from_a_pointer_generator(calls_of, tmp_path, monkeypatch):
    data = make_videos_folder(tmp_path / "data")
    small = "--embedding-dim 8 --hidden-dim 6 --attention-dim 5 --num-workers 0"
    once = (*small.split(), "--cpu", "--max-update", "1")
    (call,) = calls_of("1_train", data, tmp_path / "pg", "pointer_generator", *once)
    run_fairseq(monkeypatch, "train", *call[1:])
    trained = tmp_path / "pg/checkpoint_best.pt"
    arguments = (data, tmp_path / "saved", "pointer_generator_coverage")
    (call,) = calls_of("1_train", *arguments, *once, "--lr", "0", PRETRAINED=str(trained))
    assert configuration(call).optimization.max_update == 1  # by default 3,000
    run_fairseq(monkeypatch, "train", *call[1:])
    before, after = (
        load_model_ensemble([str(path)])[0][0].state_dict()
        for path in (trained, tmp_path / "saved/checkpoint_best.pt")
    )
    (added,) = after.keys() - before.keys()
    assert added == "decoder.attention.coverage_weight"
    assert not after[added].any()
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name


@pytest.mark.parametrize("system", PRETRAINED)
def test_pretrained_systems_have_the_optimization_that_the_page_describes(calls_of, system):
    asked, call = calls_of("1_train", "data", "saved", system, PRETRAINED="b/model.pt", GPUS="4")
    assert asked == ["fairseq-mm", "pretrained-options", "b/model.pt"]
    cfg = configuration(call)
    assert cfg.model._name == PRETRAINED[system]
    assert cfg.checkpoint.finetune_from_model == "b/model.pt"
    # a text-only model has no added parameters
    assert getattr(cfg.optimizer, "added_lr", None) == (1.5e-4 if "vg" in system else None)
    # BART as in the released code; section 4.2, read in order, exchanges the two rates
    assert cfg.optimization.lr == [6e-4 if "t5" in system else 3e-5]
    assert cfg.optimizer.weight_decay == 1e-5
    assert (cfg.checkpoint.patience, cfg.checkpoint.best_checkpoint_metric) == (5, "rouge2")
    assert 4 * cfg.dataset.batch_size * cfg.optimization.update_freq[0] == 120


@pytest.mark.parametrize("system", ["bart", "vg_bart_fg"])
def test_pretrained_systems_train_with_the_dropouts_of_the_pretrained_model(
    calls_of, tmp_path, monkeypatch, capsys, system
):
    rates = {"dropout": 0.12, "attention_dropout": 0.23, "activation_dropout": 0.34}
    bart, _ = write_bart(tmp_path / "bart.pt", **rates)
    assert main(["pretrained-options", str(bart)]) == 0
    printed = capsys.readouterr().out
    assert printed == "--dropout 0.12 --attention-dropout 0.23 --activation-dropout 0.34\n"
    tiny = [text for name, size in TINY_BART.items() for text in (option(name), str(size))]
    if system == "bart":
        tiny += ["--decoder-embed-dim", "8"]
    else:
        tiny += ["--fusion-encoder-layers", "1,2", "--fusion-dim", "8"]
    data = make_videos_folder(tmp_path / "data")
    arguments = (data, tmp_path / "saved", system, *tiny)
    prints = {"fairseq-mm": printed}
    *_, call = calls_of("1_train", *arguments, prints=prints, PRETRAINED=str(bart))
    once = ("--max-update", "1", "--update-freq", "1", "--num-workers", "0", "--cpu")
    run_fairseq(monkeypatch, "train", *call[1:], *once, "--disable-validation")
    (model,), cfg = load_model_ensemble([str(tmp_path / "saved/checkpoint_last.pt")])
    for name, rate in rates.items():
        assert getattr(cfg.model, name) == rate
    for layer in (*model.encoder.layers, *model.decoder.layers):
        assert layer.dropout_module.p == 0.12
        assert layer.activation_dropout_module.p == 0.34
        assert layer.self_attn.dropout_module.p == 0.23
    arguments += ("--attention-dropout", "0.5")
    *_, call = calls_of("1_train", *arguments, prints=prints, PRETRAINED=str(bart))
    cfg = configuration(call).model
    assert (cfg.attention_dropout, cfg.activation_dropout) == (0.5, 0.34)


def test_recipes_train_summarize_and_score(calls_of, tmp_path, monkeypatch, capsys):
    data = make_videos_folder(tmp_path / "data with a space")
    monkeypatch.chdir(tmp_path)
    sizes = "--embedding-dim 8 --hidden-dim 6 --attention-dim 5"
    small = f"{sizes} --max-update 2 --num-workers 0 --cpu".split()
    (call,) = calls_of("1_train", data, "saved", "pointer_generator", *small)
    run_fairseq(monkeypatch, "train", *call[1:])
    model = tmp_path / "saved/checkpoint_best.pt"
    capsys.readouterr()
    generate, score = calls_of("2_summarize_and_score", data, "out", model, "valid", "--cpu")
    run_fairseq(monkeypatch, "generate", *generate[1:])
    (tmp_path / "out/generate-valid.txt").write_text(capsys.readouterr().out)
    # METEOR's tables may not be compiled yet, which takes seconds
    assert main([*score[1:], "--metrics", "rouge,bleu"]) == 0
    assert "rouge2" in capsys.readouterr().out
    assert (tmp_path / "out/scores.json").exists()


def test_one_command_trains_the_best_system_and_scores_it(calls_of):
    arguments = ("strong", "data", "out", "--max-update", "7")
    calls = calls_of(*arguments, PRETRAINED="b/model.pt")
    _, train, generate, score = calls
    args = parse_training(train)
    assert (args.arch, args.max_update) == ("vg_bart_dot_product_fg_vtf", 7)
    assert f"{args.save_dir}/checkpoint_best.pt" in generate
    assert score[:2] == ["fairseq-mm", "score"]
    assert calls_of(*arguments, PRETRAINED="b/model.pt") == []
