"""Converts T5's vocabulary to a dictionary of fairseq.

The rows of T5's embedding are padding, ``</s>``, ``<unk>``, the sentencepiece tokens,
``<extra_id_99>`` to ``<extra_id_0>``, and unused rows that fill the vocabulary up to a multiple of
128. A dictionary of fairseq begins with ``<s>``, padding, ``</s>``, ``<unk>``. Symbol i of the
dictionary is therefore row i - 1 of T5, and ``<s>``, which T5 lacks, takes T5's last row. A new row
for ``<s>`` would get some probability in every softmax; without a new row, probabilities do not
change. If the last row is ``<extra_id_0>``, texts can no longer contain this token. If the last row
is an ordinary token, there is no row for ``<s>``, and the vocabulary is refused.
"""

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mm.errors import UserError

PAD, END, UNKNOWN = 0, 1, 2
_MAX_EXTRA_IDS = 100  # the sentinels of T5's pretraining; later rows only fill the vocabulary


def to_fairseq_rows(weight: Tensor) -> Tensor:
    """Reorder the rows [V, ...] of T5's embedding or output layer for fairseq's dictionary."""
    return torch.roll(weight, 1, dims=0)


def t5_dictionary(pieces: bytes, num_rows: int, path: str, notes: list[str]) -> Dictionary:
    """Build fairseq's dictionary for a T5.

    Tokens keep their names, so that ``--bpe sentencepiece`` finds them. A token whose name contains
    white space or is already in the dictionary is renamed to ``<row_N>`` with the number N of its
    row in the embedding; unused rows have such names, too.

    Args:
        pieces: Content of the sentencepiece model.
        num_rows: Number of rows of the embedding.
        path: Path of the sentencepiece model, for messages.
        notes: List to which a sentence is appended if ``<s>`` takes the row of ``<extra_id_0>``.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    special = (processor.pad_id(), processor.eos_id(), processor.unk_id())
    if special != (PAD, END, UNKNOWN):
        raise UserError(
            f"{path}: padding, </s> and <unk> must be pieces {PAD}, {END} and {UNKNOWN}, as T5's "
            f"are, but are {special[0]}, {special[1]} and {special[2]}."
        )
    num_pieces = processor.get_piece_size()
    if num_rows <= num_pieces:
        raise UserError(
            f"{path}: has {num_pieces} pieces, but the embedding only {num_rows} rows: one more "
            "than pieces is needed, for fairseq's <s>. With transformers, "
            f"model.resize_token_embeddings({num_pieces + 1}) makes it."
        )
    num_extra = min(_MAX_EXTRA_IDS, num_rows - num_pieces)
    if num_pieces + num_extra == num_rows:
        notes.append(
            f"The vocabulary has no unused row: the last one, {num_rows - 1} (<extra_id_0>), is "
            "fairseq's <s>, and no text can name it any more."
        )
    names = [processor.id_to_piece(row) for row in range(num_pieces)]
    # T5Tokenizer numbers these rows downwards: <extra_id_0> is the last one
    names += [f"<extra_id_{number}>" for number in reversed(range(num_extra))]
    dictionary = Dictionary()
    # fairseq's four special symbols are there already; the last row is fairseq's <s>
    for row in range(len(special), num_rows - 1):
        name = names[row] if row < len(names) else ""
        # fairseq splits lines at white space, and add_symbol counts a second name as the first
        if name.split() != [name] or name in dictionary:
            name = f"<row_{row}>"
        if name in dictionary:
            raise UserError(f"{path}: has a piece {name}, which is the name of another row here.")
        dictionary.add_symbol(name)
    return dictionary
