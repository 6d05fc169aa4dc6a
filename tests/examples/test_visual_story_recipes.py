"""The recipes of examples/visual_storytelling: their commands run, with small sizes, one after the
other."""

import json

import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from recipe_calls import parse_training
from toy_data import PACKAGE, make_visual_stories_folder, run_fairseq

from fairseq_mm.cli.main import main

EXAMPLE = PACKAGE.parent / "examples/visual_storytelling"
ARCHES = ("glac", "glac_decoder_attention", "transtory_decoder", "transtory_full", "transtory_xl")
RUN = "--max-update 2 --num-workers 0 --cpu"


def test_recipes_train_tell_and_score(calls_of, tmp_path, monkeypatch, capsys):
    data = make_visual_stories_folder(tmp_path / "data with a space")
    monkeypatch.chdir(tmp_path)
    sizes = "--picture-dim 8 --embedding-dim 8 --model-dim 8 --decoder-ffn-dim 9"
    train = f"{sizes} {RUN} --batch-size 4".split()
    (call,) = calls_of("1_train", data, "saved", "transtory_xl", *train, SIZE="small")
    run_fairseq(monkeypatch, "train", *call[1:])
    model = tmp_path / "saved/checkpoint_best.pt"

    calls = calls_of(
        "2_tell_and_score", data, "out", model, "valid", "--cpu", DRAWS="2", CANDIDATES="4"
    )
    capsys.readouterr()
    for call in calls:
        if call[0] == "fairseq-generate":
            run_fairseq(monkeypatch, "generate", *call[1:])
            (tmp_path / "out/generate-valid.txt").write_text(capsys.readouterr().out)
        elif call[1] == "score":  # METEOR's tables may not be compiled yet, which takes seconds
            assert main([*call[1:], "--metrics", "bleu,diversity,sentences"]) == 0
        else:
            assert main(call[1:]) == 0
    printed = capsys.readouterr().out
    assert "sentence" in printed
    figures = json.loads((tmp_path / "out/scores.json").read_text())
    assert "bleu4" in {score["metric"] for score in figures["scores"]}
    assert (tmp_path / "out/ranks/ranking.json").exists()


@pytest.mark.parametrize("arch", ARCHES)
def test_every_system_has_the_papers_optimization_and_small_sizes(calls_of, arch):
    (call,) = calls_of("1_train", "data", "saved", arch)
    args = parse_training(call)
    assert (args.optimizer, args.weight_decay, args.batch_size) == ("adam_l2", 1e-5, 64)
    assert args.lr == [1e-3 if arch.startswith("glac") else 1e-4]
    assert (args.patience, args.max_epoch) == (5, 100)
    (small,) = calls_of("1_train", "data", "saved", arch, SIZE="small")
    cfg = convert_namespace_to_omegaconf(parse_training(small))
    assert cfg.model.picture_dim == 256
    assert (cfg.optimizer._name, cfg.optimizer.weight_decay) == ("adam_l2", 1e-5)


def test_any_number_of_gpus_gives_the_same_batch(calls_of):
    sizes = set()
    for gpus in (1, 2, 8, 32):
        (call,) = calls_of("1_train", "data", "saved", "glac", GPUS=str(gpus))
        sizes.add(gpus * parse_training(call).batch_size)
    assert sizes == {64}


def test_one_command_trains_an_ensemble_and_scores_its_stories(calls_of, tmp_path):
    arguments = ("strong", "data", "my stories", "--max-update", "7")
    calls = calls_of(*arguments, SIZE="small", SEEDS="2")
    trainings = [parse_training(call) for call in calls[:2]]
    assert [args.seed for args in trainings] == [1, 2]
    assert {args.arch for args in trainings} == {"transtory_decoder"}
    assert {args.max_update for args in trainings} == {7}
    ensemble = ":".join(f"{args.save_dir}/checkpoint_best.pt" for args in trainings)
    assert [call[1] for call in calls[2:]] == ["tell", "score", "perplexity", "rank"]
    for call in (calls[2], *calls[4:]):
        assert ensemble in call
    assert calls_of(*arguments, SIZE="small", SEEDS="2") == []
    # one more seed is trained, and its ensemble tells again
    calls = calls_of(*arguments, SIZE="small", SEEDS="3")
    assert [call[1] for call in calls[1:]] == ["tell", "score", "perplexity", "rank"]
    assert "seed3" in calls[0][calls[0].index("--save-dir") + 1]
