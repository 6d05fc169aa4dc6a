"""Defines the base class of processors, which turn inputs into examples, and tokens into text.

A task names its processor (``GeneratesText.processor``). Processors differ between kinds of input
(images, prompts or videos); :mod:`.generator` is the same for all kinds.
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
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import LoadedModels

Input = TypeVar("Input")


@dataclass(frozen=True)
class Example:
    """Input in the form that a task's dataset returns: features, source tokens, or both.

    Args:
        features: [N, D] features of the image, the image sequence or the video; None for no
            features.
        missing: [N] bool, True for the zero vectors of missing images; None if none is missing.
        source: [s] token indices of the source text; None for no source text. Prompts end with
            ``</s>``; transcripts have the start and end symbols that ``--source-ends`` sets.
        origin: Image, image sequence, prompt or transcript that the example was made from; becomes
            :attr:`.Hypothesis.source`.
        oov_tokens: Out-of-vocabulary words that ``<unk-0>``, ``<unk-1>``, ... in ``source`` stand
            for.
    """

    features: Optional[np.ndarray] = None
    missing: Optional[np.ndarray] = None
    source: Optional[torch.Tensor] = None
    origin: Optional[Any] = None
    oov_tokens: Optional[list[str]] = None


class Decoded(NamedTuple):
    """Hypothesis as text.

    Attributes:
        text: Detokenized text.
        line: Tokens, separated by spaces, as ``fairseq-generate`` prints them.
        sentences: Detokenized sentences, one per image; empty for other texts.
    """

    text: str
    line: str
    sentences: Sequence[str] = ()


def read_field(record: Mapping[str, Any], name: str, kind: type = str) -> Any:
    """Return the field ``name`` of the JSON object ``record``; its type must be ``kind``."""
    value = record.get(name)
    if not isinstance(value, kind):
        found = "is missing" if value is None else f"is {type(value).__name__}"
        raise UserError(f"`{name}` must be {_KINDS[kind]}, but {found}.")
    return value


def positive_option(name: str, value: Any) -> int:
    """Return the value of an option as an int; it must be 1 or more."""
    number: int = typed_option(name, value, int)
    if number < 1:
        raise UserError(f"`{name}` must be 1 or more, but is {number}.")
    return number


_KINDS: dict[type, str] = {str: "text", list: "a list"}


class Processor(Generic[Input]):
    """Base class of processors, which turn raw inputs into examples, and tokens into text.

    Args:
        loaded: Models that read the examples.

    Attributes:
        batch_sizes: Two default numbers of inputs per batch: on a CPU, and on other devices.
        reading_options: Type of each option of :meth:`examples`, by name.
    """

    batch_sizes = (32, 128)
    reading_options: Mapping[str, type] = {}

    def __init__(self, loaded: LoadedModels) -> None:
        self.loaded = loaded
        self.task = loaded.task
        self.models = loaded.models
        self.device = loaded.device
        self.dictionary: Any = loaded.task.target_dictionary
        # models that read no text have no source dictionary
        source = getattr(loaded.task, "source_dictionary", None) or self.dictionary
        self.source_pad: int = source.pad()

    @property
    def extractor_identity(self) -> Optional[dict[str, Any]]:
        """Attributes that identify the extractor of the training features; None for models that
        read no features.
        """
        reader = getattr(self, "reader", None)
        reads = getattr(reader, "reads_video", reader is not None)
        return reader.identity if reads else None

    def is_single(self, inputs: Any) -> bool:
        """Return True if the argument is one input, False if it is a list of inputs."""
        raise NotImplementedError

    def examples(
        self, inputs: Sequence[Input], **options: Any
    ) -> Iterator[Union[Example, UserError]]:
        """Yield the example of each input, or the error of an unreadable input.

        Args:
            inputs: Raw inputs, such as paths of images.
            **options: Options for reading the inputs; each subclass names its own in
                ``reading_options``.
        """
        raise NotImplementedError

    def from_record(self, record: Mapping[str, Any], folder: str) -> Input:
        """Return the raw input that a JSON object of ``fairseq-mm generate`` describes.

        Args:
            record: JSON object without its ``id``.
            folder: Folder that paths in the object are relative to.
        """
        raise NotImplementedError

    def describe_input(self, value: Any, position: int) -> str:
        """Return the name that error messages give to ``value``, the input at ``position``."""
        if isinstance(value, (str, os.PathLike)):
            return os.fspath(value)
        return f"{self.task.input_names[0]} {position}"

    def batches(self, examples: Sequence[Example], batch_size: int) -> Iterator[list[int]]:
        """Divide examples into batches; yield the positions in ``examples`` of each batch."""
        for start in range(0, len(examples), batch_size):
            yield list(range(start, min(start + batch_size, len(examples))))

    def sample(
        self,
        examples: Sequence[Example],
        indices: Sequence[int],
        targets: Optional[Sequence[torch.Tensor]] = None,
    ) -> dict[str, Any]:
        """Collate examples to a batch with the keys of the dataset's batches.

        Collating may change the order of the examples: ``item`` in the batch has the index in
        ``examples`` of each element.

        Args:
            indices: Index of each input; when sampling, the random numbers of an input depend on
                its index.
            targets: Token indices of each text to score; None to generate texts.
        """
        rows = [
            {
                "id": index,
                "item": position,
                "features": example.features,
                "missing": example.missing,
                "source": example.source,
                "target": None if targets is None else targets[position],
                # the dataset marks the first line of each item, because others are not generated
                "is_first": True,
            }
            for position, (index, example) in enumerate(zip(indices, examples))
        ]
        # 0 is a valid index, so None alone stands for fairseq's start symbol, </s>
        start = getattr(self.task, "start_index", None)
        start = self.dictionary.eos() if start is None else start
        return collate(rows, pad=self.dictionary.pad(), start=start, source_pad=self.source_pad)

    def encode(self, text: str) -> torch.Tensor:
        """Return a text as indices [t] in the target dictionary, with ``</s>``."""
        # not fairseq's encode_line: it would add unknown words to the dictionary
        end = torch.tensor([self.dictionary.eos()])
        return torch.cat([encode_words(self.dictionary, self.tokenize(text)), end])

    def tokenize(self, text: str) -> str:
        """Tokenize a text for the target dictionary; return its tokens separated by spaces."""
        return text

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        """Convert generated token indices to text; ``example`` is the input of the generation."""
        line = self.dictionary.string(tokens)
        return Decoded(line, line)
