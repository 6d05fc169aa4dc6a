"""Collates examples into one batch; docs/data_formats.md lists a batch's keys and shapes."""

from itertools import accumulate
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor


def pad_tokens(rows: list[Tensor], pad: int, *, left: bool = False) -> Tensor:
    """Pad B token sequences to the length T of the longest sequence, and stack them.

    Args:
        rows: Token indices of each sequence, ``[t]``.
        pad: Padding index.
        left: Pad on the left instead of the right.

    Returns:
        ``[B, T]``.
    """
    lengths = torch.tensor([row.numel() for row in rows]).unsqueeze(1)
    T = int(lengths.max())
    indices = torch.arange(T)
    is_token = indices >= T - lengths if left else indices < lengths  # [B, T]
    # one scatter for all rows: copying row by row takes a call into torch for each
    batch = rows[0].new_full(is_token.shape, pad)
    return batch.masked_scatter_(is_token.to(batch.device), torch.cat(rows))


def pad_features(
    rows: list[np.ndarray], missing: Optional[list[Optional[np.ndarray]]] = None
) -> tuple[Tensor, Tensor]:
    """Pad the features of B examples to the largest number of feature vectors N, and stack them.

    Args:
        rows: Features of each example, ``[n, D]``.
        missing: For each example, an ``[n]`` bool array that is True for vectors of missing images,
            which become padding; None if the example has all images. By default, all examples have
            all images.

    Returns:
        features: ``[B, N, D]``, zero at padding.
        padding_mask: ``[B, N]`` bool, True at padding.
    """
    counts = np.array([len(row) for row in rows])
    N = int(counts.max())
    padding = np.arange(N) >= counts[:, None]
    for line, mask in zip(padding, missing or []):
        if mask is not None:
            line[: len(mask)] |= mask
    padding_mask = torch.from_numpy(padding)
    # the common case, for which filling with zeros first would write the memory twice
    if (counts == N).all():
        return torch.from_numpy(np.stack(rows)), padding_mask
    features = np.zeros((len(rows), N, rows[0].shape[1]), dtype=rows[0].dtype)
    for row, out in zip(rows, features):
        out[: len(row)] = row
    return torch.from_numpy(features), padding_mask


def collate(
    examples: list[dict[str, Any]], *, pad: int, start: int, source_pad: Optional[int] = None
) -> dict[str, Any]:
    """Collate examples to a batch.

    Args:
        examples: Examples of :class:`.MultimodalDataset`. Required are ``id``, ``features``
            ``[N, D]`` or None, ``target`` ``[tokens]`` (None when generating without references)
            and ``is_first`` (False if an earlier line of the split has the same images or video).
            Optional are ``missing`` ``[N]`` bool (True for features of a missing image), ``source``
            ``[tokens]`` (text input) and ``item`` (number of its images or video).
        pad: Padding index of the target.
        start: Index of the first token of the decoder's input.
        source_pad: Padding index of the source text, which is padded on the left as in fairseq;
            None without a source text.

    Returns:
        The batch. Examples with a source text are sorted, the longest source first. Without
        examples the batch is ``{}``, which fairseq's trainer replaces by a dummy batch.
    """
    if not examples:
        return {}
    if examples[0].get("source") is not None:
        # pack_padded_sequence of fairseq's recurrent encoders wants descending lengths
        examples = sorted(examples, key=lambda example: -len(example["source"]))
    net_input: dict[str, Tensor] = {}
    if examples[0]["features"] is not None:
        rows = [example["features"] for example in examples]
        missing = [example.get("missing") for example in examples]
        net_input["features"], net_input["padding_mask"] = pad_features(rows, missing)
    if examples[0].get("source") is not None:
        if source_pad is None:
            raise ValueError("`source_pad` must be given for examples with `source`, but is None.")
        sources = [example["source"] for example in examples]
        net_input["src_tokens"] = pad_tokens(sources, source_pad, left=True)
        net_input["src_lengths"] = torch.tensor([source.numel() for source in sources])
    batch = {
        "id": torch.tensor([example["id"] for example in examples]),
        "nsentences": len(examples),
        # models without a text loss are averaged over examples; replaced below if there are targets
        "ntokens": len(examples),
        "is_first": torch.tensor([example["is_first"] for example in examples]),
        "net_input": net_input,
        "target": None,
    }
    if "item" in examples[0]:
        batch["item"] = torch.tensor([example["item"] for example in examples])
    if examples[0]["target"] is not None:
        targets = [example["target"] for example in examples]
        lengths = [target.numel() for target in targets]
        # the decoder reads `start` and the target without its last token; the last token of a row
        # rolls to the place of the next row's first, where the start token goes
        shifted = torch.cat(targets).roll(1)
        shifted[[0, *accumulate(lengths[:-1])]] = start
        net_input["prev_output_tokens"] = pad_tokens(list(shifted.split(lengths)), pad)
        batch["target"] = pad_tokens(targets, pad)
        batch["ntokens"] = sum(lengths)
    return batch
