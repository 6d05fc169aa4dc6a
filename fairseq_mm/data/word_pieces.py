"""Words of subwords, and what they have of their pieces' weights."""

from collections.abc import Sequence

import numpy as np

from fairseq_mm.data.subwords import Subwords


def join_pieces(tokens: Sequence[str], subwords: Subwords) -> tuple[list[str], np.ndarray]:
    """Words of pieces.

    Args:
        tokens: N.
        subwords: that they are of.

    Returns:
        words: W; ``</s>`` and what else is no text are words of their own.
        owners: ``[N]`` index of each token's word.
    """
    if subwords.kind == "none":
        return list(tokens), np.arange(len(tokens))
    words: list[str] = []
    owners = []
    pieces: list[str] = []  # of the word so far
    for token in tokens:
        if token.startswith("<") and token.endswith(">"):
            words.append(token)
            pieces = []
        else:
            # a piece that begins a word puts a space before itself, or is one
            own = subwords.decode(token)
            parts = subwords.decode(" ".join([*pieces, token])).split()
            if pieces and len(parts) < 2 and own:
                words[-1] = "".join(parts)
                pieces.append(token)
            else:
                words.append(own)  # "" of a piece that is a space alone
                pieces = [token]
        owners.append(len(words) - 1)
    return words, np.array(owners)


def by_word(weights: np.ndarray, owners: np.ndarray, *, sums: bool = False) -> np.ndarray:
    """
    Args:
        weights: ``[..., N, M]`` of tokens.
        owners: see :func:`join_pieces`.
        sums: a word has the sum of its pieces' weights, not their mean.

    Returns:
        ``[..., W, M]``.
    """
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    total = np.add.reduceat(weights, starts, axis=-2)
    return total if sums else total / np.bincount(owners)[:, None]
