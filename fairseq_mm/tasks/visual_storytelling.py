"""Defines the task of stories of five images: ``--task visual_storytelling``.

The data folder is made by ``fairseq-mm prepare vist`` or ``fairseq-mm prepare stories``. A record
has five images, and a line of the binarised text is a whole story, with ``<sent>`` between its five
sentences. Images that a record lists as missing become padding at their place in the batch.
Training and perplexity count stories; generation and its metrics count image sequences.

All search methods of fairseq generate stories of exactly five sentences, see
:mod:`fairseq_mm.generation.constraints`. With ``--sampling``, a story depends on ``--seed``, its
line in the split and its number among the ``--nbest`` stories of the line, and not on the batch.
"""

import dataclasses
import logging
import os
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.data.records import Split
from fairseq_mm.data.reward_text import RewardText
from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import GenerationConfig
from fairseq_mm.generation.constraints import (
    ConstrainedSearch,
    StoryConstraints,
    begin_with,
    constrain_search,
    find_separator,
)
from fairseq_mm.generation.defaults import (
    VISUAL_STORIES,
    VISUAL_STORY_CONSTRAINTS,
    VISUAL_STORY_PRESETS,
)
from fairseq_mm.tasks.multimodal_captioning import (
    MultimodalCaptioningTask,
    TextOfImagesConfig,
)

logger = logging.getLogger(__name__)


@dataclass
class VisualStorytellingConfig(TextOfImagesConfig):
    min_words_per_sentence: int = option(
        1, "minimum number of words in each sentence of a generated story"
    )
    max_words_per_sentence: int = option(
        50,
        "maximum number of words in each sentence of a generated story; replaces "
        "--max-len-b, which is ignored",
    )
    repetition_penalty: float = option(
        0.0,
        "penalty p on repeated words: the probability of a word that occurs n times in "
        "the story so far is divided by 1 + n * p (released code: 5)",
    )
    end_after_punctuation: bool = option(
        False,
        "end a generated sentence only after . ? ! or at its maximum length, as in the "
        "released code",
    )


