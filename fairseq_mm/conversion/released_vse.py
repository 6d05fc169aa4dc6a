"""Reads released models of Kiros et al. 2014, and renames their weights for ``--arch vse_gru`` or
``vse_bow``. Released code: https://github.com/ryankiros/visual-semantic-embedding

Readers of other released models (VSE++, GLAC Net, Transtory-XL) use this module to write
checkpoints.

``X.npz`` has the weights, ``X.npz.pkl`` the options, ``X.npz.dictionary.pkl`` the words and their
numbers, from 2 on. The number of a word is its row in the word embedding. Number 0 is the end
token, which is read after the words of a sentence; number 1 is the unknown word. Words whose number
is ``n_words`` (an option) or higher count as unknown, too; in the released training, there are two
such words.

With the word vector x and the previous state h, the GRU computes the next state h' by

    r, u = sigmoid(x W + b + h U),   g = tanh(x Wx + bx + r * (h Ux)),   h' = u * h + (1 - u) * g

The first half of the columns of W, b and U is for the reset gate r, the second half for the update
gate u. This is PyTorch's GRU without the biases of its recurrent products.
"""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_plain_pickle, repaired_text
from fairseq_mm.conversion.new_checkpoint import (
    checkpoint_state,
    complete_options,
    config_defaults,
    format_flags,
)
from fairseq_mm.conversion.output_folder import output_folder
from fairseq_mm.data.caption_text import RESERVED_TOKENS
from fairseq_mm.data.numpy_files import load_numpy, read_member
from fairseq_mm.data.output_file import library_errors
from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor
from fairseq_mm.extract.weights import check_tensors
from fairseq_mm.models._provenance import STATE_KEY, Provenance

# files of a converted model; the last is a state dict for fairseq-mm extract --weights
CHECKPOINT, DICTIONARY, NETWORK = "checkpoint_best.pt", "dict.txt", "cnn.pt"
_IMAGE = ("ff_image_W", "ff_image_b")
_GRU = tuple(f"encoder_{name}" for name in ("W", "b", "U", "Wx", "Ux", "bx"))
_FIRST_WORD = 2
DEFAULT_MARGIN = 0.2
_END, _UNKNOWN = 0, 1
_NAMED = 3  # words in a message, which would otherwise list thousands


@dataclass
class ReleasedModel:
    """Model of an author's released code, whose weights have been renamed for this package."""

    path: str
    arch: str  # ``--arch``, with the ``options`` of the model and of the ``criterion``
    options: dict[str, Any]
    criterion: dict[str, Any]
    # words of the dictionary in the order of the embedding, without special symbols
    words: list[str]
    weights: dict[str, Tensor]
    tensors: int  # number of tensors in the released file
    # options of ``fairseq-mm prepare captions`` that split sentences as the released code does;
    # empty if there are none
    tokenizer: str
    # omissions and differences of the conversion, one sentence each
    notes: list[str] = field(default_factory=list)
    # torchvision's name of the image network in the file; empty without a network
    cnn_type: str = ""
    cnn: dict[str, Tensor] = field(default_factory=dict)
    task: str = "multimodal_captioning"
    criterion_name: str = "pairwise_ranking"
    # name of the weight that multiplies image features; its number of columns is the feature
    # dimension
    image_weight: str = "image_proj.weight"
    # number of regions per image; None if the model accepts any number
    rows_per_image: Optional[int] = None


def read_released_vse(path: str) -> ReleasedModel:
    """Read a model of the released code of Kiros et al. 2014, and rename its weights.

    The folder must also have ``X.npz.pkl`` and ``X.npz.dictionary.pkl``.
    """
    options = read_plain_pickle(f"{path}.pkl")
    kind = options["encoder"]
    names = ("Wemb", *_IMAGE, *{"gru": _GRU, "bow": ()}[kind])
    loaded: Any = load_numpy(Path(path))
    with loaded as archive:
        arrays = {
            x: read_member(archive, Path(path), x).astype(np.float32)
            for x in {*archive.files, *names}
        }
    (V, E), K = arrays["Wemb"].shape, len(arrays["ff_image_b"])
    notes: list[str] = []
    by_number = _read_dictionary(f"{path}.dictionary.pkl", V, notes)
    rows, words = known_words(by_number, notes)
    vectors = torch.from_numpy(arrays["Wemb"])
    weights = {
        "sentence_encoder.embedding.weight": word_table(
            vectors[rows], end=vectors[_END], unknown=vectors[_UNKNOWN]
        ),
        "image_proj.weight": torch.from_numpy(arrays["ff_image_W"]).t(),
        "image_proj.bias": torch.from_numpy(arrays["ff_image_b"]),
    }
    if kind == "gru":
        weights.update(_convert_gru(arrays))
    # other arrays keep their names, so that the check lists them
    weights.update({x: torch.from_numpy(y) for x, y in arrays.items() if x not in names})
    return ReleasedModel(
        path,
        f"vse_{kind}",
        {
            "word_dim": E,
            "embed_dim": K,
            "sentence_signs": "end",
            # the released training scales image vectors to unit length only when it evaluates
            "image_norm": "evaluation",
            "feature_scaling": "unit",
        },
        {"margin": float(options.get("margin", DEFAULT_MARGIN)), "same_image_negatives": True},
        words,
        weights,
        len(arrays),
        "--tokenizer whitespace --keep-case --keep-punctuation",
        notes,
    )


