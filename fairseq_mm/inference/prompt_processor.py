"""Turns prompts into examples of the task ``hierarchical_story``.

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018.
https://arxiv.org/abs/1805.04833, sections 3.1 and 5.3.
"""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import torch

from fairseq_mm.data.story_text import detokenize_story, tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.processor import Decoded, Example, Processor, read_field

_UNKNOWN = "words that are not in the vocabulary, read as <unk>"


@dataclass(frozen=True)
class Prompt:
    """Prompt that was read or generated.

    Args:
        text: Detokenized prompt.
        words: Tokenized words, before unknown words become ``<unk>``.
        tokens: Token indices with ``</s>``.
        unknown: The prompt's words that are not in the vocabulary.
        num_truncated: Number of words that were cut off the end.
        score: Score of a generated prompt, see :class:`.Hypothesis`; None if the prompt was read.
    """

    text: str
    words: list[str]
    tokens: list[int]
    unknown: list[str] = field(default_factory=list)
    num_truncated: int = 0
    score: Optional[float] = None


class PromptProcessor(Processor[Union[str, Prompt, None]]):
    """Processor that turns prompts into examples for models of stories.

    A prompt is a string, or a :class:`Prompt`. Language models read no prompt: their input is None.

    Attributes:
        max_source_words: Maximum number of words of a prompt; None for language models.
    """

    reading_options: Mapping[str, type] = {"truncate": bool}
    record_fields = ("prompt",)
    # prompts are read quickly, and a long list keeps the batches full
    num_read = (1000, 1000)
    has_headings = True

    def __init__(self, loaded: LoadedModels) -> None:
        super().__init__(loaded)
        self.max_source_words: Optional[int] = None
        if not loaded.are_language_models:
            # a text's end takes a position
            self.max_source_words = min(m.max_positions()[0] for m in loaded.models) - 1
            self.input_fields = ("prompt",)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, (str, Prompt))

    def example(self, value: Any, **options: Any) -> Example:
        """Return the example of a prompt; for the option ``truncate`` see :meth:`read_prompt`."""
        if value is None and self.max_source_words is None:
            # a language model reads nothing, but fairseq's generator counts texts by the source
            return Example(source=torch.tensor([self.dictionary.eos()]))
        prompt = value if isinstance(value, Prompt) else self.read_prompt(value, **options)
        fields: dict[str, Any] = {"prompt": prompt.text, "prompt_tokens": " ".join(prompt.words)}
        if prompt.score is None:
            fields.update(unknown_words=prompt.unknown, prompt_words_cut=prompt.num_truncated)
        else:
            fields["prompt_score"] = round(prompt.score, 4)
        words = " ".join(dict.fromkeys(prompt.unknown))
        return Example(
            source=torch.tensor(prompt.tokens),
            origin=prompt,
            fields=fields,
            remarks={_UNKNOWN: words} if words else {},
        )

    def from_record(self, record: Mapping[str, Any], folder: str) -> Optional[str]:
        return None if self.max_source_words is None else read_field(record, "prompt")

    def describe_input(self, value: Any, position: int) -> str:
        return f"prompt {position}"

    def to_record(self, record: Mapping[str, Any], example: Example, best: Any) -> dict[str, Any]:
        return {"tokens": best.line, "words": len(best.line.split()), **example.fields}

    def read_prompt(self, text: str, *, truncate: bool = False) -> Prompt:
        """Convert the text of a prompt to words and token indices.

        Args:
            truncate: True to cut off words for which the models have no positions; False to refuse
                such a prompt.
        """
        file = self.loaded.files[0]
        if self.max_source_words is None:
            raise UserError(f"{file}: is a language model, which takes no prompt: give a number.")
        text = typed_option("prompt", text, str)
        dictionary, limit = self.task.source_dictionary, self.max_source_words
        words = tokenize_story_text(text)
        shown = f"prompt {textwrap.shorten(text, 60, placeholder='...')!r}"
        num_truncated = max(0, len(words) - limit)
        if num_truncated and not truncate:
            raise UserError(
                f"{shown}: has {len(words)} words, but the model reads at most {limit}: shorten it."
            )
        words = words[:limit]
        tokens = [dictionary.index(word) for word in words]
        # if somebody writes "<pad>" or "</s>", it is an unknown word, not the special symbol
        tokens = [dictionary.unk() if i < dictionary.nspecial else i for i in tokens]
        unknown = [word for word, i in zip(words, tokens) if i == dictionary.unk()]
        if len(unknown) == len(words):
            raise UserError(f"{shown}: none of its words is in the vocabulary of {file}.")
        return Prompt(text.strip(), words, [*tokens, dictionary.eos()], unknown, num_truncated)

    def batches(self, examples: Sequence[Any], batch_size: int) -> Iterator[list[int]]:
        """Divide examples into batches; yield the positions in ``examples`` of each batch.

        If a model does not mask padding, all sources of a batch have the same length.
        """
        # a model that reads the padding would tell another story in another batch
        groups = [list(range(len(examples)))]
        # models of fairseq do not say whether they mask the padding
        masks_padding = all(
            getattr(model.decoder, "masks_padding", False)
            and getattr(model.decoder, "frozen_masks_padding", True)
            for model in self.models
        )
        if not self.loaded.are_language_models and not masks_padding:
            by_length: dict[int, list[int]] = {}
            for position, example in enumerate(examples):
                by_length.setdefault(len(example.source), []).append(position)
            groups = list(by_length.values())
        for positions in groups:
            for start in range(0, len(positions), batch_size):
                yield positions[start : start + batch_size]

    def tokenize(self, text: str) -> str:
        return " ".join(tokenize_story_text(text))

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        symbols = self.dictionary.symbols
        words = [symbols[token] for token in tokens.tolist()[:-1]]
        return Decoded(detokenize_story(words).strip(), " ".join(words))
