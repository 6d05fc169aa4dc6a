"""Prompts -> stories in Python: what ``fairseq-mm tell`` does.

    import fairseq_mm

    teller = fairseq_mm.from_pretrained("checkpoints/conv_story_fusion")
    teller.tell(["The last dragon opens a bakery."])        # ["The oven had been her idea ...", ]

    teller = fairseq_mm.from_pretrained(
        "checkpoints/conv_story_fusion", prompt_model="checkpoints/prompt_lm"
    )
    teller.tell(n=5)                                        # of prompts that it makes up

A checkpoint carries its dictionaries, so nothing else is needed beside it. Fan, Lewis, Dauphin.
Hierarchical Neural Story Generation. ACL 2018. https://arxiv.org/abs/1805.04833, sections 3.1
and 5.3.
"""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional

from fairseq_mm.data.story_text import detokenize_story, tokenize_story_text
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import SEED
from fairseq_mm.inference.text_models import TextModels
from fairseq_mm.inference.text_writer import Telling, TextWriter, preset_with
from fairseq_mm.models._provenance import fingerprint, words_of

PROMPT_TOPK = 10  # section 5.3


class Prompt(NamedTuple):
    """What a story is told of.

    Attributes:
        text: as people read it.
        words: as the model reads it, before unknown ones become ``<unk>``.
        tokens: their indices, the end included.
        unknown: the words that the model does not know.
        num_cut: words that were cut off at the end.
        score: mean log-probability of the tokens, the end included, of a prompt that was made up.
    """

    text: str
    words: list[str]
    tokens: list[int]
    unknown: list[str]
    num_cut: int = 0
    score: Optional[float] = None


class Story(NamedTuple):
    """A story that was told.

    Attributes:
        item: its number, which decided its draws.
        prompt: None of a language model.
        words: as the model wrote them, with ``<newline>``.
        score: mean log-probability of the tokens, the end included.
    """

    item: int
    prompt: Optional[Prompt]
    words: list[str]
    score: float

    @property
    def text(self) -> str:
        """As people read it, without line breaks around it."""
        return detokenize_story(self.words).strip()


class Storyteller:
    """Stories of prompts, or of nothing by a language model of stories.

    Args:
        models: of stories.
        prompt_models: language model that makes up prompts, with the source dictionary of
            ``models``.

    Raises:
        UserError: if the two do not fit together.
    """

    def __init__(self, models: TextModels, prompt_models: Optional[TextModels] = None) -> None:
        if prompt_models is not None:
            check_prompt_models(prompt_models, models)
        self.models = models
        self.prompt_models = prompt_models
        self.writer = TextWriter(models)

    def __repr__(self) -> str:
        files = os.pathsep.join(self.models.files)
        kind = "stories without prompts" if self.models.are_language_models else "stories"
        return f"Storyteller({files!r}: {kind}, {self.models.device})"

    def tell(
        self,
        prompts: Optional[Sequence[str]] = None,
        *,
        n: int = 1,
        preset: str = "paper",
        batch_size: Optional[int] = None,
        truncate: bool = False,
        **options: Any,
    ) -> list[str]:
        """Stories as people read them, line breaks included.

        Args:
            prompts: one story is told of each; None for prompts that the prompt model makes up,
                and for language models.
            n: stories where no prompts are given.
            preset: ``paper``: 150 words, drawn from the 10 most probable at temperature 0.8;
                ``greedy``; ``beam``: of 5.
            batch_size: stories at a time; it changes nothing but the speed.
            truncate: cut prompts that are too long.
            **options: of :class:`Telling`: ``beam``, ``topk``, ``topp``, ``temperature``,
                ``min_words``, ``max_words``, ``no_repeat_ngram``, ``seed``, ``allow_unk``.

        Raises:
            UserError: if a prompt or an option does not fit.
        """
        if isinstance(prompts, str):
            raise UserError("`prompts` must be a list of texts, but is one text.")
        telling = preset_with(preset, **options)
        read: Sequence[Optional[Prompt]]
        if prompts is not None:
            read = [self.read_prompt(text, truncate=truncate) for text in prompts]
        elif self.models.are_language_models:
            read = [None] * n
        else:
            read = self.make_up_prompts(range(n), seed=telling.seed, batch_size=batch_size)
        items = range(len(read))
        return [story.text for story in self.stories(items, read, telling, batch_size=batch_size)]

    def stories(
        self,
        items: Sequence[int],
        prompts: Sequence[Optional[Prompt]],
        telling: Telling,
        *,
        batch_size: Optional[int] = None,
    ) -> Iterator[Story]:
        """
        Args:
            items: a number for each story. Its draws depend on it and the seed alone.
            prompts: of :meth:`read_prompt` or :meth:`make_up_prompts`; None for language models.
            telling: how they are told.
            batch_size: stories at a time; it changes nothing but the speed.

        Yields:
            the stories, in their order.

        Raises:
            UserError: if an option does not fit.
        """
        sources = None
        if not self.models.are_language_models:
            sources = [prompt.tokens for prompt in prompts if prompt is not None]
        texts = self.writer.write(items, telling, sources=sources, batch_size=batch_size)
        for item, prompt, text in zip(items, prompts, texts):
            yield Story(item, prompt, _words(self.writer, text.tokens), text.score)

    def read_prompt(self, text: str, *, truncate: bool = False) -> Prompt:
        """
        Args:
            text: as people write it, or split into words as WritingPrompts is.
            truncate: cut it where the model has no more positions.

        Raises:
            UserError: if it is empty, too long, or has no known word; or the model takes none.
        """
        dictionary = self.models.source_dictionary
        if dictionary is None:
            raise UserError(
                f"{self.models.files[0]}: is a language model, which takes no prompt: give a "
                "number of stories instead (--n)."
            )
        assert self.writer.max_source_words is not None
        words = tokenize_story_text(text)
        shown = f"prompt {_shortened(text)!r}"
        if not words:
            raise UserError("the prompt is empty.")
        limit = self.writer.max_source_words
        num_cut = max(0, len(words) - limit)
        if num_cut and not truncate:
            raise UserError(
                f"{shown}: has {len(words)} words, but the model reads at most {limit}: shorten "
                "it, or let it be cut (--truncate-prompt)."
            )
        words = words[:limit]
        tokens = [dictionary.index(word) for word in words]
        # special symbols that somebody writes are no signs to the model
        tokens = [dictionary.unk() if i < dictionary.nspecial else i for i in tokens]
        unknown = [word for word, i in zip(words, tokens) if i == dictionary.unk()]
        if len(unknown) == len(words):
            raise UserError(
                f"{shown}: none of its words is in the dictionary of {self.models.files[0]}."
            )
        return Prompt(text.strip(), words, [*tokens, dictionary.eos()], unknown, num_cut)

    def make_up_prompts(
        self, items: Sequence[int], *, batch_size: Optional[int] = None, **options: Any
    ) -> list[Prompt]:
        """Prompts by the prompt model.

        Args:
            items: a number for each. Its draws depend on it and the seed alone.
            batch_size: prompts at a time; it changes nothing but the speed.
            **options: of :func:`make_up_prompts`.

        Raises:
            UserError: if there is no prompt model, or an option does not fit.
        """
        if self.prompt_writer is None:
            raise UserError(
                f"{self.models.files[0]}: tells stories of prompts: give some, or a language "
                "model that makes them up (--prompt-model)."
            )
        return make_up_prompts(
            self.prompt_writer,
            items,
            most_words=self.writer.max_source_words,
            batch_size=batch_size,
            **options,
        )

    @cached_property
    def prompt_writer(self) -> Optional[TextWriter]:
        return None if self.prompt_models is None else TextWriter(self.prompt_models)


