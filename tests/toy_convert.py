"""`fairseq-mm convert` in this process."""

from fairseq_mm.cli.main import main


def convert(*arguments):
    return main(["convert", *map(str, arguments)])


def message(capsys, *arguments):
    """The one line that a refused command prints."""
    assert convert(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("fairseq-mm convert: ")
    assert error.count("\n") == 1
    return error
