"""Images -> captions in Python: what ``fairseq-mm caption`` does.

    import fairseq_mm

    captioner = fairseq_mm.from_pretrained("checkpoints/m_rnn", weights="mobilenet_v2.pt")
    captioner.caption(["dog.jpg", PIL.Image.open("boat.png")])   # ["a dog runs ...", "a boat ..."]

A checkpoint carries its dictionary and the identity of the extractor that it was trained with, so
nothing but the extractor's weights is needed beside it.
"""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from fairseq import utils
from PIL import Image

from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.multimodal_dataset import tokens_of
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import Extractor
from fairseq_mm.extract.images import MAX_PIXELS
from fairseq_mm.generation.defaults import CAPTIONS, SAMPLING_BEAM, SEED, numbers_of
from fairseq_mm.inference.embedder import Embedder, load_embedder
from fairseq_mm.inference.image_models import AnyImage, ImageModels, load_image_models
from fairseq_mm.inference.text_models import (
    embeds_sentences,
    load_states,
    reads_structures,
    tells_visual_stories,
)

# images that the generator gets at a time; its time per caption hardly falls beyond
GENERATION_BATCH = 100


class Caption(NamedTuple):
    """A generated caption.

    Attributes:
        text: its words, separated by spaces.
        score: mean log-probability of its tokens, the end included.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Search:
    """How captions are generated.

    Args:
        beam: width of the beam; 1 is greedy.
        prefix: words that every caption begins with, such as ``a man``.
        sampling: draw the words instead, one caption an image. An image's draws depend on
            ``seed`` and its number alone, not on the images around it.
        topk: draw from the k most probable words only; 0 for all.
        temperature: above 1 flattens the distribution that is drawn from or searched.
        seed: of the draws.
        max_words: longest caption.
        no_repeat_ngram: no sequence of so many words occurs twice; 0 allows it.
        allow_unk: generate ``<unk>`` as well.

    Raises:
        UserError: if a value is out of its range, or ``topk`` is given without ``sampling``.
    """

    beam: int = CAPTIONS["beam"]
    prefix: Optional[str] = None
    sampling: bool = False
    topk: int = 0
    temperature: float = CAPTIONS["temperature"]
    seed: int = SEED
    max_words: int = CAPTIONS["max_len_b"]
    no_repeat_ngram: int = CAPTIONS["no_repeat_ngram_size"]
    allow_unk: bool = False

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("topk", 0), ("max_words", 1), ("no_repeat_ngram", 0)):
            value = getattr(self, name)
            if value < least:
                raise UserError(f"`{name}` must be {least} or more, but is {value} instead.")
        if not self.temperature > 0:
            raise UserError(f"`temperature` must be above 0, but is {self.temperature} instead.")
        if not -(2**63) <= self.seed < 2**64:
            raise UserError(f"`seed` must be a number of 64 bits, but is {self.seed} instead.")
        if self.topk and not self.sampling:
            raise UserError(f"`topk` is {self.topk}, but words are drawn with `sampling` only.")


def from_pretrained(
    path: Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]],
    *,
    weights: Optional[str] = None,
    device: Optional[str] = None,
    embedding: Optional[Union[str, os.PathLike]] = None,
    states: Optional[dict[str, dict[str, Any]]] = None,
) -> "Captioner":
    """A captioner from one checkpoint, or an ensemble of several.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator. Their probabilities are
            averaged.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        embedding: checkpoint, or folder with it, of the embedding model on whose vectors ``path``
            was trained; the extractor is then that model's.
        states: the checkpoints, if :func:`.load_states` has read them
            already.

    Raises:
        UserError: if a checkpoint cannot be loaded, tells stories or reads structures, or two do
            not fit together.
    """
    states = load_states(path) if states is None else states
    for file, state in states.items():
        if tells_visual_stories(state):
            raise UserError(f"{file}: tells stories of five images: fairseq-mm tell.")
        if embeds_sentences(state):
            raise UserError(
                f"{file}: embeds images and sentences, and writes none: fairseq-mm rank or "
                "fairseq-mm retrieve."
            )
        if reads_structures(state):
            raise UserError(
                f"{file}: writes by structures of training and vectors of an embedding model: "
                "fairseq-mm caption --embedding PATH --data DATA; in Python from_pretrained(..., "
                "embedding=..., data=...)."
            )
    loaded = load_image_models(path, device=device, states=states)
    if embedding is None:
        return Captioner(*loaded[:3], files=loaded.files, weights=weights, device=loaded.device)
    embedder = load_embedder(embedding, weights=weights, device=device)
    return EmbeddingCaptioner(
        *loaded[:3], files=loaded.files, device=loaded.device, embedder=embedder
    )


class Captioner(ImageModels):
    """Captions of images by one model or several."""

    def caption(
        self,
        images: Sequence[AnyImage],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
        items: Optional[Sequence[int]] = None,
        **options: Any,
    ) -> list[str]:
        """One caption for each image, in their order.

        Args:
            images: paths, contents of files (bytes) or open images.
            batch_size: images that the extractor gets at a time, by default 16 on a CPU and 128
                elsewhere; it changes nothing but the speed.
            max_pixels: larger JPEGs are decoded at reduced scale, other images refused.
            items: see :meth:`caption_features`.
            **options: of :class:`Search`: ``beam=3``, ``prefix=None``, ``sampling=False``,
                ``topk=0``, ``temperature=1.0``, ``seed=1``, ``max_words=30``,
                ``no_repeat_ngram=0``, ``allow_unk=False``.

        Raises:
            UserError: if the extractor cannot be rebuilt, an image cannot be read (naming it),
                or a word of the prefix is not in the dictionary.
        """
        if isinstance(images, (str, bytes, os.PathLike, Image.Image)):
            raise UserError(f"`images` must be a list, but is a {type(images).__name__}.")
        search = Search(**options)
        self.check_search(search)
        features = self.readable_features_of(images, batch_size=batch_size, max_pixels=max_pixels)
        captions = self.caption_features(features, search, items=items)
        return [caption.text for caption in captions]

    def check_search(self, search: Search) -> None:
        """
        Raises:
            UserError: if the search does not fit the dictionary.
        """
        self._prefix_tokens(search)
        if search.topk > len(self.task.target_dictionary):
            raise UserError(
                f"`topk` must be at most {len(self.task.target_dictionary)}, the size of the "
                f"dictionary, but is {search.topk} instead."
            )

    def _prefix_tokens(self, search: Search) -> Optional[torch.Tensor]:
        words = (search.prefix or "").split()
        if not words:
            return None
        dictionary = self.task.target_dictionary
        special = set(dictionary.symbols[: dictionary.nspecial])
        if special.intersection(words):
            raise UserError(f"prefix {search.prefix!r}: {special.intersection(words).pop()} is "
                            "no word.")  # fmt: skip
        if len(words) >= search.max_words:
            raise UserError(
                f"prefix {search.prefix!r}: has {len(words)} words, but must have fewer than a "
                f"whole caption, which has {search.max_words}."
            )
        try:
            return tokens_of(dictionary, " ".join(words))
        except UserError as error:
            raise UserError(f"prefix {search.prefix!r}: {error}") from None

    def caption_features(
        self,
        features: Sequence[np.ndarray],
        search: Optional[Search] = None,
        *,
        items: Optional[Sequence[int]] = None,
    ) -> list[Caption]:
        """Captions of images that are features already.

        Args:
            features: for each image ``[rows, D]``, from the extractor of the training data.
            search: how captions are generated.
            items: numbers of the images, on which the draws of ``sampling`` depend; by default
                their places.

        Raises:
            UserError: if the features have another number of channels, or the search does not fit
                the dictionary.
        """
        search = search or Search()
        self.check_search(search)
        self.check_channels(features)
        items = numbers_of(items, len(features))
        generator = self.build_generator(search)
        captions: list[Caption] = []
        for start in range(0, len(features), GENERATION_BATCH):
            batch = slice(start, start + GENERATION_BATCH)
            captions += self._generate(generator, items[batch], features[batch], search)
        return captions

    def build_generator(self, search: Search) -> Any:
        """The task's generator for a search."""
        return self.task.build_generator(
            self.models,
            Namespace(
                beam=SAMPLING_BEAM if search.sampling else search.beam,
                max_len_b=search.max_words,
                no_repeat_ngram_size=search.no_repeat_ngram,
                sampling=search.sampling,
                sampling_topk=search.topk or -1,
                temperature=search.temperature,
            ),
            allow_unk=search.allow_unk,
            seed=search.seed,
        )

    def _generate(
        self,
        generator: Any,
        items: Sequence[int],
        features: Sequence[np.ndarray],
        search: Search,
    ) -> list[Caption]:
        x, padding_mask = pad_features([rows.astype(np.float32) for rows in features])
        sample = {
            "id": torch.tensor(items),
            "net_input": {"features": x, "padding_mask": padding_mask},
        }
        prefix = self._prefix_tokens(search)
        if prefix is not None:
            prefix = prefix.to(self.device).expand(len(features), -1)
        if self.device.type != "cpu":
            sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
        dictionary = self.task.target_dictionary
        with torch.no_grad():
            found = self.task.inference_step(generator, self.models, sample, prefix_tokens=prefix)
        return [
            Caption(
                dictionary.string(hypotheses[0]["tokens"].int().cpu()),
                float(hypotheses[0]["score"]),
            )
            for hypotheses in found
        ]


class EmbeddingCaptioner(Captioner):
    """Captions of images by models that were trained on vectors of an embedding model.

    Args:
        *args: of :class:`Captioner`.
        embedder: of the embedding model, whose extractor reads the images.
        **options: of :class:`Captioner`.

    Raises:
        UserError: if the models were trained on anything but its vectors.
    """

    def __init__(self, *args: Any, embedder: Embedder, **options: Any) -> None:
        super().__init__(*args, **options)
        embedder.check_vectors(
            self.identity, self.feature_dim, what=f"what {self.files[0]} was trained on"
        )
        self.embedder = embedder
        self.identity = embedder.identity

    @cached_property
    def extractor(self) -> Extractor:
        return self.embedder.extractor

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        self.embedder.check_features(attributes, dim, path)

    def caption_features(
        self,
        features: Sequence[np.ndarray],
        search: Optional[Search] = None,
        *,
        items: Optional[Sequence[int]] = None,
    ) -> list[Caption]:
        """See :meth:`Captioner.caption_features`; the features are those that the embedding model
        reads."""
        if not features:
            return []
        vectors = self.embedder.embed_features(features)
        return super().caption_features([vector[None] for vector in vectors], search, items=items)