@register_task("visual_storytelling", dataclass=VisualStorytellingConfig)
class VisualStorytellingTask(MultimodalCaptioningTask):
    """Task of visual stories.

    Args:
        rows_per_image: Number of regions per image; ignored if ``features`` are given.

    Attributes:
        rows_per_image: Number of regions per image, equal for all images: 1 for pooled features, or
            the number of positions of a grid.
        separator_index: Index of the separator between sentences.
    """

    command = "tell"
    kind = "albums"
    input_names = ("image sequence", "image sequences")
    text_names = ("story", "stories")
    side_names = ("source", "story")
    processor = "fairseq_mm.inference.visual_story_processor:VisualStoryProcessor"
    generation_defaults = VISUAL_STORIES
    generation_presets = VISUAL_STORY_PRESETS
    generation_constraints = VISUAL_STORY_CONSTRAINTS
    provenance_fields = ("source_words", "rows_per_image")
    rows_per_image: int = 1

    config = VisualStorytellingConfig

    def __init__(
        self, cfg: Any, dictionary: Dictionary, *, rows_per_image: int = 1, **options: Any
    ) -> None:
        super().__init__(cfg, dictionary, **options)
        self.rows_per_image = rows_per_image
        path = "the dictionary"
        if self.features is not None:
            path = os.path.join(cfg.data, "dict.txt")
            counts: dict[int, str] = {}  # number of regions of an image -> first image with it
            for key in self.features.ids:
                counts.setdefault(self.features.count_rows(key), key)
            if len(counts) != 1 or 0 in counts:
                found = ", ".join(f"{key!r} has {rows}" for rows, key in counts.items())
                raise UserError(
                    f"{self.features.path}: all images must have the same number of regions, one "
                    f"or more, but {found or 'it has no images'}."
                )
            self.rows_per_image = next(iter(counts))
        self.separator_index = find_separator(dictionary, path)
        self.build_constraints()

    def dataset_options(self, records: Split, text: Any) -> dict[str, Any]:
        """Check that lines have five images and sentences; return the dataset's arguments."""
        missing = records.missing
        masked = []
        for line, key in enumerate(records.keys or ()):
            images, tokens = key.split("\t"), text[line].numpy()
            ends = np.flatnonzero(tokens == self.separator_index)
            # the last sentence ends with </s>
            lengths = np.diff(ends, prepend=-1, append=len(tokens) - 1) - 1
            is_story = len(lengths) == NUM_IMAGES and lengths.all()
            if not is_story or len(images) != NUM_IMAGES or missing.issuperset(images):
                raise UserError(
                    f"{records.where(line)}: must have {NUM_IMAGES} images, features of one at "
                    f"least, and {NUM_IMAGES} sentences with words, joined by {SEPARATOR}, but has "
                    f"{len(images)} images ({len(missing.intersection(images))} of them missing), "
                    f"and sentences of {', '.join(map(str, lengths))} words."
                )
            masked.append(missing.intersection(images))
        if any(masked):
            logger.info(
                f"{records.path}: {len(frozenset().union(*masked))} images of "
                f"{sum(map(bool, masked))} stories are missing, and padding in the batch"
            )
        return {"missing": missing, "rows_per_image": self.rows_per_image}

    def build_constraints(self, *, no_repeat_ngram: int = 0) -> StoryConstraints:
        """Build the constraints of the generated stories from the config."""
        cfg = self.cfg
        return StoryConstraints(
            self.dictionary,
            min_words_per_sentence=cfg.min_words_per_sentence,
            max_words_per_sentence=cfg.max_words_per_sentence,
            repetition_penalty=cfg.repetition_penalty,
            end_after_punctuation=cfg.end_after_punctuation,
            no_repeat_ngram=no_repeat_ngram,
        )

    def generator_for(self, models: Any, config: GenerationConfig, *, stream: int = 0) -> Any:
        """Build the generator for a generation config, with the constraints of stories."""
        constraints = StoryConstraints(
            self.dictionary, no_repeat_ngram=config.no_repeat_ngram_size, **config.constraints
        )
        if config.max_len_b != self.generation_defaults["max_len_b"] or config.max_len_a:
            raise UserError(
                "`max_len_b`: the length of stories is set sentence by sentence, by "
                "`max_words_per_sentence`."
            )
        # fairseq's own n-gram blocking would also forbid the second separator of a story
        args = dataclasses.replace(config, no_repeat_ngram_size=0).to_namespace()
        return self.build_generator(
            models,
            args,
            constraints=constraints,
            allow_unk=config.allow_unk,
            seed=config.seed,
            stream=stream,
        )

    def build_generator(
        self,
        models: Any,
        args: Any,
        *others: Any,
        constraints: Optional[StoryConstraints] = None,
        **kwargs: Any,
    ) -> Any:
        """Build the generator of stories, see :meth:`GeneratesText.build_generator`.

        ``constraints`` are the constraints of the stories, by default those of the config.
        """
        generator = super().build_generator(models, args, *others, **kwargs)
        if getattr(args, "score_reference", False):  # a scorer, which searches nothing
            return generator
        if constraints is None:
            constraints = self.build_constraints(
                no_repeat_ngram=getattr(args, "no_repeat_ngram_size", 0)
            )
        # fairseq's min_len does not count </s>
        if getattr(args, "min_len", 1) > constraints.min_length - 1:
            raise UserError(
                f"--min-len {args.min_len}: the length of stories is set sentence by sentence, by "
                "--min-words-per-sentence."
            )
        constrain_search(generator, constraints)
        return generator

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Copy the running statistics of batch normalisation from the first process to all others.

        Each process has the statistics of its own batches, but fairseq saves only the statistics of
        the first process. Without the copy, the other processes would validate a model that differs
        from the saved checkpoint. A resumed training, in which all processes load the saved
        statistics, would then have different validation scores.
        """
        super().begin_valid_epoch(epoch, model)
        if distributed.get_data_parallel_world_size() > 1:
            saved = model.state_dict()
            for name, buffer in model.named_buffers():
                if name in saved:
                    distributed.broadcast(buffer, 0, distributed.get_data_parallel_group())

    def get_prefix(self, sample: dict[str, Any]) -> Optional[Tensor]:
        prefix = super().get_prefix(sample)
        if prefix is not None:
            sentences = " ".join(self.cfg.prefix_words.split()).split(SEPARATOR)
            if len(sentences) > NUM_IMAGES or not all(x.strip() for x in sentences[:-1]):
                raise UserError(
                    f"--prefix-words {self.cfg.prefix_words!r}: must begin a story of "
                    f"{NUM_IMAGES} sentences, none of them empty, with {SEPARATOR} between them."
                )
        return prefix

    def begin_search(
        self, generator: Any, sample: dict[str, Any], prefix_tokens: Optional[Tensor]
    ) -> None:
        if isinstance(getattr(generator, "search", None), ConstrainedSearch):
            begin_with(generator, prefix_tokens)

    def reward_text(self) -> RewardText:
        return RewardText(self.dictionary, ignored=[self.separator_index])

    def decode_hypothesis(self, tokens: Tensor, split: str, line: int) -> str:
        """Return a story as words without sentence separators, in the form of the references."""
        return self.dictionary.string(tokens, extra_symbols_to_ignore={self.separator_index})
