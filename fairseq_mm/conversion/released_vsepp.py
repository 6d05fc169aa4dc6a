"""Reads checkpoints of VSE++, Faghri et al. 2018 (https://github.com/fartashf/vsepp), and renames
their weights for ``--arch vse_gru``.

The checkpoint has the weights of the image encoder and of the sentence encoder under the key
``model``, and the options under ``opt``. The vocabulary is another file, an object of the released
vocabulary class, with ``<pad>``, ``<start>``, ``<end>`` and ``<unk>`` among its words. A sentence
is read with ``<start>`` before its words and ``<end>`` after them. A model that reads images
contains the image network and scales this network's features to length 1. A model that reads stored
features (``..._precomp``) does not scale the features.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any, Optional

from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import read_plain_pickle, repaired_text
from fairseq_mm.conversion.released_vse import (
    ReleasedModel,
    known_words,
    read_margin,
    word_table,
)
from fairseq_mm.errors import UserError

_RECURRENCE = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
_TEXT = ("embed.weight", *(f"rnn.{name}" for name in _RECURRENCE))
_IMAGE = ("fc.weight", "fc.bias")
_NETWORK = "cnn."
_PAD, _BEGIN, _END, _UNKNOWN = _SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
# A pickle names the module of a class: the script that made the vocabulary is ``__main__`` if it
# was run, and has its own name if it was imported.
_STAND_INS = [(module, "Vocabulary") for module in ("vocab", "build_vocab", "__main__")]
# option -> its only value that our model has; also the meaning of a file without the option
_FIXED = {"use_abs": False, "measure": "cosine", "num_layers": 1}
# torchvision's VGG began its classifier with a dropout until 2017, which moved the numbers by one
_OLD_CLASSIFIER = {"classifier.1.": "classifier.0.", "classifier.4.": "classifier.3."}


def read_released_vsepp(
    path: str, state: Mapping[str, Any], vocabulary: Optional[str]
) -> ReleasedModel:
    """Convert the content of a checkpoint of VSE++ to a model of this package.

    ``path`` is for messages; ``vocabulary`` is None if the user has not given it.
    """
    options = _read_options(state["opt"], path)
    # the counters of batch normalisation are integers and stay so
    image, text = (
        {name: x.float() if x.is_floating_point() else x for name, x in part.items()}
        for part in state["model"]
    )
    network = {name: x for name, x in image.items() if name.startswith(_NETWORK)}
    unexpected = {*image, *text} - {*network, *_IMAGE, *_TEXT}
    if unexpected:
        raise UserError(f"{path}: has no place for {', '.join(sorted(unexpected))}.")
    (V, E), K = text["embed.weight"].shape, len(image["fc.weight"])
    if vocabulary is None:
        raise UserError(
            f"{path}: --vocabulary FILE is needed, the words of the model (VSE++'s "
            f"{options.get('data_name', '...')}_vocab.pkl)."
        )
    by_number, special = read_vocabulary(vocabulary, "VSE++")
    if len(by_number) + len(special) != V:
        raise UserError(
            f"{vocabulary}: has {len(by_number) + len(special)} words, but {path} was trained with "
            f"{V}: give the vocabulary that it was trained with."
        )
    notes = [f"The vector of {_PAD} is left out: it is never read."]
    rows, words = known_words(by_number, notes)
    vectors = text["embed.weight"]
    weights = {
        "sentence_encoder.embedding.weight": word_table(
            vectors[rows],
            end=vectors[special[_END]],
            unknown=vectors[special[_UNKNOWN]],
            begin=vectors[special[_BEGIN]],
        ),
        "image_proj.weight": image["fc.weight"],
        "image_proj.bias": image["fc.bias"],
        **{f"sentence_encoder.recurrence.{name}": text[f"rnn.{name}"] for name in _RECURRENCE},
    }
    criterion: dict[str, Any] = {"margin": read_margin(options, path)}
    if options.get("max_violation"):  # the hardest negative, VSE++'s own loss; else the sum
        criterion["negatives"] = "max"
    return ReleasedModel(
        path,
        "vse_gru",
        {
            "word_dim": E,
            "embed_dim": K,
            "sentence_signs": "both",
            "image_norm": "never" if options.get("no_imgnorm") else "always",
            "feature_scaling": "unit" if network else "none",
        },
        {**criterion, "same_image_negatives": True},
        words,
        weights,
        len(image) + len(text),
        "--tokenizer words --keep-punctuation",
        notes,
        str(options.get("cnn_type", "")) if network else "",
        _torchvision_names(network),
    )


def _read_options(opt: Any, path: str) -> dict[str, Any]:
    options = vars(opt) if isinstance(opt, argparse.Namespace) else opt
    for name, expected in _FIXED.items():
        if options.get(name, expected) != expected:
            raise UserError(
                f"{path}: was trained with {name} = {options[name]!r}, but our model is as with "
                f"{expected!r}."
            )
    return options


def read_vocabulary(path: str, program: str) -> tuple[dict[int, str], dict[str, int]]:
    """Read a vocabulary of VSE++, or of another program with the same vocabulary class.

    Args:
        path: Path of the pickle.

    Returns:
        Two dictionaries: from the row of the embedding to the word, without special tokens; and
        from the special token (``<pad>``, ``<start>``, ``<end>``, ``<unk>``) to its row.
    """
    content = getattr(read_plain_pickle(path, stand_ins=_STAND_INS), "word2idx", None)
    if not isinstance(content, dict) or not all(
        isinstance(word, str) and isinstance(number, int) for word, number in content.items()
    ):
        raise UserError(
            f"{path}: must be a vocabulary of {program}, but has no `word2idx` of words."
        )
    by_number = {number: repaired_text(word) for word, number in content.items()}
    if sorted(by_number) != list(range(len(content))) or not {*_SPECIAL} <= {*content}:
        raise UserError(
            f"{path}: must number its words from 0 on, without gaps, and have "
            f"{', '.join(_SPECIAL)} among them."
        )
    special = {word: content[word] for word in _SPECIAL}
    return {number: word for number, word in by_number.items() if word not in special}, special


def _torchvision_names(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the image network's weights from VSE++'s to torchvision's names."""
    # DataParallel wrapped a whole ResNet, but only the features of AlexNet and VGG
    renamed = {
        re.sub(r"^(features\.)?module\.", r"\1", name[len(_NETWORK) :]): x
        for name, x in network.items()
    }
    if "classifier.1.weight" not in renamed:
        return renamed
    for old, new in _OLD_CLASSIFIER.items():
        renamed = {
            (new + name[len(old) :] if name.startswith(old) else name): x
            for name, x in renamed.items()
        }
    return renamed
