"""Photographs -> captions in Python: what ``fairseq-mm caption`` does.

    import fairseq_mm

    captioner = fairseq_mm.from_pretrained("checkpoints/m_rnn", weights="mobilenet_v2.pt")
    captioner.caption(["dog.jpg", PIL.Image.open("boat.png")])   # ["a dog runs ...", "a boat ..."]

A checkpoint carries its dictionary and the identity of the extractor that it was trained with, so
nothing but the extractor's weights is needed beside it.
"""

import contextlib
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import torch
from fairseq import utils
from fairseq.ngram_repeat_block import NGramRepeatBlock
from PIL import Image

from fairseq_mm import checkpoints
from fairseq_mm.data.collate import pad_features
from fairseq_mm.data.multimodal_dataset import tokens_of
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import PictureExtractor, build_extractor_from_identity
from fairseq_mm.extract.identity import check_same_extractor
from fairseq_mm.extract.picture_list import Picture
from fairseq_mm.extract.pictures import MAX_PIXELS
from fairseq_mm.extract.weights import sha256_of

WEIGHT_SUFFIXES = (".pt", ".pth", ".bin")
# pictures that the generator gets at a time; its time per caption hardly falls beyond
GENERATION_BATCH = 100

AnyPicture = Union[str, os.PathLike, bytes, Image.Image, Picture]


class Caption(NamedTuple):
    """A generated caption.

    Attributes:
        text: its words, separated by spaces.
        score: mean log-probability of its words, the end included.
    """

    text: str
    score: float


@dataclass(frozen=True)
class Search:
    """How captions are searched for. ``<unk>`` is never among their words.

    Args:
        beam: width of the beam; 1 is greedy.
        prefix: words that every caption begins with, such as ``a man``.
        sampling: draw the words instead, one caption a picture. Each picture's draws begin with
            ``seed``, so that its caption does not depend on the pictures around it.
        topk: draw from the k most probable words only; 0 for all.
        temperature: above 1 flattens the distribution that is drawn from or searched.
        seed: of the draws.
        max_words: longest caption.
        no_repeat_ngram: no sequence of so many words occurs twice; 0 allows it.

    Raises:
        UserError: if a value is out of its range, or ``topk`` is given without ``sampling``.
    """

    beam: int = 3
    prefix: Optional[str] = None
    sampling: bool = False
    topk: int = 0
    temperature: float = 1.0
    seed: int = 0
    max_words: int = 30
    no_repeat_ngram: int = 0

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
) -> "Captioner":
    """A captioner from one checkpoint, or an ensemble of several.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator. Their probabilities are
            averaged.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.

    Raises:
        UserError: if a checkpoint cannot be loaded, or two do not fit together.
    """
    names: Sequence[Union[str, os.PathLike]]
    names = os.fspath(path).split(os.pathsep) if isinstance(path, (str, os.PathLike)) else path
    files = [checkpoints.checkpoint_file(os.fspath(name)) for name in names]
    if not files:
        raise UserError("`path` must name at least one checkpoint, but is empty.")
    place = checkpoints.usable_device(device)
    states = [checkpoints.load_checkpoint(file) for file in files]
    provenances = [checkpoints.provenance_of(state, file) for state, file in zip(states, files)]
    for file, provenance in zip(files[1:], provenances[1:]):
        checkpoints.check_ensemble(files[0], provenances[0], file, provenance)
    task = checkpoints.build_task(states[0], files[0], provenances[0])
    models = [checkpoints.build_model(task, state, file) for state, file in zip(states, files)]
    return Captioner(task, models, provenances[0], files=files, weights=weights, device=place)