def make_up_prompts(
    writer: TextWriter,
    items: Sequence[int],
    *,
    seed: int = SEED,
    topk: int = PROMPT_TOPK,
    temperature: float = 1.0,
    most_words: Optional[int] = None,
    batch_size: Optional[int] = None,
) -> list[Prompt]:
    """Prompts by a language model, each until the model ends it (section 5.3).

    Args:
        writer: of prompts.
        items: a number for each.
        seed: of the draws.
        topk: draw from the k most probable words only; 0 for all.
        temperature: above 1 flattens the distribution that is drawn from.
        most_words: longest prompt; by default as many as the model has positions for.
        batch_size: prompts at a time.

    Raises:
        UserError: if an option does not fit.
    """
    limit = min(writer.max_words, most_words or writer.max_words)
    telling = Telling(
        topk=min(topk, len(writer.dictionary) - 1),
        temperature=temperature,
        min_words=1,
        max_words=limit,
        seed=seed,
    )
    prompts = []
    for text in writer.write(items, telling, stream="prompt", batch_size=batch_size):
        words = _words(writer, text.tokens)
        tokens = [*text.tokens, writer.dictionary.eos()]
        prompts.append(Prompt(detokenize_story(words).strip(), words, tokens, [], score=text.score))
    return prompts


def check_language_models(prompt_models: TextModels) -> None:
    """
    Raises:
        UserError: if they cannot make up prompts.
    """
    if not prompt_models.are_language_models:
        raise UserError(
            f"{prompt_models.files[0]}: --arch {prompt_models.architectures[0]} reads a text, but "
            "a prompt model must be a language model (such as --arch gcnn_lm_self_att)."
        )


def check_prompt_models(prompt_models: TextModels, models: TextModels) -> None:
    """
    Raises:
        UserError: if what the prompt models write cannot be read by the story models.
    """
    check_language_models(prompt_models)
    file = models.files[0]
    if models.source_dictionary is None:
        raise UserError(f"{file}: is a language model, which needs no prompt model.")
    written, read = words_of(prompt_models.dictionary), words_of(models.source_dictionary)
    if written != read:
        raise UserError(
            f"{prompt_models.files[0]}: has a dictionary of {len(written)} words (fingerprint "
            f"{fingerprint(written)}), but {file} reads prompts with one of {len(read)} "
            f"(fingerprint {fingerprint(read)}): train the prompt model on prompts that were "
            "binarised with the story model's source dictionary (fairseq-preprocess --srcdict)."
        )


def _words(writer: TextWriter, tokens: list[int]) -> list[str]:
    return [writer.words[token] for token in tokens]


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
