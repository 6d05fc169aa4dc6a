"""Embeds images and sentences as vectors of one space, in Python.

from fairseq_mm.inference.embedder import load_embedder

embedder = load_embedder("checkpoints/vse_bow", weights="mobilenet_v2.pt")
embedder.embed_texts(["a dog on the beach"]) @ embedder.embed_images(["dog.jpg"]).T
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Callable, Optional, Union

import numpy as np
import torch

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.multimodal_dataset import encode_words
from fairseq_mm.errors import UserError
from fairseq_mm.extract.media import AnyImage
from fairseq_mm.extract.weights import VECTORS_EXTRACTOR
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import Checkpoint, LoadedModels
from fairseq_mm.inference.checkpoint_files import compute_checkpoint_digest
from fairseq_mm.inference.image_processor import ImageReader, list_of_several
from fairseq_mm.inference.set_up import Picklable
from fairseq_mm.models._provenance import list_words

_BATCH = 128  # images or sentences


def load_embedder(
    path: Union[str, os.PathLike], *, weights: Optional[str] = None, device: Optional[str] = None
) -> "Embedder":
    """Load a model that embeds images and sentences, from a checkpoint or a folder with one.

    ``weights`` is the state dict file of the image extractor; if it is None, the folder of the
    checkpoint is searched for the file whose digest the checkpoint records.
    """
    checkpoints = Checkpoint.open_all(path, command="rank")
    return build_embedder(checkpoints, weights=weights, device=device)


def build_embedder(
    checkpoints: Sequence[Checkpoint], *, weights: Optional[str], device: Optional[str]
) -> "Embedder":
    if len(checkpoints) > 1:
        raise UserError(f"{checkpoints[0].path}: embeddings are no ensemble: give one checkpoint.")
    return Embedder(checkpoints[0].build(device), weights=weights)


class Embedder(Picklable, ImageReader):
    """Model that embeds images and sentences.

    Args:
        loaded: Embedding model.
        weights: Path of the image extractor's weights (state dict), see :class:`.MediaReader`.
    """

    # a function inside a function cannot be pickled; a copy builds it again
    not_pickled = ("_tokenize",)

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded, weights=weights)
        self.task = loaded.task
        self.models = loaded.models

    @torch.no_grad()
    def embed_images(self, images: Iterable[AnyImage], **options: Any) -> np.ndarray:
        """Embed n images: paths, contents of files (bytes) or open images.

        ``options`` are those of :meth:`.ImageReader.read_features`. Returns [n, K] float32 vectors.
        """
        images = list_of_several(images, "images")
        return self.embed_features(self.read_all_features(images, **options))

    @torch.no_grad()
    def embed_features(self, features: Sequence[np.ndarray]) -> np.ndarray:
        """Embed n images from their features, [N, D] each; return [n, K] float32 vectors."""
        vectors = [np.empty((0, self.models[0].embed_dim), dtype=np.float32)]
        for start in range(0, len(features), _BATCH):
            part = features[start : start + _BATCH]
            for rows in part:
                self.check_rows(rows)
            # stores may have float16, which a CPU multiplies slowly
            padded, mask = pad_features([rows.astype(np.float32) for rows in part])
            embedded = self.models[0].embed_images(padded.to(self.device), mask.to(self.device))
            # float(), because NumPy has no bfloat16
            vectors.append(embedded.float().cpu().numpy())
        return np.concatenate(vectors)

    @torch.no_grad()
    def embed_tokens(self, sentences: Sequence[Sequence[int]]) -> np.ndarray:
        """Embed n non-empty sentences of token indices without ``</s>``, in batches of similar
        length. Returns [n, K] float32 vectors.
        """
        dictionary = self.task.target_dictionary
        # sentences of similar length need less padding, on which recurrent models spend time, too
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        vectors = np.empty((len(sentences), self.models[0].embed_dim), dtype=np.float32)
        for start in range(0, len(order), _BATCH):
            part = order[start : start + _BATCH]
            longest = len(sentences[part[-1]]) + 1
            tokens = np.full((len(part), longest), dictionary.pad())
            for row, i in zip(tokens, part):
                row[: len(sentences[i])] = sentences[i]
                row[len(sentences[i])] = dictionary.eos()
            embedded = self.models[0].embed_sentences(torch.from_numpy(tokens).to(self.device))
            vectors[part] = embedded.float().cpu().numpy()
        return vectors

    @cached_property
    def digest(self) -> str:
        """First twelve hexadecimal digits of the checkpoint's SHA-256 digest.

        Feature stores made by ``fairseq-mm embed`` record this digest.
        """
        return compute_checkpoint_digest(self.files[0])[:12]

    def check_vectors(self, attributes: Mapping[str, Any], dim: int, *, what: str) -> None:
        """Check that this model made a store's vectors, by the store's attributes and dimension.

        ``what`` describes the store in the message.
        """
        # vectors of two checkpoints have the same shape, but cosines between them mean nothing
        found = (attributes.get("extractor"), attributes.get("weights"), dim)
        if found != (VECTORS_EXTRACTOR, self.digest, self.models[0].embed_dim):
            raise UserError(
                f"{what}: must have vectors that fairseq-mm embed made with {self.files[0]} "
                f"({self.digest}), but has {found[0]} of {found[1]}, dimension {dim}."
            )

    def embed_texts(self, texts: Iterable[str], *, ignore_unknown: bool = False) -> np.ndarray:
        """Embed n detokenized sentences or words; return [n, K] float32 vectors.

        Texts are lower-cased if the dictionary has no word with capitals. Punctuation marks that
        are not in the dictionary are left out; with ``ignore_unknown``, so are all unknown words.
        """
        dictionary = self.task.target_dictionary
        sentences = []
        for text in list_of_several(texts, "texts"):
            words = self._tokenize(typed_option("texts", text, str))
            if ignore_unknown:
                words = [word for word in words if word in dictionary]
            if not words:
                number = len(dictionary) - dictionary.nspecial
                of = f" that is in the dictionary of {number} words" if ignore_unknown else ""
                raise UserError(f"the text {text!r} has no word{of}.")
            sentences.append(encode_words(dictionary, " ".join(words)).tolist())
        return self.embed_tokens(sentences)

    def find_unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that are not in the model's dictionary, each once."""
        words = self._tokenize(typed_option("text", text, str))
        return list(dict.fromkeys(w for w in words if w not in self.task.target_dictionary))

    @cached_property
    def _tokenize(self) -> Callable[[str], list[str]]:
        return get_tokenizer(self.task.target_dictionary)


def get_tokenizer(dictionary: Any) -> Callable[[str], list[str]]:
    """Return a function that splits detokenized text into words of a fairseq dictionary.

    The function lower-cases the text if the dictionary has no capitals, and leaves out punctuation
    marks that are not in the dictionary.
    """
    words = list_words(dictionary)
    tokenize = CaptionTokenizer(
        keep_case=any(word != word.lower() for word in words), keep_punctuation=True
    )

    # a punctuation mark outside the vocabulary was left out in training; a word is an error
    def words_of_text(text: str) -> list[str]:
        words = tokenize(text)
        return [word for word in words if word in dictionary or any(map(str.isalnum, word))]

    return words_of_text
