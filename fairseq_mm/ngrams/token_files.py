"""Text files of tokens separated by spaces, such as ``text/train.txt`` of a data folder."""

import os
from collections.abc import Iterable, Iterator
from typing import Union

from fairseq_mm.data.prepared_files import check_prepared_file
from fairseq_mm.errors import UserError
from fairseq_mm.ngrams.ngram_model import END, START


def read_token_lines(paths: Iterable[Union[str, os.PathLike]]) -> Iterator[list[str]]:
    """Tokens of each line of several files, one after the other; blank lines are left out.

    Raises:
        UserError: if a file cannot be read, has no tokens, or has ``<s>`` or ``</s>`` among them.
    """
    for path in paths:
        check_prepared_file(path)
        has_tokens = False
        try:
            with open(path, encoding="utf-8-sig") as file:
                for number, line in enumerate(file, start=1):
                    tokens = line.split()
                    for mark in (START, END):
                        if mark in tokens:
                            raise UserError(f"{path}:{number}: must be words, but has {mark}.")
                    if tokens:
                        has_tokens = True
                        yield tokens
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
        if not has_tokens:
            raise UserError(f"{path}: must have lines of tokens, but has none.")
