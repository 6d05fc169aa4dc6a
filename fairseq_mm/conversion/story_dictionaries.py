"""Dictionaries of a trained story model, checked against its tables of words."""

import os

from fairseq.data import Dictionary

from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import symbols_of


def load_story_dictionaries(
    source_file: str, target_file: str, types: tuple[int, int], checkpoint: str
) -> tuple[Dictionary, Dictionary]:
    """Load the dictionaries of a story model.

    Args:
        source_file: fairseq's dictionary of the prompts.
        target_file: fairseq's dictionary of the stories.
        types: Sizes of both in the model's training, with special symbols.
        checkpoint: Path of the model, for messages.

    Raises:
        UserError: if a dictionary cannot be read, or has another size.
    """
    files = (source_file, target_file)
    source, target = (_load_dictionary(file) for file in files)
    sizes = (len(source), len(target))
    if sizes != types and sizes == types[::-1]:
        raise UserError(
            f"{source_file} has the size of the checkpoint's target dictionary, and {target_file} "
            "that of its source dictionary: they are exchanged."
        )
    for file, dictionary, expected in zip(files, (source, target), types):
        if len(dictionary) != expected:
            cause = _cause_of_size(symbols_of(dictionary), expected - dictionary.nspecial)
            raise UserError(
                f"{file}: has {len(dictionary)} words (special symbols included), but {checkpoint} "
                f"was trained with {expected}: {cause}."
            )
    return source, target


def _load_dictionary(file: str) -> Dictionary:
    if not os.path.isfile(file):
        raise UserError(f"{file}: no such dictionary.")
    return load_dictionary(file)


def _cause_of_size(words: list[str], expected: int) -> str:
    """Explain why a dictionary has the wrong number of words."""
    is_filler = [word.startswith("madeupword") for word in words]
    if any(is_filler) and len(words) - sum(is_filler) == expected:
        return (
            f"it was padded with {sum(is_filler)} madeupword...: prepare it with --padding-factor "
            "1 (the published prompts have 19,025 types, padded 19,032)"
        )
    rows = expected + Dictionary().nspecial
    if not any(is_filler) and rows % 8 == 0 and 0 < expected - len(words) < 8:
        return (
            "the checkpoint's was padded to a multiple of 8 with madeupword...: prepare it "
            "without --padding-factor 1, or take the dictionary that it was trained with"
        )
    if len(words) > expected:
        return (
            "it was prepared from whole stories instead of their first 1000 words (the published "
            "stories have 104,960 types, whole ones 112,832), with a lower --thresholdsrc or "
            "--thresholdtgt, or from other text"
        )
    return "it was prepared with a higher --thresholdsrc or --thresholdtgt, or from other text"
