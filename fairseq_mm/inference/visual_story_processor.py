"""Turns image sequences into examples of the task ``visual_storytelling``."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
from PIL import Image

from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, detokenize_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.image_processor import ImageOrFeatures, ImageReader, get_known_image
from fairseq_mm.inference.processor import Decoded, Example, Processor, read_field

# stands in the place of an image that is missing
NO_IMAGE = "-"

ImageSequence = Sequence[Optional[ImageOrFeatures]]


class VisualStoryProcessor(Processor[ImageSequence]):
    """Processor that turns sequences of five images into examples for models of visual stories.

    The images of a sequence have the types that :class:`.CaptionProcessor` reads, or are None for a
    missing image.

    Args:
        loaded: Models that read the examples.
        weights: Path of the image extractor's weights (state dict), see :class:`.MediaReader`.
    """

    input_fields = ("images",)
    reading_options: Mapping[str, type] = {"batch_size": int, "max_pixels": int}
    num_read = (16, 256)
    has_headings = True
    ranked_by = "images"

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded)
        self.reader = ImageReader(loaded, weights=weights)
        self.extractor_identity = self.reader.identity
        self.rows_per_image = self.reader.num_rows = int(loaded.task.rows_per_image)

    def is_single(self, inputs: Any) -> bool:
        # a sequence of images, not of sequences
        is_image = isinstance(inputs, (str, bytes, os.PathLike, Image.Image, np.ndarray))
        if is_image or not isinstance(inputs, Iterable):
            return True
        return not all(isinstance(item, (list, tuple)) for item in inputs)

    def from_record(self, record: Mapping[str, Any], folder: str) -> ImageSequence:
        return [
            None if image in (None, NO_IMAGE) else os.path.join(folder, str(image))
            for image in read_field(record, "images", list)
        ]

    def list_files(self, paths: Sequence[str]) -> list[tuple[dict[str, Any], Optional[UserError]]]:
        check_sequence([None if path == NO_IMAGE else path for path in paths])
        return [({"id": "\t".join(paths), "images": [*paths]}, None)]

    def get_stored_keys(self, record: dict[str, Any]) -> list[Optional[str]]:
        keys = [
            None if image == NO_IMAGE else image for image in read_field(record, "images", list)
        ]
        check_sequence(keys)
        return keys

    def from_features(
        self, record: Mapping[str, Any], folder: str, features: list[Optional[np.ndarray]]
    ) -> ImageSequence:
        return features

    def to_record(self, record: Mapping[str, Any], example: Example, best: Any) -> dict[str, Any]:
        words = best.line.split()
        return {
            "item": best.index,
            "images": [image or NO_IMAGE for image in record["images"]],
            "sentences": best.sentences,
            "words": len(words) - words.count(SEPARATOR),
        }

    def to_entry(self, hypothesis: Any) -> dict[str, Any]:
        # with the separators of sentences, as scores need them
        return {**super().to_entry(hypothesis), "hypothesis": hypothesis.line}

    def to_text(self, hypothesis: Any) -> str:
        return "\n".join(hypothesis.sentences)

    def describe_input(self, value: ImageSequence, position: int) -> str:
        return f"image sequence {position}"

    def examples(
        self, inputs: Sequence[ImageSequence], **options: Any
    ) -> Iterable[Union[Example, UserError]]:
        """Return the example of each image sequence, or the error of an unreadable sequence.

        The keyword options are ``batch_size`` and ``max_pixels``, as in
        :meth:`.ImageReader.read_features`.
        """
        # all sequences at once, so that the extractor gets full batches; an image of several
        # sequences is read once
        lists = [x for x in inputs if isinstance(x, Sequence) and not isinstance(x, (str, bytes))]
        images = {_identify(image): image for x in lists for image in x if image is not None}
        read = self.reader.features_of(list(images.values()), **options)
        return super().examples(inputs, features_of=dict(zip(images, read)))

    def example(self, value: Any, **options: Any) -> Example:
        """Return the example of an image sequence, with vectors of zeros for missing images.

        The option ``features_of`` maps each image to its features [R, D], or its error.
        """
        check_sequence(value)
        features_of: dict[Any, Any] = options["features_of"]
        R, D = self.rows_per_image, self.reader.feature_dim
        x = np.zeros((NUM_IMAGES, R, D), dtype=np.float32)
        # zeros do not identify a missing image: an existing image can have features of zero
        missing = np.ones((NUM_IMAGES, R), dtype=bool)
        for place, image in enumerate(value):
            features = None if image is None else features_of[_identify(image)]
            if isinstance(features, UserError):
                is_path = isinstance(image, (str, os.PathLike))
                raise UserError(f"{image if is_path else f'image {place + 1}'}: {features}")
            if features is not None:
                x[place], missing[place] = features, False
        known = [get_known_image(image) for image in value]
        return Example(
            features=x.reshape(NUM_IMAGES * R, D),
            missing=missing.reshape(NUM_IMAGES * R),
            origin=known if any(image is not None for image in known) else None,
        )

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        line = self.dictionary.string(tokens)
        sentences = detokenize_sentences(line)
        return Decoded(" ".join(sentences), line, sentences)


def _identify(image: ImageOrFeatures) -> Any:
    return image if isinstance(image, (str, os.PathLike)) else id(image)


def check_sequence(images: Sequence[Any], where: str = "") -> None:
    """Check that an image sequence has five elements, and that at least one is not None.

    ``where`` is the beginning of the error message.
    """
    if isinstance(images, (str, bytes)) or not isinstance(images, Sequence):
        kind = type(images).__name__
        problem = f"an image sequence must be a list of {NUM_IMAGES} images, but is a {kind}"
    elif len(images) != NUM_IMAGES:
        number = "is 1" if len(images) == 1 else f"are {len(images)}"
        problem = f"a story has {NUM_IMAGES} images, but there {number}"
    elif all(image is None for image in images):
        problem = f"all {NUM_IMAGES} images are missing"
    else:
        return
    raise UserError(f"{where}{problem}.")