def known_words(by_number: Mapping[int, str], notes: list[str]) -> tuple[list[int], list[str]]:
    """Select the words that fairseq's dictionary can contain. Return their embedding rows in
    ascending order, and the words; append a sentence about other words to ``notes``."""
    rows, words, impossible = [], [], []
    for number, word in sorted(by_number.items()):
        # a line of dict.txt cannot hold white space, and these words have rows of their own
        if word.split() != [word] or word in (*RESERVED_TOKENS, "<unk>"):
            impossible.append(word)
        else:
            rows.append(number)
            words.append(word)
    if impossible:
        notes.append(
            "Words with white space in them, and fairseq's own signs, are left out, since no text "
            f"has them as words: {format_words(impossible)}."
        )
    return rows, words


def word_table(
    words: Tensor, *, end: Tensor, unknown: Tensor, begin: Optional[Tensor] = None
) -> Tensor:
    """Build the word embedding of a converted model: V words, E dimensions.

    Args:
        words: [V, E]
        end: [E], read after the words.
        unknown: [E]
        begin: [E], read before the words; None if the model reads no start token.

    Returns:
        [4 + V, E] in the order of fairseq's dictionary: start token, padding, end token, unknown,
        words. Vectors that are not read are zero.
    """
    zeros = torch.zeros_like(end)  # for padding, and for a start token that is never read
    special = [zeros if begin is None else begin, zeros, end, unknown]
    return torch.cat([torch.stack(special), words])


def format_words(words: Sequence[str]) -> str:
    """Format the first three words of a list and the number of further words, for a message."""
    shown = ", ".join(map(repr, words[:_NAMED]))
    return shown + (f" and {len(words) - _NAMED} more" if len(words) > _NAMED else "")


def _read_dictionary(path: str, rows: int, notes: list[str]) -> dict[int, str]:
    """Read the word of each embedding row except 0 and 1, which belong to special tokens."""
    content = read_plain_pickle(path)
    by_number = {int(number): repaired_text(word) for word, number in content.items()}
    unknown = [word for number, word in sorted(by_number.items()) if number >= rows]
    known = {number: word for number, word in by_number.items() if _FIRST_WORD <= number < rows}
    # by_number is shorter where two words have one number; the last sum lacks numbers below 2
    is_whole = len(by_number) == len(content) == len(known) + len(unknown)
    if not is_whole or len(known) != rows - _FIRST_WORD:
        raise UserError(
            f"{path}: must have a word for each number from {_FIRST_WORD} to {rows - 1}, the rows "
            f"of Wemb, but has {len(content)} words with {len(known)} such numbers."
        )
    if unknown:
        notes.append(
            f"Words whose number is n_words or more are unknown, as in the released code: "
            f"{format_words(unknown)}."
        )
    return known


def _convert_gru(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert the weights of the GRU to PyTorch's layout and this package's names."""
    W, b, U, Wx, Ux, bx = (torch.from_numpy(arrays[name]) for name in _GRU)
    prefix = "sentence_encoder.recurrence."
    return {
        # the released code computes x W, PyTorch x W^T
        f"{prefix}weight_ih_l0": torch.cat([W, Wx], dim=1).t(),
        f"{prefix}weight_hh_l0": torch.cat([U, Ux], dim=1).t(),
        f"{prefix}bias_ih_l0": torch.cat([b, bx]),
        f"{prefix}bias_hh_l0": torch.zeros(len(b) + len(bx)),
    }


def convert_released(released: ReleasedModel, output: str) -> tuple[int, int]:
    """Write a checkpoint of a released model to the folder ``output``; return the number of its
    weights, and the dimension of the image features that it reads."""
    # torch.save would write the whole memory behind each slice and keep transposed layouts
    weights = {name: x.contiguous() for name, x in released.weights.items()}
    feature_dim = weights[released.image_weight].size(1)
    check_tensors(weights, build_untrained(released, feature_dim), released.path)
    flags = format_flags({**released.options, **released.criterion})
    arguments = [".", "--task", released.task, "--arch", released.arch]
    arguments += ["--criterion", released.criterion_name, *flags]
    with output_folder(output) as partial:
        identity: dict[str, Any] = {}
        if released.cnn_type:
            path = os.path.join(partial, NETWORK)
            with library_errors():
                torch.save(released.cnn, path)
            # checks the weights and computes their digest, as extract will do
            identity = dict(build_extractor(released.cnn_type, weights=path).identity)
        provenance = Provenance(
            released.words, identity, feature_dim, rows_per_image=released.rows_per_image
        )
        state = checkpoint_state(arguments, {**weights, STATE_KEY: provenance.get_extra_state()})
        with library_errors():
            torch.save(state, os.path.join(partial, CHECKPOINT))
        with open(os.path.join(partial, DICTIONARY), "w", encoding="utf-8", newline="\n") as file:
            # the format wants counts, which the released files lack; only the order matters
            file.writelines(f"{word} 1\n" for word in released.words)
    return sum(x.numel() for x in weights.values()), feature_dim


def build_untrained(released: ReleasedModel, feature_dim: int) -> dict[str, Tensor]:
    """Return the state dict of an untrained model of this package with the same options."""
    model = ARCH_MODEL_REGISTRY[released.arch]
    # fairseq's registry sets __dataclass on the class of a model
    options = complete_options(released.arch, released.options)
    cfg = Namespace(**{**config_defaults(model.__dataclass), **options})
    dictionary = Dictionary()
    for word in released.words:
        dictionary.add_symbol(word)
    task = Namespace(
        target_dictionary=dictionary,
        separator_index=dictionary.index(SEPARATOR),
        feature_dim=feature_dim,
        feature_attributes={},
        rows_per_image=released.rows_per_image,
    )
    state = model.build_model(cfg, task).state_dict()
    return {name: x for name, x in state.items() if not name.endswith("_extra_state")}
