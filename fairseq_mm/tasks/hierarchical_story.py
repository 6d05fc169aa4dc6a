"""Defines the task of stories from prompts: ``--task hierarchical_story``.

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018.

The data folder is made by ``fairseq-mm prepare writingprompts`` or ``fairseq-mm prepare prompts``.
It has ``dict.wp_source.txt``, ``dict.wp_target.txt`` and ``<split>.wp_source-wp_target.*`` in the
format of ``fairseq-preprocess``. This task trains on every folder that fairseq's ``translation``
accepts. Unlike ``translation``, it checks the folder first and skips no example.
"""

import logging
import os
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.tasks import register_task

from fairseq_mm.compat.options import option
from fairseq_mm.data.binarised_text import build_dictionary, load_dictionary
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.data.record_cache import load_texts
from fairseq_mm.data.records import Split
from fairseq_mm.data.truncation import CutLines, TensorLines
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import PROMPT_STORIES, PROMPT_STORY_PRESETS, SEED
from fairseq_mm.tasks.multimodal_task import GenerationTask, GenerationTaskConfig

logger = logging.getLogger(__name__)


@dataclass
class HierarchicalStoryConfig(GenerationTaskConfig):
    source_lang: str = option(
        "wp_source",
        "name of the prompts in file names, as in dict.wp_source.txt",
        argparse_alias="-s",
    )
    target_lang: str = option(
        "wp_target",
        "name of the stories in file names, as in dict.wp_target.txt",
        argparse_alias="-t",
    )
    max_source_positions: int = option(
        1024,
        "number of learned position embeddings for prompts: the longest prompt in "
        "tokens, including </s>, plus 2",
    )
    max_target_positions: int = option(
        1024,
        "number of learned position embeddings for stories: the longest story in "
        "tokens, including </s>, plus 2",
    )
    truncate_source: bool = option(
        False, "truncate prompts with more tokens than the model has positions"
    )
    truncate_target: bool = option(
        False, "truncate stories with more tokens than the model has positions"
    )


