"""Models of text -> texts: drawn word by word or searched for, through fairseq's generator."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
from fairseq.data import data_utils

from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import PROMPT_STORIES, SEED
from fairseq_mm.generation.task import tokens_never_generated
from fairseq_mm.inference.text_models import TextModels

STREAMS = ("story", "prompt")


@dataclass(frozen=True)
class Telling:
    """How a text is generated.

    Args:
        beam: width of the beam, 1 is greedy; 0 draws the words.
        topk: draw from the k most probable words only; 0 for all.
        topp: draw from the most probable words that have this share of the probability; 1 for all.
        temperature: above 1 flattens the distribution that is drawn from or searched.
        min_words: shortest text; the model cannot end it before.
        max_words: longest text; it is cut there. ``<newline>`` counts as a word.
        no_repeat_ngram: no sequence of so many words occurs twice; 0 allows it.
        seed: of the draws. Each text's depend on the seed and its number alone.
        allow_unk: generate ``<unk>`` as well.

    Raises:
        UserError: if a value is out of its range, or ``topk`` or ``topp`` is given with a beam.
    """

    beam: int = 0
    topk: int = 0
    topp: float = 1.0
    temperature: float = PROMPT_STORIES["temperature"]
    min_words: int = PROMPT_STORIES["min_len"]
    max_words: int = PROMPT_STORIES["max_len_b"]
    no_repeat_ngram: int = PROMPT_STORIES["no_repeat_ngram_size"]
    seed: int = SEED
    allow_unk: bool = False

    def __post_init__(self) -> None:
        for name in ("beam", "topk", "no_repeat_ngram", "seed"):
            if getattr(self, name) < 0:
                raise UserError(
                    f"`{name}` must be 0 or more, but is {getattr(self, name)} instead."
                )
        if not 0 < self.topp <= 1:
            raise UserError(f"`topp` must be above 0 and at most 1, but is {self.topp} instead.")
        if not 0.001 <= self.temperature < float("inf"):
            raise UserError(
                f"`temperature` must be 0.001 or more, but is {self.temperature} instead; the "
                "preset greedy takes the most probable words."
            )
        if not 1 <= self.min_words <= self.max_words:
            raise UserError(
                f"`min_words` must be from 1 to `max_words` ({self.max_words}), but is "
                f"{self.min_words} instead."
            )
        if self.beam and (self.topk or self.topp < 1):
            name = "topk" if self.topk else "topp"
            raise UserError(
                f"`{name}` is {getattr(self, name)}, but a beam ({self.beam}) draws no words."
            )

    @property
    def draws(self) -> bool:
        return self.beam == 0


PRESETS = {
    # Fan et al. 2018, section 5.3, with the temperature of the released recipe
    "paper": Telling(topk=10, temperature=0.8),
    "greedy": Telling(beam=1),
    "beam": Telling(beam=PROMPT_STORIES["beam"]),
}


def preset_with(name: str, presets: Mapping[str, Any] = PRESETS, **changes: Any) -> Any:
    """One of the presets with some values changed.

    A new ``min_words`` or ``max_words`` alone takes the other along where it must.

    Args:
        name: of the preset.
        presets: all of a kind.
        **changes: fields with new values.

    Raises:
        UserError: if there is no such preset or value, or it is out of its range.
    """
    if name not in presets:
        raise UserError(f"`preset` must be one of {', '.join(presets)}, but is {name!r} instead.")
    base = presets[name]
    names = [field.name for field in dataclasses.fields(base)]
    for key in changes:
        if key not in names:
            raise UserError(f"`{key}` is no option of telling; they are {', '.join(names)}.")
    if "min_words" in changes:
        changes.setdefault("max_words", max(base.max_words, changes["min_words"]))
    elif "max_words" in changes:
        changes["min_words"] = min(base.min_words, changes["max_words"])
    return dataclasses.replace(base, **changes)


class Text(NamedTuple):
    """What a model wrote.

    Attributes:
        tokens: indices of its words, without the end.
        score: mean log-probability of its tokens at the temperature, the end included, as
            fairseq computes it; where a text was cut, the end is not the most probable token.
    """

    tokens: list[int]
    score: float


class TextWriter:
    """Writes texts with one model or an ensemble, whose probabilities are averaged.

    Args:
        models: are prepared for inference here, after which they cannot be trained.

    Raises:
        UserError: if the training of a model has diverged.
    """

    def __init__(self, models: TextModels) -> None:
        self.models = models
        for file, model in zip(models.files, models.models):
            if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
                raise UserError(
                    f"{file}: has weights that are no numbers: its training has diverged; take an "
                    "earlier checkpoint."
                )
            model.make_generation_fast_()
        self.dictionary = models.dictionary
        self.words: list[str] = models.dictionary.symbols
        # a text's end takes a position
        self.max_words = min(model.max_decoder_positions() for model in models.models) - 1
        self.max_source_words: Optional[int] = None
        if not models.are_language_models:
            self.max_source_words = min(m.max_positions()[0] for m in models.models) - 1

    def check(self, telling: Telling) -> None:
        """
        Raises:
            UserError: if the models cannot write such texts.
        """
        if telling.max_words > self.max_words:
            raise UserError(
                f"`max_words` must be at most {self.max_words}, for which {self.models.files[0]} "
                f"has positions, but is {telling.max_words} instead."
            )
        for name in ("topk", "beam"):
            if getattr(telling, name) >= len(self.dictionary):
                raise UserError(
                    f"`{name}` must be below {len(self.dictionary)}, the size of the dictionary, "
                    f"but is {getattr(telling, name)} instead."
                )
        if telling.no_repeat_ngram == 1:
            never = tokens_never_generated(self.dictionary, allow_unk=telling.allow_unk)
            no_words = len({*never, self.dictionary.pad(), self.dictionary.eos()})
            if telling.min_words > len(self.dictionary) - no_words:
                raise UserError(
                    f"`min_words` must be at most {len(self.dictionary) - no_words}, the words of "
                    "the dictionary, where `no_repeat_ngram` is 1, but is "
                    f"{telling.min_words} instead."
                )

    def write(
        self,
        items: Sequence[int],
        telling: Telling,
        *,
        sources: Optional[Sequence[Sequence[int]]] = None,
        stream: str = "story",
        batch_size: Optional[int] = None,
    ) -> Iterator[Text]:
        """
        Args:
            items: numbers of the texts, which decide their draws.
            telling: how they are written.
            sources: for each the words that it is written from, their end included; None for
                language models.
            stream: ``story`` or ``prompt``; the draws of one are not those of the other.
            batch_size: texts at a time, by default 32 on a CPU and 128 elsewhere; it changes
                nothing but the speed.

        Yields:
            the texts in the order of the items.

        Raises:
            UserError: if the models cannot write such texts, or give no probabilities.
        """
        self.check(telling)
        if batch_size is None:
            batch_size = 32 if self.models.device.type == "cpu" else 128
        if batch_size < 1:
            raise UserError(f"`batch_size` must be 1 or more, but is {batch_size} instead.")
        generator = self._build_generator(telling, STREAMS.index(stream))
        waiting: dict[int, Text] = {}
        following = 0
        for rows in self._batches(len(items), sources, batch_size):
            found = self._generate(
                generator,
                [items[row] for row in rows],
                None if sources is None else [sources[row] for row in rows],
            )
            waiting.update(zip(rows, found))
            while following in waiting:
                yield waiting.pop(following)
                following += 1

    def _batches(
        self, count: int, sources: Optional[Sequence[Sequence[int]]], batch_size: int
    ) -> Iterator[list[int]]:
        """Rows of each batch, longest source first, as fairseq's recurrent encoders expect it; of
        equal lengths, if a model would see the padding."""
        if sources is None or all(_masks_padding(model) for model in self.models.models):
            groups = [list(range(count))]
        else:
            by_length: dict[int, list[int]] = {}
            for row, source in enumerate(sources):
                by_length.setdefault(len(source), []).append(row)
            groups = list(by_length.values())
        for rows in groups:
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                yield batch if sources is None else sorted(batch, key=lambda i: -len(sources[i]))

    def _build_generator(self, telling: Telling, stream: int) -> Any:
        return self.models.generation_task().build_generator(
            self.models.models,
            Namespace(
                beam=max(telling.beam, 1),
                max_len_b=telling.max_words,
                min_len=telling.min_words,
                no_repeat_ngram_size=telling.no_repeat_ngram,
                temperature=telling.temperature,
                sampling=telling.draws,
                sampling_topk=telling.topk or -1,
                sampling_topp=telling.topp if telling.topp < 1 else -1.0,
            ),
            allow_unk=telling.allow_unk,
            seed=telling.seed,
            stream=stream,
        )

    def _generate(
        self,
        generator: Any,
        items: list[int],
        sources: Optional[list[Sequence[int]]],
    ) -> list[Text]:
        end, pad = self.dictionary.eos(), self.dictionary.pad()
        # a language model gets no source, but the generator counts the texts by it
        rows = [torch.tensor(source) for source in sources or [[end]] * len(items)]
        tokens = data_utils.collate_tokens(rows, pad, left_pad=False).to(self.models.device)
        sample = {
            "id": torch.tensor(items),
            "net_input": {
                "src_tokens": tokens,
                "src_lengths": torch.tensor([len(row) for row in rows]).to(tokens),
            },
        }
        found = generator.generate(self.models.models, sample, bos_token=end)
        return [self._text_of(hypotheses[0]) for hypotheses in found]

    def _text_of(self, hypothesis: dict[str, Any]) -> Text:
        tokens = hypothesis["tokens"][:-1].tolist()
        return Text(tokens, float(hypothesis["score"]))


def _masks_padding(model: Any) -> bool:
    """Whether it is known that a model does not see it; of fairseq's own models it is not."""
    decoder = model.decoder
    return getattr(decoder, "masks_padding", False) and getattr(
        decoder, "frozen_masks_padding", True
    )
