"""The command finds its subcommands, and says what it is."""

import importlib

import pytest

from fairseq_mm import __version__
from fairseq_mm.cli.main import SUBCOMMANDS, main


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fairseq-mm {__version__}\n"


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_a_module_that_explains_itself(name):
    module = importlib.import_module(f"fairseq_mm.cli.{name.replace('-', '_')}")
    assert module.__doc__
    assert callable(module.run)
    assert callable(module.add_arguments)


def test_unknown_subcommand_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["paint"])
    assert ended.value.code == 2
    assert "paint" in capsys.readouterr().err
