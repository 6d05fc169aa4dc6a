"""Options of the search that would do nothing, or fail after an epoch, are refused at once."""

from argparse import Namespace

import pytest
from fairseq.dataclass.configs import GenerationConfig

from fairseq_mm.errors import UserError
from fairseq_mm.tasks._generation_options import (
    SEARCH_OPTIONS,
    check_search,
    explain_failed_search,
    read_generation_options,
)


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
        ("beam=3", r"not JSON \(.*\)\. Give a JSON object such as"),
        ("[3]", "must be a JSON object, but is list instead"),
        ('{"beem": 3}', "'beem' is no option of fairseq's search; did you mean 'beam'"),
        ('{"score_reference": true}', "'score_reference' is no option of fairseq's search"),
        ('{"beam": "3"}', 'beam must be a whole number, but is "3"'),
        ('{"beam": true}', "beam must be a whole number, but is true"),
        ('{"max_len_b": 30.5}', r"max_len_b must be a whole number, but is 30\.5"),
        ('{"lenpen": null}', "lenpen must be a number, but is null"),
        ('{"sampling": 1}', "sampling must be true or false, but is 1"),
        ('{"beam": 0}', "beam must be 1 or more, but is 0"),
    ],
)
def test_wrong_options_are_named(text, message):
    with pytest.raises(UserError, match=rf"^--eval-gen-args.*{message}"):
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
    ],
)
def test_a_search_that_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        check_search(Namespace(**options))
    check_search(Namespace(beam=1, temperature=0.1, print_step=False))


def test_lengths_that_exclude_each_other_are_named():
    generator = Namespace(min_len=1, max_len_a=0.0, max_len_b=0)
    error = AssertionError("min_len cannot be larger than max_len, please adjust these!")
    with pytest.raises(UserError, match=r"^--min-len 1 is more than --max-len-a 0, --max-len-b 0"):
        explain_failed_search(error, generator, [], "summary")
    explain_failed_search(AssertionError("another"), generator, [], "summary")
