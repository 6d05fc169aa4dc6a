"""Pictures and sentences -> vectors of one space, in Python: queries of ``fairseq-mm retrieve``.

from fairseq_mm.embedder import load_embedder

embedder = load_embedder("checkpoints/vse_bow", weights="mobilenet_v2.pt")
embedder.embed_texts(["a dog on the beach"]) @ embedder.embed_pictures(["dog.jpg"]).T
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional, Union

import numpy as np
import torch

from fairseq_mm.data.caption_text import CaptionTokenizer
from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.multimodal_dataset import tokens_of
from fairseq_mm.errors import UserError
from fairseq_mm.models._provenance import words_of
from fairseq_mm.picture_models import AnyPicture, PictureModels, load_picture_models
from fairseq_mm.text_models import embeds_sentences, load_states


def load_embedder(
    path: Union[str, os.PathLike], *, weights: Optional[str] = None, device: Optional[str] = None
) -> "Embedder":
    """The model of a checkpoint that embeds pictures and sentences.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            the checkpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.

    Raises:
        UserError: if the checkpoint cannot be loaded, there are several, or its model writes text.
    """
    states = load_states(path)
    for file, state in states.items():
        if not embeds_sentences(state):
            raise UserError(
                f"{file}: must embed pictures and sentences (vse_lstm, vse_gru, vse_bow), but is a "
                "model that writes text."
            )
    if len(states) > 1:
        raise UserError(f"{path}: must be one checkpoint, but is {len(states)}.")
    loaded = load_picture_models(path, device=device, states=states)
    return Embedder(*loaded[:3], files=loaded.files, weights=weights, device=loaded.device)


class Embedder(PictureModels):
    """Vectors of pictures and sentences by one model."""

    @torch.no_grad()
    def embed_pictures(self, pictures: Sequence[AnyPicture], **options: Any) -> np.ndarray:
        """
        Args:
            pictures: paths, contents of files (bytes) or open pictures.
            **options: of :meth:`~fairseq_mm.picture_models.PictureModels.features_of`.

        Returns:
            ``[n, K]`` float32.

        Raises:
            UserError: if the extractor cannot be rebuilt, or a picture cannot be read.
        """
        features, padding_mask = pad_features(self.readable_features_of(pictures, **options))
        vectors = self.models[0].embed_images(
            features.to(self.device), padding_mask.to(self.device)
        )
        return vectors.float().cpu().numpy()

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """
        Args:
            texts: sentences or words, as people write them. Capitals and punctuation count where
                the dictionary has such words; else they are lower-cased and left out.

        Returns:
            ``[n, K]`` float32.

        Raises:
            UserError: if a text has no words, or one is not in the model's dictionary.
        """
        dictionary = self.task.target_dictionary
        vectors = []
        for text in texts:
            words = self._words_of(text)
            if not words:
                raise UserError(f"the text {text!r} must have a word, but has none.")
            tokens = tokens_of(dictionary, " ".join(words))
            tokens = torch.cat([tokens, tokens.new_tensor([dictionary.eos()])])
            vectors.append(self.models[0].embed_sentences(tokens[None].to(self.device))[0])
        return torch.stack(vectors).float().cpu().numpy()

    def _words_of(self, text: str) -> list[str]:
        words = self._tokenize(text)
        known = self.task.target_dictionary
        # a mark that the model does not know was left out when it was trained
        return [word for word in words if word in known or any(map(str.isalnum, word))]

    @cached_property
    def _tokenize(self) -> CaptionTokenizer:
        words = words_of(self.task.target_dictionary)
        return CaptionTokenizer(
            keep_case=any(word != word.lower() for word in words), keep_punctuation=True
        )
