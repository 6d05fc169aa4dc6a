"""Loaded checkpoints ("systems") that answer the queries of the server's clients."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, Union

from fairseq_mm.data.story_text import NUM_IMAGES
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.generator import Generator
from fairseq_mm.inference.processor import Example
from fairseq_mm.inference.progress import Progress
from fairseq_mm.inference.records import (
    build_record,
    compute_digests,
    prompt_fields,
    prompt_story_fields,
    provenance_fields,
    summary_fields,
    visual_story_fields,
)
from fairseq_mm.serving.requests import MAX_BEAM, Limits, Query


class Kind(NamedTuple):
    """Kind of model by its inputs and answers, such as captioning models or image indexes.

    Attributes:
        path: URL path of the API for models of this kind.
        purpose: Sentence for the page about the use of such models.
    """

    path: str
    purpose: str


# the keys are values of Checkpoint.kind, but for `search`: embedding models answer queries with
# the images of an index
KINDS = {
    "captions": Kind("/api/caption", "Describes an image in one sentence."),
    "albums": Kind("/api/tell/images", "Tells a story of five images, a sentence for each."),
    "prompts": Kind("/api/tell/prompt", "Writes a story."),
    "summaries": Kind("/api/summarize", "Summarizes a video by its transcript."),
    "search": Kind("/api/search", "Finds images of a folder by a sentence or by an image."),
}
# number of configs that a system keeps, each for one set of options
_MOST_CONFIGS = 64


# position of each query whose text is incomplete -> function that returns the text so far
Watch = Callable[[Mapping[int, Callable[[], str]]], None]


class System(Protocol):
    """Loaded checkpoint or image index that answers queries.

    Attributes:
        name: Name on the page and in the API.
        kind: Key of ``KINDS``.
        limits: Maximum sizes and times of requests.
        batch_size: Maximum number of queries that are answered together.
        reads_prompt: True if the model writes stories from prompts.
        about: Description in one line.
    """

    name: str
    kind: str
    limits: Limits
    batch_size: int
    reads_prompt: bool
    about: str

    def describe(self) -> dict[str, Any]:
        """Return a description for the page: checkpoint, inputs and options."""

    def answer(
        self, queries: Sequence[Query], watch: Watch
    ) -> Iterator[tuple[int, Union[dict[str, Any], UserError]]]:
        """Yield (index in ``queries``, JSON answer or error) of each query, in any order.

        Only the thread that runs the models may call this method.

        Args:
            queries: Queries with the same options.
            watch: Function that is called at every step of a generation. If it raises an exception,
                the generation ends with it.
        """

    def clean(self, error: UserError) -> UserError:
        """Return the error without paths of this machine in its message."""


class Choice(NamedTuple):
    """Checked options of a query, converted for the model.

    Attributes:
        config: Generation config.
        reading: Keyword arguments of the processor's method ``examples``.
        facts: Fields of the JSON answer about the checkpoint and the options.
    """

    config: Any
    reading: dict[str, Any]
    facts: dict[str, Any]


class TextSystem(System):
    """Generator that answers queries with texts.

    Args:
        name: Name on the page and in the API.
        model: Generator.
        kind: Key of ``KINDS``.
        about: Description of the checkpoint in one line.
        limits: Maximum sizes and times of requests.
        weights_dtype: Type of the weights of linear layers, see :class:`.GenerationConfig`.
    """

    # only some classes of processors have a reader
    processor: Any

    def __init__(
        self,
        name: str,
        model: Generator,
        kind: str,
        *,
        about: str,
        limits: Limits,
        weights_dtype: str = "float32",
    ) -> None:
        self.name = name
        self.model = model
        self.kind = kind
        self.processor = model.processor
        self.about = about
        self.limits = limits
        self.weights_dtype = weights_dtype
        self.reads_prompt = kind == "prompts" and not model.loaded.are_language_models
        self.reads_video = kind == "summaries" and self.processor.reader.reads_video
        self.batch_size: int = self.processor.batch_sizes[model.device.type != "cpu"]
        if self.reads_video and limits.frames is not None:
            reader = self.processor.reader
            reader.max_frames = min(reader.max_frames, limits.frames)
        self._digest = compute_digests(model.files)
        self._choices: dict[str, Choice] = {}
        # a wrong default is reported when the server starts
        self._default = self.choose({})

    def describe(self) -> dict[str, Any]:
        path, purpose = KINDS[self.kind]
        if self.reads_prompt:
            purpose = "Writes the story of a prompt."
        elif self.kind == "summaries" and not self.reads_video:
            purpose = "Summarizes a transcript."
        identity = self.processor.extractor_identity or {}
        return {
            "name": self.name,
            "kind": self.kind,
            "path": path,
            "purpose": purpose,
            "about": self.about,
            # paths of this machine are nobody's business
            "files": [os.path.basename(file) for file in self.model.files],
            "checkpoint": self._digest,
            "extractor": identity.get("extractor"),
            "reads_prompt": self.reads_prompt,
            "reads_video": self.reads_video,
            "feature_dim": self.model.loaded.feature_dim,
            "vocabulary": len(self.model.dictionary),
            "presets": list(self.model.task.generation_presets),
            "options": self._default.facts["options"],
        }

    def choose(self, options: Mapping[str, Any]) -> Choice:
        """Check the options of a query, and build their generation config.

        Args:
            options: Fields of :class:`.GenerationConfig`, constraints of the task, ``preset`` and,
                for summaries, ``tokenizer``.
        """
        key = json.dumps(options, sort_keys=True)
        if key not in self._choices:
            if len(self._choices) >= _MOST_CONFIGS:
                self._choices.clear()
            self._choices[key] = self._build_choice(dict(options))
        return self._choices[key]

    def _build_choice(self, options: dict[str, Any]) -> Choice:
        reading: dict[str, Any] = {}
        if self.kind == "summaries":
            tokenizer = options.pop("tokenizer", self.processor.encoder.tokenizer)
            reading["tokenizer"] = typed_option("tokenizer", tokenizer, str)
            # refuses the name of an unknown tokenizer before a transcript is read
            self.processor.encoder.encode(None, tokenizer=tokenizer)
        dtype = options.setdefault("weights_dtype", self.weights_dtype)
        if dtype != self.weights_dtype:
            raise UserError(
                f"`weights_dtype` must be {self.weights_dtype}, as the server was started, but is "
                f"{dtype!r}."
            )
        config = self.model.config(**options)
        # `max_len_a` makes texts longer with the length of their source
        most = {"beam": MAX_BEAM, "max_len_a": 0}
        if self.kind == "albums":
            most["max_words_per_sentence"] = self.limits.words // NUM_IMAGES
        else:
            most["max_len_b"] = self.limits.words
        values = config.to_dict()
        lower: dict[str, Any] = {
            x: n for x, n in most.items() if x not in options and values[x] > n
        }
        if lower:
            config = self.model.config(**options, **lower)
        for name, limit in most.items():
            value = config.to_dict()[name]
            if value > limit:
                raise UserError(f"`{name}` must be at most {limit} on this server, but is {value}.")
        facts = provenance_fields(self.model, config, checkpoint=self._digest)
        facts["options"].update(reading)
        return Choice(config, reading, facts)

    def answer(
        self, queries: Sequence[Query], watch: Watch
    ) -> Iterator[tuple[int, Union[dict[str, Any], UserError]]]:
        choice = self.choose(queries[0].options)
        positions, examples, fields = [], [], []
        for position, result in enumerate(self.read(queries, choice)):
            if isinstance(result, UserError):
                yield position, result
                continue
            positions.append(position)
            examples.append(result[0])
            fields.append(result[1])
        if not examples:
            return

        def watch_all(progress: Progress) -> None:
            texts = {positions[x]: partial(_text_so_far, progress, x) for x in progress.positions}
            watch(texts)

        texts = self.model.stream(
            examples,
            choice.config,
            indices=[queries[position].index for position in positions],
            batch_size=self.batch_size,
            watch=watch_all,
        )
        for position, about, hypotheses in zip(positions, fields, texts):
            if not all(math.isfinite(hypothesis.score) for hypothesis in hypotheses):
                # JSON has no number for it
                yield position, UserError("a score is not finite: an option is too large.")
                continue
            yield position, self.build_record(queries[position], choice, about, hypotheses)

    def read(
        self, queries: Sequence[Query], choice: Choice
    ) -> Iterator[Union[tuple[Example, dict[str, Any]], UserError]]:
        """Yield, for each query, its example and fields of its JSON answer; or an input error."""
        if self.kind == "summaries":
            yield from (self._read_video(query, choice) for query in queries)
            return
        inputs = [query.inputs for query in queries]
        options = {"max_pixels": self.limits.pixels} if self.kind != "prompts" else {}
        for query, example in zip(queries, self.processor.examples(inputs, **options)):
            if isinstance(example, UserError):
                yield self.clean(example)
            elif self.kind == "albums":
                yield example, {"item": query.index, "images": query.images}
            elif self.kind == "prompts" and example.origin is not None:
                yield example, prompt_fields(example.origin)
            else:
                yield example, {}

    def _read_video(
        self, query: Query, choice: Choice
    ) -> Union[tuple[Example, dict[str, Any]], UserError]:
        value, is_cut = dict(query.inputs), False
        reader = self.processor.reader
        video = value.get("video")
        is_file = hasattr(video, "read")
        try:
            if self.reads_video and is_file:
                value["video"], is_cut, _ = reader.read_video(video, max_pixels=self.limits.pixels)
            (example,) = self.processor.examples([value], **choice.reading)
        except UserError as error:
            return self.clean(error)
        if isinstance(example, UserError):
            return self.clean(example)
        if video is not None and not is_file:
            is_cut = len(video) > reader.max_frames
        return example, summary_fields(example, is_cut=is_cut)

    def clean(self, error: UserError) -> UserError:
        # the name of the system in place of the paths of its checkpoints
        message = str(error)
        for file in self.model.files:
            message = message.replace(file, self.name)
        return UserError(message)

    def build_record(
        self, query: Query, choice: Choice, fields: Mapping[str, Any], hypotheses: Sequence[Any]
    ) -> dict[str, Any]:
        """Build the JSON answer of a query, with the fields that the commands write.

        Args:
            query: Query with the id of the answer.
            choice: Checked options of the query.
            fields: Fields that :meth:`read` has returned for the query.
            hypotheses: Hypotheses for the query, best first.
        """
        best = hypotheses[0]
        others = {**fields, "system": self.name}
        if self.kind == "albums":
            others.update(visual_story_fields(best))
        elif self.kind == "prompts":
            others.update(prompt_story_fields(best))
        # as `tell` does, the story of an album is written as tokens with its separators
        is_album = self.kind == "albums"
        facts = {**others, **choice.facts}
        return build_record(query.name, hypotheses, facts, as_line=is_album)


def _text_so_far(progress: Progress, position: int) -> str:
    decoded = progress.decode(position)
    return "\n".join(decoded.sentences) if decoded.sentences else decoded.text
