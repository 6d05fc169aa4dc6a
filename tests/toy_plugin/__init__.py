"""A task of somebody else's, given to fairseq as ``--user-dir``: colours -> their names.

Its data folder is that of captions, with three numbers in the place of an image's features. What
stands here is all that training, validation, ``fairseq-generate`` and the commands of
``fairseq-mm`` need to know of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from fairseq.tasks import register_task

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference.processor import Example, Processor, read_field
from fairseq_mm.tasks.multimodal_captioning import (
    MultimodalCaptioningConfig,
    MultimodalCaptioningTask,
)

fairseq_mm.register()

Colour = Sequence[float]


class ColourProcessor(Processor[Colour]):
    """Colours as red, green and blue between 0 and 1."""

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs[0], (int, float))

    def from_record(self, record: Mapping[str, Any], folder: str) -> Colour:
        return read_field(record, "colour", list)

    def examples(
        self, inputs: Sequence[Colour], **options: Any
    ) -> Iterator[Union[Example, UserError]]:
        for colour in inputs:
            if len(colour) != 3 or not all(0 <= x <= 1 for x in colour):
                yield UserError(f"a colour must be three numbers from 0 to 1, but is {colour}.")
            else:
                yield Example(features=np.array([colour], dtype=np.float32))


@dataclass
class ColourNamingConfig(MultimodalCaptioningConfig):
    """Nothing more than captions have."""


@register_task("toy_colour_naming", dataclass=ColourNamingConfig)
class ColourNamingTask(MultimodalCaptioningTask):
    """Names of colours."""

    command = "generate"
    input_names = ("colour", "colours")
    text_names = ("name", "names")
    processor = ColourProcessor
    generation_defaults = {"beam": 2, "max_len_a": 0, "max_len_b": 6}  # noqa: RUF012
    generation_presets = {"greedy": {"beam": 1}}  # noqa: RUF012
