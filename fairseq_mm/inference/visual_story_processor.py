"""Turns image sequences into examples of the task ``visual_storytelling``."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import torch
from PIL import Image

from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR, detokenize_sentences
from fairseq_mm.errors import UserError
from fairseq_mm.inference.caption_processor import ImageOrFeatures, get_known_image, is_features
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.processor import Decoded, Example, Processor, read_field
from fairseq_mm.inference.readers import ImageReader

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

    reading_options: Mapping[str, type] = {"batch_size": int, "max_pixels": int}
    num_read = (16, 256)
    has_headings = True
    ranked_by = "images"

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded)
        self.reader = ImageReader(loaded, weights=weights)
        self.rows_per_image: int = loaded.task.rows_per_image

    def is_single(self, inputs: Any) -> bool:
        # a sequence of images, not of sequences
        is_image = isinstance(inputs, (str, bytes, os.PathLike, Image.Image, np.ndarray))
        if is_image or not isinstance(inputs, Iterable):
            return True
        return not all(isinstance(item, (list, tuple)) for item in inputs)

    def from_record(self, record: Mapping[str, Any], folder: str) -> ImageSequence:
        images = read_field(record, "images", list)
        if not all(isinstance(image, str) for image in images if image is not None):
            raise UserError("`images` must be paths, null for a missing one.")
        return [
            None if image in (None, NO_IMAGE) else os.path.join(folder, image) for image in images
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
    ) -> Iterator[Union[Example, UserError]]:
        """Yield the example of each image sequence, or the error of an unreadable sequence.

        The keyword options are ``batch_size`` and ``max_pixels``, as in
        :meth:`.ImageReader.read_features`.
        """
        # all sequences at once, so that the extractor gets full batches; an image of several
        # sequences is read once
        images = [image for sequence in inputs for image in _listed(sequence) if image is not None]
        features_of: dict[Any, Any] = {_identify(image): image for image in images}
        if not all(map(is_features, images)):
            rows_of_images = self.reader.read_features([*features_of.values()], **options)
            features_of = dict(zip(features_of, rows_of_images))
        for position, sequence in enumerate(inputs):
            rows = [
                None if image is None else features_of[_identify(image)]
                for image in _listed(sequence)
            ]
            errors: list[UserError] = []
            for place, (image, features) in enumerate(zip(_listed(sequence), rows), start=1):
                if isinstance(features, UserError):
                    name = image if isinstance(image, (str, os.PathLike)) else f"image {place}"
                    errors.append(UserError(f"{name}: {features}"))
            # a wrong sequence is reported before its unreadable images, and the others go on
            try:
                check_sequence(sequence)
                if errors:
                    yield errors[0]
                    continue
                example = self.build_example(position, rows)
            except UserError as error:
                yield error
            else:
                known = [get_known_image(image) for image in sequence]
                is_known = any(image is not None for image in known)
                yield dataclasses.replace(example, origin=known if is_known else None)

    def build_example(self, position: int, features: Sequence[Optional[np.ndarray]]) -> Example:
        """Build the example of an image sequence from the features of its five images.

        Args:
            position: Position of the sequence in the list of inputs, for messages.
            features: R feature vectors [R, D] of each image; None for a missing image, which
                becomes R vectors of zeros.
        """
        check_sequence(features)
        R, D = self.rows_per_image, self.reader.feature_dim
        for place, rows in enumerate(features, start=1):
            if rows is not None and rows.shape != (R, D):
                raise UserError(
                    f"features of image {place} of image sequence {position} must be "
                    f"[{R}, {D}], as {self.loaded.files[0]} was trained on, but are "
                    f"{list(rows.shape)}."
                )
        x = np.zeros((NUM_IMAGES, R, D), dtype=np.float32)
        # zeros do not identify a missing image: an existing image can have features of zero
        missing = np.ones((NUM_IMAGES, R), dtype=bool)
        for place, rows in enumerate(features):
            if rows is not None:
                x[place], missing[place] = rows, False
        return Example(
            features=x.reshape(NUM_IMAGES * R, D), missing=missing.reshape(NUM_IMAGES * R)
        )

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        line = self.dictionary.string(tokens)
        sentences = detokenize_sentences(line)
        return Decoded(" ".join(sentences), line, sentences)


def _identify(image: ImageOrFeatures) -> Any:
    return image if isinstance(image, (str, os.PathLike)) else id(image)


def _listed(sequence: ImageSequence) -> ImageSequence:
    """Return ``sequence`` if it is a list of images, else an empty tuple."""
    is_list = isinstance(sequence, Sequence) and not isinstance(sequence, (str, bytes))
    return sequence if is_list else ()


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
