"""Checks that generated texts and references belong to the same data folder and split.

Line numbers cannot show this, because every folder has the same numbers. But fairseq-generate also
prints the text of its data folder: as ``T-`` lines or, without targets, as ``S-`` lines.
"""

import html
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Callable, Optional

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.generated_output import GeneratedOutput, parse_generated

if TYPE_CHECKING:
    from fairseq_mm.data.binarised_split import SplitText

_SHOWN = 50  # characters of a text in a message

# tokens, line of the split -> readable text
Decode = Callable[[str, int], str]


def check_generated_for(
    path: str, output: Optional[GeneratedOutput], data: str, split: str
) -> Optional[str]:
    """Compare the ``T-`` or ``S-`` lines of fairseq-generate's output with a data folder.

    Args:
        path: Path of the output, for messages.
        output: Parsed output; None if the file is no output of fairseq-generate.
        data: Path of the data folder.
        split: Name of the split.

    Returns:
        Reason why the lines could not be compared; None if they have been compared, or if
        ``output`` is None.
    """
    if output is None:
        return None
    printed = output.targets or output.sources
    if not printed:
        return f"not compared with {data}: the file has no T- or S- lines"
    from fairseq_mm.data.binarised_split import find_split_text

    folder_text = find_split_text(data, split, is_source=not output.targets)
    if folder_text is None:
        side = "" if output.targets else "source "
        return f"not compared with {data}: it has no binarised {side}text of the split {split}"
    last = max(printed)
    if last >= len(folder_text):
        raise UserError(
            f"{path}: line {last} must be one of the {len(folder_text)} lines of "
            f"{folder_text.path} (counted from 0); it was generated from another split or data "
            "folder."
        )
    decoders = _decoders(output, folder_text)
    if not decoders:
        return (
            f"not compared with {folder_text.path}: --bpe or --tokenizer has changed the words of "
            f"the {_prefix(output)}- lines"
        )
    differing = [
        number
        for number, (_, text) in sorted(printed.items())
        # a killed run may end inside a line: the text of its last line may be missing
        if (text or number != output.cut_short)
        and not any(
            _is_beginning(text, decode(folder_text.tokens(number), number)) for decode in decoders
        )
    ]
    if differing:
        expected = decoders[-1](folder_text.tokens(differing[0]), differing[0])
        _refuse(path, output, differing, folder_text.path, expected)
    return None


def check_scores_for(
    path: str, num_tokens: Mapping[int, int], data: str, split: str
) -> Optional[int]:
    """Check that ``fairseq-generate --score-reference`` has scored a split of a data folder.

    Args:
        path: Path of the output.
        num_tokens: Dict from a line of the split to its number of scored tokens in the output.
        data: Path of the data folder.
        split: Name of the split.

    Returns:
        Number of lines of the split; None if the folder has no binarised text.
    """
    from fairseq_mm.data.binarised_split import find_split_text

    folder_text = find_split_text(data, split)
    if folder_text is None:
        return None
    with open(path, encoding="utf-8") as file:
        output = parse_generated(path, file.read())
    # None, not False, if the output has no log: then only the texts can tell
    if output.scores_references is False:
        raise UserError(
            f"{path}: its log says that the texts were generated; perplexity needs "
            "fairseq-generate --score-reference."
        )
    check_generated_for(path, output, data, split)
    longest = max(num_tokens.values())
    for number, count in sorted(num_tokens.items()):
        # sizes are in the index file: no text is decoded for this comparison
        size = int(folder_text.lines.sizes[number]) if number < len(folder_text) else count
        # a shorter text was cut at the run's maximum length, and is then as long as the longest
        if count > size or (count < size and count < longest):
            raise UserError(
                f"{path}: P-{number} has {count} scores, but line {number} (counted from 0) of "
                f"{folder_text.path} has {size} tokens, its end included: it was generated from "
                "another data folder or split."
            )
    return len(folder_text)


def check_generated_for_lines(
    path: str, output: Optional[GeneratedOutput], references_path: str, lines: Sequence[str]
) -> None:
    """Compare the ``T-`` lines of fairseq-generate's output with a text file of references.

    A ``T-`` line that equals no reference is accepted, because the references may be tokenized
    differently.

    Args:
        path: Path of the output, for messages.
        output: Parsed output; None if the file is no output of fairseq-generate.
        references_path: Path of a text file with one reference per line.
        lines: Lines of the text file.
    """
    if output is None:
        return
    # a text can occur in several lines: it is wrong only if its own line is not among them
    positions: dict[str, list[int]] = {}
    for position, line in enumerate(lines):
        positions.setdefault(extract_letters(line), []).append(position)
    differing = [
        number
        for number, (_, text) in sorted(output.targets.items())
        if number < len(lines)
        and not _is_beginning(text, lines[number])
        and number not in positions.get(extract_letters(text), [number])
    ]
    if differing:
        _refuse(path, output, differing, references_path, lines[differing[0]])


def _refuse(
    path: str, output: GeneratedOutput, differing: Sequence[int], folder_path: str, expected: str
) -> None:
    printed = output.targets or output.sources
    number = differing[0]
    file_line, text = printed[number]
    raise UserError(
        f"{path}:{file_line}: {_prefix(output)}-{number} is {text[:_SHOWN]!r}, but line {number} "
        f"(counted from 0) of {folder_path} is {expected[:_SHOWN]!r} ({len(differing)} of "
        f"{len(printed)} such lines differ): it was generated from another data folder or split."
    )


def _prefix(output: GeneratedOutput) -> str:
    return "T" if output.targets else "S"


def _decoders(output: GeneratedOutput, folder_text: "SplitText") -> list[Decode]:
    """Return the known functions that can have converted tokens to the text of the ``T-`` lines.

    They are called with (tokens, line of the split), and convert the output's ``H-`` lines to its
    ``D-`` lines. fairseq-generate converts ``T-`` lines in the same way.
    """
    # fairseq-generate decodes targets like hypotheses, but prints only hypotheses in both forms:
    # H- before decoding, D- after it
    numbers = [
        number
        for number in output.hypotheses.keys() & output.detokenised.keys()
        if number < len(folder_text)
    ]
    known: list[Decode] = [lambda tokens, line: tokens, folder_text.decode]
    decoders = []
    for decode in known:
        equal = sum(
            extract_letters(decode(output.hypotheses[number][0][1], number))
            == extract_letters(output.detokenised[number][0][1])
            for number in numbers
        )
        if 2 * equal >= len(numbers):
            decoders.append(decode)
    return decoders


def _is_beginning(text: str, line: str) -> bool:
    """Return True if ``line`` begins with ``text``; only letters and digits are compared.

    If ``text`` has no letters or digits, all characters are compared.
    """
    letters = extract_letters(text)
    if letters or not extract_letters(line):
        return extract_letters(line).startswith(letters)
    # every line begins with an empty string, so texts without letters are compared as they are
    return text.strip() != "" and line.lstrip().startswith(text.strip())


def extract_letters(text: str) -> str:
    """Return the letters and digits of a text in lower case; tokenizers do not change them."""
    # NFKC: sentencepiece normalizes text in this form; tokenizers of Moses escape & as &amp;
    normal = unicodedata.normalize("NFKC", html.unescape(text).casefold())
    return "".join(filter(str.isalnum, normal))