class Captioner:
    """Captions of pictures by one model or several.

    Args:
        task: made by ``from_provenance``.
        models: loaded, in evaluation mode.
        provenance: what the models were trained on.
        files: their checkpoints.
        weights: the extractor's state dict file, or None.
        device: where extractor and models run.

    Attributes:
        files: the checkpoints.
        identity: of the extractor, as the feature store of the training data had it; empty if it
            had none.
        feature_dim: channels of the features.
    """

    def __init__(
        self,
        task: Any,
        models: list[Any],
        provenance: Mapping[str, Any],
        *,
        files: list[str],
        weights: Optional[str] = None,
        device: torch.device,
    ) -> None:
        self.task = task
        self.models = [model.to(device) for model in models]
        self.identity: dict[str, Any] = provenance["extractor"]
        self.feature_dim: int = provenance["feature_dim"]
        self.files = files
        self.weights = weights
        self.device = device

    def __repr__(self) -> str:
        name = self.identity.get("extractor", "unknown features")
        return f"Captioner({os.pathsep.join(self.files)!r}: {name}, {self.device})"

    def caption(
        self,
        pictures: Sequence[AnyPicture],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
        **options: Any,
    ) -> list[str]:
        """One caption for each picture, in their order.

        Args:
            pictures: paths, contents of files (bytes) or open pictures.
            batch_size: pictures that the extractor gets at a time, by default 16 on a CPU and 128
                elsewhere; it changes nothing but the speed.
            max_pixels: larger JPEGs are decoded at reduced scale, other pictures refused.
            **options: of :class:`Search`: ``beam=3``, ``prefix=None``, ``sampling=False``,
                ``topk=0``, ``temperature=1.0``, ``seed=0``, ``max_words=30``,
                ``no_repeat_ngram=0``.

        Raises:
            UserError: if the extractor cannot be rebuilt, a picture cannot be read (naming it),
                or a word of the prefix is not in the dictionary.
        """
        if isinstance(pictures, (str, bytes, os.PathLike, Image.Image)):
            raise UserError(f"`pictures` must be a list, but is a {type(pictures).__name__}.")
        search = Search(**options)
        self.check_search(search)
        features = []
        found = self.features_of(pictures, batch_size=batch_size, max_pixels=max_pixels)
        for number, rows in enumerate(found):
            if isinstance(rows, UserError):
                picture = pictures[number]
                is_path = isinstance(picture, (str, os.PathLike))
                raise UserError(f"{str(picture) if is_path else f'picture {number}'}: {rows}")
            features.append(rows)
        return [caption.text for caption in self.caption_features(features, search)]

    @cached_property
    def extractor(self) -> PictureExtractor:
        """The extractor that the models were trained with.

        Raises:
            UserError: if it is not known, or its weights are not the ones it had.
        """
        if not self.identity.get("extractor"):
            raise UserError(
                f"{self.files[0]}: was trained on features whose extractor is not recorded, so no "
                "picture can be turned into such features. Record it (fairseq-mm store import "
                "--extractor NAME --weights FILE --layer NAME --preprocessing JSON) and train on "
                "that store, or give features (--features STORE)."
            )
        try:
            extractor = build_extractor_from_identity(
                self.identity, self._weights_file(), self.device
            )
        except UserError as error:
            raise UserError(f"{self.files[0]}: {error}") from None
        if extractor.dim != self.feature_dim:
            raise UserError(
                f"{self.files[0]}: was trained on features of {self.feature_dim} channels, but "
                f"{self.identity['extractor']}, layer {self.identity['layer']}, gives "
                f"{extractor.dim}."
            )
        return extractor

    def _weights_file(self) -> Optional[str]:
        """The state dict file to load: the given one, or one beside a checkpoint."""
        recorded = str(self.identity.get("weights"))
        if len(recorded) != 64:  # no SHA-256 of a file: weights with a name
            if self.weights is not None:
                raise UserError(
                    f"the features were made with the weights {recorded}, which are fetched by "
                    f"their name; {self.weights} (--weights) cannot take their place."
                )
            return None
        if self.weights is not None:
            return self.weights
        for folder in dict.fromkeys(os.path.dirname(os.path.abspath(file)) for file in self.files):
            for name in sorted(os.listdir(folder)):
                file = os.path.join(folder, name)
                is_candidate = name.endswith(WEIGHT_SUFFIXES) and not name.startswith("checkpoint")
                if is_candidate and os.path.isfile(file) and sha256_of(file) == recorded:
                    return file
        raise UserError(
            f"was trained on features of {self.identity['extractor']} with weights from a file "
            f"(SHA-256 {recorded}). Give that file (--weights FILE; in Python weights=...), or put "
            "it beside the checkpoint."
        )

    def features_of(
        self,
        pictures: Sequence[AnyPicture],
        *,
        batch_size: Optional[int] = None,
        max_pixels: int = MAX_PIXELS,
    ) -> Iterator[Union[np.ndarray, UserError]]:
        """Features of each picture, or the reason why it cannot be read.

        Threads decode the next batch while the network works on this one.

        Args:
            pictures: paths, contents of files, open pictures, or members of archives.
            batch_size: see :meth:`caption`.
            max_pixels: see :meth:`caption`.

        Yields:
            ``[rows, D]`` float32, or the error, in the order of the pictures.
        """
        extractor = self.extractor
        if batch_size is None:
            batch_size = 16 if self.device.type == "cpu" else 128
        starts = range(0, len(pictures), batch_size)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, _any_size_allowed():

            def submit(start: int) -> list[Future]:
                batch = pictures[start : start + batch_size]
                return [pool.submit(self._pixels, picture, max_pixels) for picture in batch]

            following = submit(0)
            for start in starts:
                waiting, following = following, submit(start + batch_size)
                decoded = [future.result() for future in waiting]
                readable = [pixels for pixels in decoded if not isinstance(pixels, UserError)]
                rows = iter(extractor.rows_of_each(readable))
                for pixels in decoded:
                    yield pixels if isinstance(pixels, UserError) else next(rows)

    def _pixels(self, picture: AnyPicture, max_pixels: int) -> Union[np.ndarray, UserError]:
        try:
            if isinstance(picture, Picture):
                picture = picture.content()
            return self.extractor.pixels(picture, max_pixels=max_pixels)
        except UserError as error:
            return error
        except OSError as error:
            return UserError(f"{error.strerror or error}.")

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

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        """
        Args:
            attributes: of a feature store.
            dim: its channels.
            path: its file, for the message.

        Raises:
            UserError: if the models were trained on other features.
        """
        if dim != self.feature_dim:
            raise UserError(
                f"{path}: features have {dim} channels, but {self.files[0]} was trained on "
                f"{self.feature_dim}."
            )
        if self.identity.get("extractor") and attributes.get("extractor"):
            check_same_extractor(
                self.identity,
                attributes,
                recorded_by=f"the features that {self.files[0]} was trained on",
                given_by=path,
            )

    def caption_features(
        self, features: Sequence[np.ndarray], search: Optional[Search] = None
    ) -> list[Caption]:
        """Captions of pictures that are features already.

        Args:
            features: for each picture ``[rows, D]``, from the extractor of the training data.
            search: how captions are searched for.

        Raises:
            UserError: if the features have another number of channels, or the search does not fit
                the dictionary.
        """
        search = search or Search()
        self.check_search(search)
        for number, rows in enumerate(features):
            if rows.ndim != 2 or rows.shape[1] != self.feature_dim:
                raise UserError(
                    f"features of picture {number} must be [rows, {self.feature_dim}], but are "
                    f"{list(rows.shape)}."
                )
        size = 1 if search.sampling else GENERATION_BATCH
        generator = self._build_generator(search)
        captions: list[Caption] = []
        with self._draws_of(search):
            for start in range(0, len(features), size):
                if search.sampling:
                    torch.manual_seed(search.seed)
                captions += self._generate(generator, features[start : start + size], search)
        return captions

    @contextlib.contextmanager
    def _draws_of(self, search: Search) -> Iterator[None]:
        """The caller's random numbers stay as they were."""
        if not search.sampling:
            yield
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            yield

    def _build_generator(self, search: Search) -> Any:
        generator = self.task.build_generator(
            self.models,
            Namespace(
                beam=1 if search.sampling else search.beam,
                max_len_b=search.max_words,
                unkpen=float("inf"),
                sampling=search.sampling,
                sampling_topk=search.topk or -1,
                temperature=search.temperature,
            ),
        )
        if search.no_repeat_ngram:
            # fairseq's CUDA extension, where it is built, would forbid words of the prefix too
            generator.repeat_ngram_blocker = NGramRepeatBlock(
                search.no_repeat_ngram, use_extension=False
            )
        return generator

    def _generate(
        self, generator: Any, features: Sequence[np.ndarray], search: Search
    ) -> list[Caption]:
        x, padding_mask = pad_features([rows.astype(np.float32) for rows in features])
        sample = {
            "id": torch.arange(len(features)),
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


@contextlib.contextmanager
def _any_size_allowed() -> Iterator[None]:
    """Around the threads, since reading a picture lifts Pillow's limit for all and puts it back."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before
