"""Options of the search that would do nothing, or fail after an epoch, are refused at once."""

from argparse import Namespace

import pytest
from fairseq.dataclass.configs import GenerationConfig

from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import SEARCH_OPTIONS, check_search, read_generation_options
from fairseq_mm.generation.task import explain_failed_search
from fairseq_mm.tasks._generated_text import check_best_checkpoint_metric


def test_options_are_read():
    options = read_generation_options('{"beam": 3, "lenpen": 1, "unnormalized": true}', "--x")
    assert options == {"beam": 3, "lenpen": 1, "unnormalized": True}


def test_every_option_but_typical_p_is_one_of_fairseq_with_a_plain_type():
    fields = GenerationConfig.__dataclass_fields__
    of_fairseq = [option for option in SEARCH_OPTIONS if option != "typical_p"]
    assert {fields[option].type for option in of_fairseq} == {bool, int, float}
    # once fairseq has the option, ours must give way
    assert "typical_p" not in fields


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beam=3", "not JSON"),
        ("[3]", "must be a JSON object, but is list instead"),
        ('{"beem": 3}', "`beem` is no option of --eval-gen-args; did you mean `beam`"),
        ('{"score_reference": true}', "`score_reference` is no option of --eval-gen-args"),
        ('{"beam": "3"}', "beam` must be an integer, but is '3'"),
        ('{"beam": true}', "beam` must be an integer, but is True"),
        ('{"max_len_b": 30.5}', r"max_len_b` must be an integer, but is 30\.5"),
        ('{"lenpen": null}', "lenpen` must be a number, but is None"),
        ('{"sampling": 1}', "sampling` must be True or False, but is 1"),
    ],
)
def test_wrong_options_are_named(text, message):
    with pytest.raises(UserError, match=message):
        read_generation_options(text, "--eval-gen-args")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, r"^--beam must be 1 or more, but is 0\."),
        ({"temperature": 0.0}, r"^--temperature must be above 0 and finite, but is 0\.0\."),
        ({"temperature": float("nan")}, "^--temperature must be above 0 and finite, but is nan"),
        ({"lenpen": 400.0}, "^--lenpen must be from -10 to 10, but is 400"),
        ({"lenpen": float("nan")}, "^--lenpen must be from -10 to 10, but is nan"),
        ({"print_step": True}, "^--print-step: is of decoders that revise"),
        ({"retain_iter_history": True}, "^--retain-iter-history: is of decoders that revise"),
        ({"constraints": "ordered"}, "^--constraints: this task takes none"),
        ({"print_alignment": "hard"}, "^--print-alignment: the model aligns no words"),
        ({"match_source_len": True}, "^--match-source-len: the model reads no source text"),
        ({"sampling_topk": 5}, "^--sampling-topk needs --sampling"),
        ({"sampling_topp": 0.5}, "^--sampling-topp needs --sampling"),
        ({"sampling": True, "sampling_topp": 2.0}, "^--sampling-topp must be at most 1, but is 2"),
        ({"sampling": True, "diversity_rate": 0.5}, "^--sampling and --diversity-rate exclude"),
        ({"diverse_beam_groups": 2}, "^--diverse-beam-groups: give --diversity-rate or"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_search(Namespace(**options))
    check_search(Namespace(beam=1, temperature=0.1, print_step=False))
    text = Namespace(print_alignment="hard", match_source_len=True)
    check_search(text, has_source=True, aligns=True)


def test_lengths_that_exclude_each_other_are_named():
    generator = Namespace(min_len=1, max_len_a=0.0, max_len_b=0)
    error = AssertionError("min_len cannot be larger than max_len, please adjust these!")
    with pytest.raises(UserError, match=r"^--min-len 1 is more than --max-len-a 0, --max-len-b 0"):
        explain_failed_search(error, generator, [], "summary")
    explain_failed_search(AssertionError("another"), generator, [], "summary")


CAPTIONS = {"rouge_l": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("cider", True, False), "validation logs loss; metrics of generated text need --eval-gen"),
        (("rouge2", True, True), "validation logs bleu1, .* cider, rouge_l, loss"),
        (("cider", False, True), "must be given with --maximize-best-checkpoint-metric"),
        (("loss", True, True), "must be given without --maximize-best-checkpoint-metric"),
        (("rsum", True, True), "validation logs bleu1"),
        (("rsum", False, False, "ranks"), "must be given with --maximize-best-checkpoint-metric"),
        (("t2i_medr", True, False, "ranks"), "must be given without --maximize-best-checkpoint"),
    ],
)
def test_metric_that_would_keep_a_wrong_checkpoint_is_refused(options, message):
    metric, grows, generates, *ranks = options
    cfg = Namespace(
        best_checkpoint_metric=metric, maximize_best_checkpoint_metric=grows, eval_gen=generates
    )
    with pytest.raises(UserError, match=f"^--best-checkpoint-metric {metric}: {message}"):
        check_best_checkpoint_metric(cfg, CAPTIONS, is_ranking=bool(ranks))
    for metric, grows in (("loss", False), ("bleu1", True), ("rouge_l", True), ("reward", True)):
        cfg = Namespace(
            best_checkpoint_metric=metric, maximize_best_checkpoint_metric=grows, eval_gen=True
        )
        check_best_checkpoint_metric(cfg, CAPTIONS)
