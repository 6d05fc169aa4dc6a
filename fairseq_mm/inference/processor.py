"""Raw inputs -> the examples of a task's data set, and generated tokens -> text.

A task names its processor (``GeneratesText.processor``). The engine, :mod:`.generator`, knows
nothing of images, prompts or videos.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Optional, TypeVar, Union

import numpy as np
import torch

from fairseq_mm.data.collate import collate
from fairseq_mm.data.multimodal_dataset import encode_words
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import LoadedModels

Input = TypeVar("Input")


@dataclass(frozen=True)
class Example:
    """An input as the models read it, in the form of the task's data set.

    Args:
        features: ``[rows, D]`` of the image, the image sequence or the video; None where there is
            none.
        missing: ``[rows]`` bool, True at rows of zeros that stand for missing images.
        source: ``[s]`` token indices of the source text, ends included.
        origin: what the source text was made from, for the hypothesis.
        oov_tokens: words that indexed OOV tokens of the source stand for.
    """

    features: Optional[np.ndarray] = None
    missing: Optional[np.ndarray] = None
    source: Optional[torch.Tensor] = None
    origin: Optional[Any] = None
    oov_tokens: Optional[list[str]] = None


class Decoded(NamedTuple):
    """A hypothesis as text.

    Attributes:
        text: detokenised.
        line: its tokens, separated by spaces, as ``fairseq-generate`` prints them.
        sentences: detokenised, of texts with a sentence for each image; else empty.
    """

    text: str
    line: str
    sentences: Sequence[str] = ()


def field_of(record: Mapping[str, Any], name: str, kind: type = str) -> Any:
    """A field of a record.

    Raises:
        UserError: if it is missing, or of another type.
    """
    value = record.get(name)
    if not isinstance(value, kind):
        found = "is missing" if value is None else f"is {type(value).__name__}"
        raise UserError(f"`{name}` must be {_KINDS[kind]}, but {found}.")
    return value


_KINDS: dict[type, str] = {str: "text", list: "a list"}


class Processor(Generic[Input]):
    """Base of the processors.

    Args:
        loaded: the models.

    Attributes:
        batch_sizes: inputs of a generation batch on a CPU and elsewhere.
        reading_options: Names and types of the options of :meth:`examples`.
    """

    batch_sizes = (32, 128)
    reading_options: Mapping[str, type] = {}

    def __init__(self, loaded: LoadedModels) -> None:
        self.loaded = loaded
        self.task = loaded.task
        self.models = loaded.models
        self.device = loaded.device
        self.dictionary: Any = loaded.task.target_dictionary

    @property
    def extractor_identity(self) -> Optional[dict[str, Any]]:
        """What made the features that the models were trained on, for records; None where they
        read none."""
        reader = getattr(self, "reader", None)
        reads = getattr(reader, "reads_video", reader is not None)
        return reader.identity if reads else None

    def is_single(self, inputs: Any) -> bool:
        """Whether this is one input, not a list of them."""
        raise NotImplementedError

    def examples(
        self, inputs: Sequence[Input], **options: Any
    ) -> Iterator[Union[Example, UserError]]:
        """The example of each input, or the reason why it cannot be read.

        Args:
            inputs: as users give them.
            **options: of reading, a processor's own.
        """
        raise NotImplementedError

    def from_record(self, record: Mapping[str, Any], folder: str) -> Input:
        """The input that a JSON object describes, as ``fairseq-mm generate`` reads it a line.

        Args:
            record: the object, without its ``id``.
            folder: paths are relative to it.

        Raises:
            UserError: if a field is missing, or of another type.
        """
        raise NotImplementedError

    def name_of(self, value: Any, position: int) -> str:
        """What messages call an input."""
        if isinstance(value, (str, os.PathLike)):
            return os.fspath(value)
        return f"{self.task.input_names[0]} {position}"

    def batches(self, examples: Sequence[Example], batch_size: int) -> Iterator[list[int]]:
        """Positions of the examples of each batch; together they are all, each once."""
        for start in range(0, len(examples), batch_size):
            yield list(range(start, min(start + batch_size, len(examples))))

    def sample(
        self,
        examples: Sequence[Example],
        indices: Sequence[int],
        targets: Optional[Sequence[torch.Tensor]] = None,
    ) -> dict[str, Any]:
        """A batch like the data set's, on the models' device; ``item`` has the position of each
        example in ``examples``.

        Args:
            examples: of the batch.
            indices: of the inputs, on which draws depend.
            targets: tokens of texts that are scored; None where texts are generated.
        """
        rows = [
            {
                "id": index,
                "item": position,
                "features": example.features,
                "missing": example.missing,
                "source": example.source,
                "target": None if targets is None else targets[position],
                "is_first": True,
            }
            for position, (index, example) in enumerate(zip(indices, examples))
        ]
        source = getattr(self.task, "source_dictionary", None) or self.dictionary
        start = getattr(self.task, "start_index", None)
        start = self.dictionary.eos() if start is None else start
        return collate(rows, pad=self.dictionary.pad(), start=start, source_pad=source.pad())

    def encode(self, text: str) -> torch.Tensor:
        """``[t]`` target tokens of a text, ``</s>`` included.

        Raises:
            UserError: if a word is not in the vocabulary.
        """
        end = torch.tensor([self.dictionary.eos()])
        return torch.cat([encode_words(self.dictionary, self.tokenize(text)), end])

    def tokenize(self, text: str) -> str:
        """Tokens of a target text, separated by spaces."""
        return text

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        """A hypothesis as text."""
        line = self.dictionary.string(tokens)
        return Decoded(line, line)
