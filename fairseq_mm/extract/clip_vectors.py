"""Computes the vectors of images and texts by a CLIP model of open_clip, for CLIPScore."""

import importlib
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import torch
import torch.nn.functional as F

from fairseq_mm.compat import float32_by_default
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import Extractor
from fairseq_mm.extract.images import AnyImage
from fairseq_mm.extract.library_networks import cached_if_offline, describe_hub_error, quiet
from fairseq_mm.extract.media_list import MAX_PIXELS
from fairseq_mm.extract.open_clip_backbones import PREFIX, build_image_encoder, load_open_clip

_TEXTS_PER_BATCH = 128


class ClipVectors:
    """CLIP model that maps images and texts to vectors of unit length in one space.

    Args:
        model: ``open_clip:NAME/PRETRAINED`` or ``NAME/PRETRAINED``, where PRETRAINED is open_clip's
            tag of published weights, or a file with the weights of both encoders.
        option: Option of the command line that names the model, for messages.
        device: Device of the model; ``auto`` for a GPU if there is one.
        max_pixels: Maximum number of pixels of an image, see :func:`.read_image`.

    Attributes:
        identity: Name of the model, SHA-256 of the weights that the vectors depend on, and version
            of the library.
    """

    def __init__(
        self,
        model: str,
        *,
        option: str,
        device: Union[str, torch.device] = "auto",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        name = model if model.startswith(PREFIX) else PREFIX + model
        clip = load_open_clip(name, reads_texts=True, option=option)
        backbone = build_image_encoder(clip, name)
        # an encoder of other data than images and texts, such as sound
        if not hasattr(clip.network, "encode_text"):
            raise UserError(f"{option} {model}: has no text encoder.")
        self._extractor = Extractor(backbone, backbone.preprocessing, device=device)
        self.device = self._extractor.device
        self._network = clip.network.to(self.device)
        self._max_pixels = max_pixels
        try:
            with quiet(), cached_if_offline():
                self._tokenizer: Any = importlib.import_module("open_clip").get_tokenizer(clip.name)
        except Exception as error:  # the hub's client raises errors of many classes
            reason = describe_hub_error(error)
            raise UserError(
                f"{option} {model}: its tokenizer cannot be loaded: {reason}."
            ) from None
        self.identity = {
            "model": backbone.model,
            "digest": str(backbone.digest),
            "library": str(backbone.library),
        }

    @property
    def images_per_batch(self) -> int:
        return self._extractor.default_batch_size

    def embed_images(self, images: Sequence[AnyImage]) -> list[Union[np.ndarray, UserError]]:
        """Compute the vector ``[D]`` of each image.

        If an image cannot be read, return an error with the reason instead of its vector.
        """
        pixels: list[Any] = []
        for image in images:
            try:
                pixels.append(self._extractor.pixels(image, max_pixels=self._max_pixels))
            except UserError as error:
                pixels.append(error)
        readable = [None if isinstance(one, UserError) else one for one in pixels]
        rows = self._extractor.rows_of_each(readable)
        return [
            one if features is None else F.normalize(torch.from_numpy(features), dim=1)[0].numpy()
            for one, features in zip(pixels, rows)
        ]

    @float32_by_default
    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Compute the vectors ``[N, D]`` of texts; the tokenizer cuts long texts off."""
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), _TEXTS_PER_BATCH):
                tokens = self._tokenizer(list(texts[start : start + _TEXTS_PER_BATCH]))
                vectors = self._network.encode_text(tokens.to(self.device))
                parts.append(F.normalize(vectors.float(), dim=1).cpu().numpy())
        return np.concatenate(parts)