@register_task("hierarchical_story", dataclass=HierarchicalStoryConfig)
class HierarchicalStoryTask(GenerationTask):
    """Task of stories from prompts.

    Args:
        reads_prompts: False if the model is a language model of stories or prompts.
    """

    command = "tell"
    kind = "prompts"
    input_kind = "prompts"
    input_names = ("prompt", "prompts")
    text_names = ("story", "stories")
    processor = "fairseq_mm.inference.prompt_processor:PromptProcessor"
    generation_defaults = PROMPT_STORIES
    generation_presets = PROMPT_STORY_PRESETS
    default_preset = "paper"
    config = HierarchicalStoryConfig
    carried_options = (
        *("max_source_positions", "max_target_positions", "truncate_source", "truncate_target"),
    )
    side_names = ("prompt", "story")

    def __init__(
        self,
        cfg: HierarchicalStoryConfig,
        source_dictionary: Dictionary,
        target_dictionary: Dictionary,
        *,
        reads_prompts: bool = True,
    ) -> None:
        super().__init__(cfg)
        self.reads_prompts = reads_prompts
        self.src_dict = source_dictionary
        self.tgt_dict = target_dictionary
        self.loaded_models: list[Any] = []

    @classmethod
    def from_folder(cls, cfg: HierarchicalStoryConfig) -> "HierarchicalStoryTask":
        dictionaries = []
        for language in (cfg.source_lang, cfg.target_lang):
            path = os.path.join(cfg.data, f"dict.{language}.txt")
            dictionary = load_dictionary(path)
            logger.info(f"{path}: {len(dictionary)} types")
            dictionaries.append(dictionary)
        return cls(cfg, *dictionaries)

    @classmethod
    def read_vocabulary(cls, folder: str, cfg: Any) -> dict[str, Any]:
        languages = [getattr(cfg, f"{side}_lang", None) for side in ("target", "source")]
        # folders of language models have one dictionary without a language's name
        files = [f"dict.{x}.txt" for x in languages] if all(languages) else ["dict.txt"]
        words = [load_dictionary(os.path.join(folder, file)) for file in files]
        return dict(zip(("words", "source_words"), [*words, None]))

    @classmethod
    def from_provenance(
        cls,
        words: list[str],
        extractor: dict[str, Any],
        feature_dim: int,
        source_words: Optional[list[str]] = None,
    ) -> "HierarchicalStoryTask":
        """Build a task without a data folder, see :meth:`MultimodalTask.from_provenance`.

        ``source_words`` are the words of the prompts; None for a language model, which reads no
        prompts. ``extractor`` and ``feature_dim`` are ignored.
        """
        dictionary = build_dictionary(words)
        source = dictionary if source_words is None else build_dictionary(source_words)
        cfg = HierarchicalStoryConfig(seed=SEED)
        return cls(cfg, source, dictionary, reads_prompts=source_words is not None)

    @property
    def source_dictionary(self) -> Dictionary:
        return self.src_dict

    @property
    def target_dictionary(self) -> Dictionary:
        return self.tgt_dict

    def max_positions(self) -> tuple[int, int]:
        """Return the maximum lengths of prompt and story in tokens, including ``</s>``."""
        # fairseq's learned positions begin behind the padding index, 1: two rows are never used
        return self.cfg.max_source_positions - 2, self.cfg.max_target_positions - 2

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if not isinstance(model, FairseqEncoderDecoderModel):
            raise UserError(
                f"--arch {cfg._name}: reads no prompt; language models have the task "
                "language_modeling and the folders prompts and stories."
            )
        if from_checkpoint:
            self.loaded_models.append(model)
        return model

    def aligns_words(self, models: Any) -> bool:
        # decoders with this attribute are ours; models of fairseq, which this task can train, do
        # have alignments
        return not any(hasattr(model.decoder, "masks_padding") for model in models)

    def build_generator(self, models: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        """Build the generator of stories with at least ``min_len`` words.

        ``min_len`` is an option of ``args``. Its default is 150, or less if ``max_len_b`` or the
        models' positions allow fewer words.
        """
        generator = super().build_generator(models, args, *others, **kwargs)
        if getattr(args, "score_reference", False):
            return generator
        # the default must not exceed the other limits; an explicit 150 cannot be told from it
        if getattr(args, "min_len", 1) == self.generation_defaults["min_len"]:
            most = [generator.max_len - 1]
            if not generator.max_len_a:
                most.append(generator.max_len_b)
            generator.min_len = min(generator.min_len, *most)
        return generator

    def _limits(self) -> tuple[int, int]:
        """Return the maximum lengths of prompt and story in tokens, including ``</s>``."""
        # A command line that generates does not repeat the sizes of the training.
        limits = [self.max_positions(), *(model.max_positions() for model in self.loaded_models)]
        return min(source for source, _ in limits), min(target for _, target in limits)

    def suggest_lengths(self, side: int, size: int, limit: int) -> str:
        name = ("source", "target")[side]
        return f"give --truncate-{name} --max-{name}-positions {limit + 2}"

    @property
    def text_pair(self) -> tuple[str, ...]:
        return self.cfg.source_lang, self.cfg.target_lang

    def adopt(self, task_cfg: Any) -> None:
        # checkpoints of earlier versions have no task state
        self.load_state_dict(
            {key: getattr(task_cfg, key) for key in self.carried_options if key in task_cfg}
        )

    def build_dataset(
        self, records: Split, combine: Optional[bool], *, generates: bool
    ) -> MultimodalDataset:
        is_scored = self.is_scored(generates)
        sides: list[Any] = []
        texts = load_texts(records, (self.src_dict, self.tgt_dict))
        for number, (text, limit) in enumerate(zip(texts, self._limits())):
            side = ("source", "target")[number]
            is_read = side == "source" or is_scored
            if is_read and getattr(self.cfg, f"truncate_{side}"):
                sides.append(CutLines(text, limit, self.tgt_dict.eos()))
                continue
            sides.append(text)
            too_long = np.flatnonzero(np.asarray(text.sizes) > limit)
            # "is not True": in a config without its parents, the value is the text "${...}"
            if (
                is_read
                and len(too_long)
                and self.cfg.skip_invalid_size_inputs_valid_test is not True
            ):
                where = f"{records.where(int(too_long[0]))} ({len(too_long)} such lines)"
                self.refuse_length(where, number, text.sizes[too_long[0]], limit)
        source, target = sides
        logger.info(
            f"{records.name}: {len(target)} pairs, {int(np.sum(source.sizes))} words of prompts "
            f"and {int(np.sum(target.sizes))} of stories, ends included"
        )
        return MultimodalDataset(
            None,
            None,
            target,
            self.tgt_dict,
            source=source,
            source_dictionary=self.src_dict,
            split=records.name,
            shuffle=bool(combine),
            is_target_read=is_scored,
        )

    def build_dataset_for_inference(
        self, src_tokens: list[Any], src_lengths: Any, **kwargs: Any
    ) -> MultimodalDataset:
        """Build the dataset of the prompts ``src_tokens`` that ``fairseq-interactive`` reads."""
        source: Any = TensorLines(src_tokens)
        if self.cfg.truncate_source:
            source = CutLines(source, self._limits()[0], self.src_dict.eos())
        return MultimodalDataset(
            None, None, None, self.tgt_dict, source=source, source_dictionary=self.src_dict
        )
