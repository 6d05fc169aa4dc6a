"""Defines the base class of processors, which turn inputs into examples, and tokens into text.

A task names its processor (``GeneratesText.processor``). Processors differ between kinds of input
(images, prompts or videos); :mod:`.generator` is the same for all kinds.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
        fields: Facts about the input for its JSON record, such as the number of frames.
        remarks: Remarks for the user, such as a truncation; each with details or an empty text.
        images: Images of the input for a page.
    """

    features: Optional[np.ndarray] = None
    missing: Optional[np.ndarray] = None
    source: Optional[torch.Tensor] = None
    origin: Optional[Any] = None
    oov_tokens: Optional[list[str]] = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[Any] = ()


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


_KINDS: dict[type, str] = {str: "text", list: "a list"}


class Processor(Generic[Input]):
    """Base class of processors, which turn raw inputs into examples, and tokens into text.

    Args:
        loaded: Models that read the examples.

    Attributes:
        batch_sizes: Two default numbers of inputs per batch: on a CPU, and on other devices.
        reading_options: Type of each option of :meth:`examples`, by name.
        record_fields: Fields of a split's records that the models read.
        input_fields: Fields of which a line of ``fairseq-mm generate`` has at least one; empty if
            the models read nothing.
        num_read: Number of inputs that the commands read at a time from files, and from a feature
            store.
        has_headings: True if the commands print a heading above a text, False if they print the
            text in the line of its id.
        ranked_by: Name of the inputs that ``--best-by ranking`` compares, in JSON records.
        extractor_identity: Attributes that identify the extractor of the training features; None
            for models that read no features. Otherwise there is also an attribute ``reader``.
    """

    batch_sizes = (32, 128)
    reading_options: Mapping[str, type] = {}
    record_fields: tuple[str, ...] = ()
    input_fields: tuple[str, ...] = ()
    num_read = (100, 100)
    has_headings = False
    ranked_by = "prompt"
    extractor_identity: Optional[dict[str, Any]] = None

    def __init__(self, loaded: LoadedModels) -> None:
        self.loaded = loaded
        self.task = loaded.task
        self.models = loaded.models
        self.device = loaded.device
        self.dictionary: Any = loaded.task.target_dictionary
        # models that read no text have no source dictionary
        source = getattr(loaded.task, "source_dictionary", None) or self.dictionary
        self.source_pad: int = source.pad()

    def is_single(self, inputs: Any) -> bool:
        """Return True if the argument is one input, False if it is a list of inputs."""
        raise NotImplementedError

    def examples(
        self, inputs: Sequence[Input], **options: Any
    ) -> Iterable[Union[Example, UserError]]:
        """Return the example of each input, or the error of an unreadable input.

        Args:
            inputs: Raw inputs, such as paths of images.
            **options: Options for reading the inputs; each subclass names its own in
                ``reading_options``.
        """
        examples: list[Union[Example, UserError]] = []
        for value in inputs:
            try:
                examples.append(self.example(value, **options))
            except UserError as error:  # not raised: the other inputs can still be read
                examples.append(error)
        return examples

    def example(self, value: Any, **options: Any) -> Example:
        """Return the example of one input; raise UserError if it cannot be read."""
        raise NotImplementedError

    def from_record(self, record: Mapping[str, Any], folder: str) -> Input:
        """Return the raw input that a record of ``fairseq-mm generate`` describes.

        Args:
            record: JSON object.
            folder: Folder that paths in the object are relative to.
        """
        raise NotImplementedError

    def list_files(self, paths: Sequence[str]) -> list[tuple[dict[str, Any], Optional[UserError]]]:
        """Return a record for each input in the files and folders that a command line names.

        A record of a path that cannot be read has only an ``id``, and comes with the error.
        """
        raise UserError(f"{paths[0]}: this model reads JSON lines (FILE.jsonl, or -).")

    def get_stored_keys(self, record: dict[str, Any]) -> list[Optional[str]]:
        """Return the keys in the feature store of a record's images or video.

        None represents a missing image.
        """
        return [record["id"]]

    def from_features(self, record: Mapping[str, Any], folder: str, features: list[Any]) -> Input:
        """Return the raw input of a record with ``features`` [N, D] from a feature store."""
        return features[0]

    def get_id(self, record: Mapping[str, Any], number: int) -> str:
        """Return the id of the record with the index ``number`` if the record names none."""
        return str(number)

    def describe_reading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of :meth:`examples` that JSON records name."""
        return {}

    def to_record(self, record: Mapping[str, Any], example: Example, best: Any) -> dict[str, Any]:
        """Return fields of an output record that are specific to the task.

        Args:
            record: Input record of ``example``.
            best: Best hypothesis of ``example``.
        """
        return dict(example.fields)

    def to_entry(self, hypothesis: Any) -> dict[str, Any]:
        """Return the fields of one hypothesis in a JSON record."""
        utility = hypothesis.utility
        entry = {"hypothesis": hypothesis.text, "score": round(hypothesis.score, 4)}
        return entry if utility is None else {**entry, "utility": round(utility, 4)}

    def to_text(self, hypothesis: Any) -> str:
        """Return a hypothesis as the commands print it."""
        return hypothesis.text

    def describe_input(self, value: Any, position: int) -> str:
        """Return the name in error messages of ``value``, the input at ``position``."""
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
