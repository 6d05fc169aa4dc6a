"""The line of data that each help text shows is data that the command reads."""

import json
import re

import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.cli.prepare_options import KINDS
from fairseq_mm.prepare.jsonl import read_jsonl


@pytest.mark.parametrize("name", KINDS)
def test_the_line_of_data_in_the_help_is_read(name, tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["prepare", name, "--help"])
    (shown,) = re.findall(r"\{\".*?\}", capsys.readouterr().out, re.DOTALL)
    path = tmp_path / "data.jsonl"
    path.write_text(" ".join(shown.split()) + "\n")
    (items,) = read_jsonl(KINDS[name].records, {None: [path]}).splits.values()
    (item,) = items
    assert set(item.texts) <= set(json.loads(path.read_text()))


def test_what_a_release_fixes_is_no_option(capsys):
    shown = []
    for name in ("writingprompts", "prompts"):
        with pytest.raises(SystemExit, match="0"):
            main(["prepare", name, "--help"])
        shown.append("--tokenizer " in capsys.readouterr().out)
    assert shown == [False, True]
