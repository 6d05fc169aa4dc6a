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

from fairseq_mm.conversion.foreign_checkpoint import read_plain_pickle, repaired_text
from fairseq_mm.conversion.released_vse import (
    DEFAULT_MARGIN,
    ReleasedModel,
    known_words,
    word_table,
)
from fairseq_mm.errors import UserError, file_errors

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
    opt = state["opt"]
    options: dict[str, Any] = vars(opt) if isinstance(opt, argparse.Namespace) else opt
    for name, expected in _FIXED.items():
        if options.get(name, expected) != expected:
            raise UserError(
                f"{path}: was trained with {name} = {options[name]!r}, but our model is as with "
                f"{expected!r}."
            )
    # the counters of batch normalisation are integers and stay so
    image, text = (
        {name: x.float() if x.is_floating_point() else x for name, x in part.items()}
        for part in state["model"]
    )
    network = {name: x for name, x in image.items() if name.startswith(_NETWORK)}
    # by torchvision's names: DataParallel wrapped a whole ResNet, but only the features of AlexNet
    # and VGG
    renamed = {
        re.sub(r"^(features\.)?module\.", r"\1", name[len(_NETWORK) :]): x
        for name, x in network.items()
    }
    if "classifier.1.weight" in renamed:
        for old, new in _OLD_CLASSIFIER.items():
            renamed = {
                (new + name[len(old) :] if name.startswith(old) else name): x
                for name, x in renamed.items()
            }
    (V, E), K = text["embed.weight"].shape, len(image["fc.weight"])
    if vocabulary is None:
        raise UserError(
            f"{path}: --vocabulary FILE is needed, the words of the model (VSE++'s "
            f"{options.get('data_name', '...')}_vocab.pkl)."
        )
    by_number, special = read_vocabulary(vocabulary, "VSE++", V)
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
        # other tensors keep their names, so that the check lists them
        **{x: y for x, y in {**image, **text}.items() if x not in {*network, *_IMAGE, *_TEXT}},
    }
    criterion: dict[str, Any] = {"margin": float(options.get("margin", DEFAULT_MARGIN))}
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
        renamed,
    )


def read_vocabulary(
    path: str, program: str, num_words: int
) -> tuple[dict[int, str], dict[str, int]]:
    """Read a vocabulary of VSE++, or of another program with the same vocabulary class.

    Args:
        path: Path of the pickle.
        num_words: Number of rows of the model's embedding.

    Returns:
        Two dictionaries: from the row of the embedding to the word, without special tokens; and
        from the special token (``<pad>``, ``<start>``, ``<end>``, ``<unk>``) to its row.
    """
    content = read_plain_pickle(path, stand_ins=_STAND_INS)
    with file_errors(path, f"must be the vocabulary of {program} that the model was trained with"):
        numbers: dict[str, int] = content.word2idx
        by_number = {number: repaired_text(word) for word, number in numbers.items()}
        if sorted(by_number) != list(range(num_words)) or len(numbers) != num_words:
            raise ValueError(f"{len(numbers)} words are not numbered from 0 to {num_words - 1}")
        special = {word: numbers[word] for word in _SPECIAL}
    return {number: word for number, word in by_number.items() if word not in special}, special
