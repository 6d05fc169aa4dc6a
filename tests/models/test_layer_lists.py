"""Layer lists: exactly lists of pairs, sums and repeats of them are read; nothing is evaluated."""

import pytest

from fairseq_mm.errors import UserError
from fairseq_mm.models.conv_story import parse_flag, parse_flags, parse_layers


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("[(512, 4)]", [(512, 4)]),
        ("[(512, 4)] * 4 + [(768, 4)] * 2", [(512, 4)] * 4 + [(768, 4)] * 2),
        ("[(512,4)]*2+[(768,4)]*0+[(9,1)]", [(512, 4)] * 2 + [(9, 1)]),
        ("2 * [(5, 1)]", [(5, 1)] * 2),
        ("[(5, 1), (6, 2),]", [(5, 1), (6, 2)]),
        ("([(5, 1)] + [(6, 2)]) * 2", [(5, 1), (6, 2)] * 2),
        ("  [(5, 1)]\n", [(5, 1)]),
        ("[(5, 1)] * 1000", [(5, 1)] * 1000),
    ],
)
def test_layers_are_read_as_python_reads_them(text, layers):
    assert parse_layers(text, "--decoder-layers") == layers


@pytest.mark.parametrize(
    "text",
    [
        # no list
        *("", "   ", "512", "(512, 4)", "512, 4", "None", "True", "'[(512, 4)]'", "[", "[(5, 1)]]"),
        # no layers in it
        *("[]", "[] * 4", "[(5, 1)] * 0", "[(5, 1)] * -1", "[[(5, 1)]]", "[[5, 1]]", "[5, 1]"),
        *("[(5,)]", "[(5, 1, 2)]", "[()]", "[(5, 1), ()]", "[(5, (1, 2))]", "[(5, [1])]"),
        # no numbers in them
        *("[(5.0, 1)]", "[(5, 1e0)]", "[(True, 1)]", "[('5', 1)]", "[(None, 1)]", "[(5j, 1)]"),
        *("[(0, 1)]", "[(5, 0)]", "[(-5, 1)]", "[(5, -1)]"),
        *("[(1048576, 1)]", "[(5, 99999999999999999999)]"),
        # other expressions
        *("list([(5, 1)])", "[(5, 1)].copy()", "__import__('os').getcwd()", "[(5, 1)][:]"),
        *("[(5, 1) for _ in range(2)]", "[(x, 1)]", "[*[(5, 1)]]", "[(5, 1)] if 1 else []"),
        *("[(5, 1)] * 2.0", "[(5, 1)] * '2'", "[(5, 1)] * [2]", "[(5, 1)] / 2"),
        *("[(5, 1)] + (6, 2)", "[(5, 1)] + 2", "[(5, 1)] - [(6, 2)]", "x := [(5, 1)]"),
        *("lambda: [(5, 1)]", "[(5, 1)]; [(6, 2)]", "a = [(5, 1)]", "f'{1}'", "[(5, 1)] # \0"),
        # too many
        *("[(5, 1)] * 10 ** 9", "[(5, 1)] * 1000000000000", "[] * 10 ** 99"),
        *("[] * 99999999999999999999", "[(5, 1)] * 99999999999999999999", "9" * 9999),
        *("[" * 500 + "]" * 500, "[(5, 1)]" + " + [(5, 1)]" * 3000, "(" * 5000, "-" * 5000 + "1"),
    ],
    ids=lambda text: text[:30].replace("\0", "NUL"),
)
def test_everything_else_is_refused_in_one_line(text):
    with pytest.raises(UserError) as caught:
        parse_layers(text, "--decoder-layers")
    message = str(caught.value)
    assert message.startswith("--decoder-layers must be a list of (channels, width), such as '[(5")
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("True", [True] * 3),
        ("False", [False] * 3),
        ("[True] + [False] * 2", [True, False, False]),
        ("[True, False, True]", [True, False, True]),
    ],
)
def test_flags_are_of_all_layers_or_one_each(text, flags):
    assert parse_flags(text, "--self-attention", 3) == flags


@pytest.mark.parametrize("text", ["", "1", "[1, 0, 1]", "[True, 0, 1]", "(True,)*3", "yes", "None"])
def test_flags_that_are_none_are_refused(text):
    with pytest.raises(UserError, match=r"--self-attention must be True, False or a list of them"):
        parse_flags(text, "--self-attention", 3)


def test_flags_must_be_one_a_layer():
    message = r"--self-attention must be a list of one entry for each of the 3 layers, but is '\[Tr"
    with pytest.raises(UserError, match=message):
        parse_flags("[True] * 4", "--self-attention", 3)


def test_a_flag_is_true_or_false():
    assert parse_flag("True", "--pretrained") is True
    assert parse_flag("False", "--pretrained") is False
    for text in ("", "true", "1", "[True]", "not True"):
        with pytest.raises(UserError, match="--pretrained must be True or False, but is "):
            parse_flag(text, "--pretrained")
