"""Small checkpoints in the layouts of Kiros's visual-semantic-embedding and of VSE++, and naive
loops over their equations."""

import argparse
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import torch
from torch import nn

D, E, K = 5, 6, 7


def kiros_arrays(words, *, kind="gru", dim_word=E, feature_dim=D):
    """Weights of a model whose dictionary has ``words``, two of which have no vector."""
    generator = np.random.default_rng(5)
    dim = K if kind == "gru" else dim_word
    shapes = {"Wemb": (len(words), dim_word), "ff_image_W": (feature_dim, dim)}
    shapes["ff_image_b"] = (dim,)
    if kind == "gru":
        shapes.update(encoder_W=(dim_word, 2 * dim), encoder_b=(2 * dim,))
        shapes.update(encoder_U=(dim, 2 * dim), encoder_Ux=(dim, dim))
        shapes.update(encoder_Wx=(dim_word, dim), encoder_bx=(dim,))
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_kiros(path, words, *, kind="gru", arrays=None, gone=(), **options):
    """``X.npz`` with its pickles as Python 2 wrote them."""
    arrays = kiros_arrays(words, kind=kind) if arrays is None else arrays
    np.savez(path, **arrays)
    dim_image, dim = arrays["ff_image_W"].shape
    content = {
        **{"encoder": kind, "dim": dim, "dim_image": dim_image, "margin": np.float64(0.3)},
        **{"dim_word": arrays["Wemb"].shape[1], "n_words": len(arrays["Wemb"]), "data": "f8k"},
        **options,
    }
    content = {name: x for name, x in content.items() if name not in gone}
    Path(f"{path}.pkl").write_bytes(pickle.dumps(content, 0))
    Path(f"{path}.dictionary.pkl").write_bytes(python2_dictionary(words))
    return path


def python2_dictionary(words):
    """An ordered dictionary of byte strings and their numbers from 2 on, in protocol 0."""
    pickled = b"ccollections\nOrderedDict\n((l"
    for number, word in enumerate(words, start=2):
        quoted = repr(word.encode())[1:].encode()
        pickled += b"(lS" + quoted + b"\naI" + str(number).encode() + b"\naa"
    return pickled + b"tR."


def unit(x):
    return x / np.sqrt((x**2).sum(-1, keepdims=True))


def kiros_sentence(arrays, words, sentence):
    """``[K]`` of a sentence of words, the end token read after them; step by step."""
    numbers = {word: number for number, word in enumerate(words, start=2)}
    known = {word: n for word, n in numbers.items() if n < len(arrays["Wemb"])}
    read = [arrays["Wemb"][n] for n in [*(known.get(x, 1) for x in sentence.split()), 0]]
    if "encoder_U" not in arrays:
        return unit(np.sum(read, axis=0))
    W, b, U, Wx, Ux, bx = (arrays[f"encoder_{x}"] for x in ("W", "b", "U", "Wx", "Ux", "bx"))
    h = np.zeros(len(Ux))
    for x in read:
        gates = 1 / (1 + np.exp(-(h @ U + x @ W + b)))
        r, u = gates[: len(h)], gates[len(h) :]
        candidate = np.tanh(r * (h @ Ux) + x @ Wx + bx)
        h = u * h + (1 - u) * candidate
    return unit(h)


def kiros_image(arrays, features):
    """``[K]`` of features ``[D]`` of unit length."""
    return unit(features @ arrays["ff_image_W"] + arrays["ff_image_b"])


SIGNS = ("<pad>", "<start>", "<end>", "<unk>")


class TheirModel:
    """VSE++ of a vocabulary of signs and words.

    Args:
        words: beside the signs.
        feature_dim: channels.
        network: whose features are read, by its names in a checkpoint; None where they were made
            before.
        **options: of its training.
    """

    def __init__(self, words, *, feature_dim=D, network=None, **options):
        torch.manual_seed(4)
        self.words = [*SIGNS, *words]
        self.options = {
            **{"data_name": "f8k_precomp", "embed_size": K, "word_dim": E, "img_dim": feature_dim},
            **{"margin": 0.25, "max_violation": True, "num_layers": 1, "cnn_type": "vgg19"},
            **{"measure": "cosine", "use_abs": False, "no_imgnorm": False, **options},
        }
        size, dim = self.options["word_dim"], self.options["embed_size"]
        self.embed = nn.Embedding(len(self.words), size)
        self.rnn = nn.GRU(size, dim, self.options["num_layers"], batch_first=True)
        self.fc = nn.Linear(feature_dim, dim)
        self.network = network or {}

    def state(self):
        image = {f"cnn.{name}": x for name, x in self.network.items()}
        image.update({f"fc.{name}": x for name, x in self.fc.state_dict().items()})
        text = {f"embed.{name}": x for name, x in self.embed.state_dict().items()}
        text.update({f"rnn.{name}": x for name, x in self.rnn.state_dict().items()})
        opt = argparse.Namespace(**self.options)
        return {"epoch": 3, "model": [image, text], "best_rsum": 99.5, "opt": opt, "Eiters": 7}

    def write(self, path, **changed):
        torch.save({**self.state(), **changed}, path)
        return path

    def write_vocabulary(self, path, module="__main__", words=None):
        write_vocabulary(path, self.words if words is None else words, module)
        return path

    @torch.no_grad()
    def sentence(self, sentence):
        """``[K]``, of words as they are."""
        words = ["<start>", *sentence.split(), "<end>"]
        known = [word if word in self.words else "<unk>" for word in words]
        vectors = self.embed(torch.tensor([[self.words.index(word) for word in known]]))
        state = self.rnn(vectors)[0][0, -1]
        return (state / state.norm()).numpy()

    @torch.no_grad()
    def image(self, features):
        """``[K]`` of ``[D]``."""
        features = torch.as_tensor(features)
        if self.network:
            features = features / features.norm()
        projected = self.fc(features)
        return (projected if self.options["no_imgnorm"] else projected / projected.norm()).numpy()


def write_vocabulary(path, words, module):
    """An object of a class ``Vocabulary`` of a module that whoever reads it does not have."""
    made = types.ModuleType(module)
    kind = type("Vocabulary", (), {"__module__": module})
    made.Vocabulary = kind
    vocabulary = kind()
    vocabulary.word2idx = {word: number for number, word in enumerate(words)}
    vocabulary.idx2word = dict(enumerate(words))
    vocabulary.idx = len(words)
    before = sys.modules.get(module)
    sys.modules[module] = made
    try:
        Path(path).write_bytes(pickle.dumps(vocabulary, 2))
    finally:
        if before is None:
            del sys.modules[module]
        else:
            sys.modules[module] = before
