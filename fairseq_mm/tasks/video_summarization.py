"""Defines the task of summaries of videos: ``--task video_summarization``.

Yu, Dai, Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021.

The data folder is made by ``fairseq-mm prepare how2`` or ``fairseq-mm prepare videos``. It has
records of videos with transcripts and summaries, their binarised text in the pair format of
``fairseq-preprocess``, ``subwords.json`` and ``features.h5``. Models that read only transcripts
need no features.

Differs from the released code:
- A transcript ends with ``</s>``. In the released code it had no end, and the first token of the
  decoder differed between training and generation. ``--source-ends none`` restores the released
  transcripts.
"""

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel
from fairseq.models.bart import BARTModel
from fairseq.tasks import register_task
from torch import Tensor

from fairseq_mm.compat.options import option
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.indexed_oov import oov_token, restore_oov_words
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.data.record_cache import load_texts
from fairseq_mm.data.record_split import read_options
from fairseq_mm.data.records import Split
from fairseq_mm.data.reward_text import RewardText
from fairseq_mm.data.subwords import Subwords
from fairseq_mm.data.transcript_text import SOURCE, TOKENIZERS
from fairseq_mm.data.truncation import CutLines, CutVideos, NoiseVideos, TensorLines
from fairseq_mm.errors import UserError
from fairseq_mm.generation.constraints import SourceOovSearch
from fairseq_mm.generation.defaults import SUMMARIES
from fairseq_mm.metrics.rouge import rouge_l_f1, rouge_n_f1
from fairseq_mm.tasks.multimodal_task import MultimodalTask, MultimodalTaskConfig

logger = logging.getLogger(__name__)

# the highest score of a summary with any of its references
MEASURES: dict[str, Any] = {
    "rouge1": lambda tokens, references: max(rouge_n_f1(tokens, x, 1) for x in references),
    "rouge2": lambda tokens, references: max(rouge_n_f1(tokens, x, 2) for x in references),
    "rouge_l_f1": lambda tokens, references: max(rouge_l_f1(tokens, x) for x in references),
}
_BART_POSITIONS = 1024  # rows of the tables in published checkpoints, without the two unused ones


class ReadableText:
    """Decoder from tokens to text with the interface of fairseq's ``--bpe`` classes.

    fairseq does not say which example it decodes, so ``oov_words`` has the words that ``<unk-0>``,
    ``<unk-1>``, ... denote in each text, in the order of decoding.
    """

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords
        self.oov_words: deque[Sequence[str]] = deque()

    def encode(self, text: str) -> str:
        return " ".join(self.subwords.encode(text))

    def decode(self, tokens: str) -> str:
        oov_words = self.oov_words.popleft() if self.oov_words else None
        return self.decode_text(tokens, oov_words)

    def decode_text(self, tokens: str, oov_words: Optional[Sequence[str]] = None) -> str:
        """Decode tokens; ``oov_words`` are the words of ``<unk-0>``, ``<unk-1>``, ..., if known."""
        if oov_words is not None:
            tokens = restore_oov_words(tokens, oov_words)
        return self.subwords.decode(tokens)


SourceEnds: Any = ChoiceEnum(("end", "both", "none"))


@dataclass
class VideoSummarizationConfig(MultimodalTaskConfig):
    source_lang: str = option(
        "tran", "name of the transcripts in file names, as in dict.tran.txt", argparse_alias="-s"
    )
    target_lang: str = option(
        "desc", "name of the summaries in file names, as in dict.desc.txt", argparse_alias="-t"
    )
    noise_features: bool = option(
        False,
        "replace the features of videos by uniform noise between 0 and 3 (Yu et al. 2021, Table 3)",
    )
    max_source_positions: int = option(
        512,
        "maximum length of a transcript in tokens, including <s> and </s> if it has "
        "them; longer transcripts are truncated",
        least=3,  # a word, and as many ends as --source-ends may ask for
    )
    max_target_positions: int = option(
        64,
        "maximum length of a summary in tokens, including </s>; longer summaries are truncated",
        least=2,
    )
    max_frames: int = option(
        256, "maximum number of frames of a video; longer videos are truncated", least=1
    )
    source_ends: SourceEnds = option(
        "end",
        "tokens around a transcript: end for </s> at the end, both for <s> at the "
        "beginning and </s> at the end, none for neither",
    )


@register_task("video_summarization", dataclass=VideoSummarizationConfig)
class VideoSummarizationTask(MultimodalTask):
    """Task of video summaries.

    Attributes:
        max_frames: Maximum number of frames of a video.
        tokenizer: Name of the normalisation of the text before it is split into subwords, see
            ``transcript_text.py``; None if unknown.
        reads_video: True if the model reads videos; None until a model is built.
    """

    command = "summarize"
    kind = "summaries"
    input_kind = "videos"
    input_names = ("video", "videos")
    text_names = ("summary", "summaries")
    processor = "fairseq_mm.inference.video_processor:VideoProcessor"
    generation_defaults = SUMMARIES
    config = VideoSummarizationConfig
    measures = MEASURES
    score_tokenizer = staticmethod(str.split)  # as the published scores: no normalisation
    provenance_fields = ("source_words", "subwords", "max_frames")
    carried_options = ("source_ends", "max_source_positions", "max_target_positions", "max_frames")
    side_names = ("transcript", "summary")

    def __init__(
        self, cfg: Any, dictionary: Dictionary, subwords: Subwords, **options: Any
    ) -> None:
        super().__init__(cfg, dictionary, **options)
        self.subwords = subwords
        self.readable = ReadableText(subwords)
        self.models: list[Any] = []
        self.start_index = dictionary.eos()
        self.oov_words: dict[str, list[list[str]]] = {}
        self.tokenizer: Optional[str] = None
        self.nbest = 1  # number of hypotheses per line that fairseq-generate decodes

    @classmethod
    def read_vocabulary(cls, folder: str, cfg: Any) -> dict[str, Any]:
        words = load_dictionary(os.path.join(folder, f"dict.{SOURCE}.txt"))
        subwords = Subwords.load(folder)
        state = {**subwords.to_state(), "fingerprint": subwords.fingerprint}
        return {"words": words, "source_words": words, "subwords": state}

    @classmethod
    def from_folder(cls, cfg: VideoSummarizationConfig) -> "VideoSummarizationTask":
        paths = [
            os.path.join(cfg.data, f"dict.{language}.txt")
            for language in (cfg.source_lang, cfg.target_lang)
        ]
        source, target = map(load_dictionary, paths)
        if source.symbols != target.symbols:
            raise UserError(
                f"{paths[0]} and {paths[1]} must be equal, but have {len(source)} and "
                f"{len(target)} types, or others: binarise with --joined-dictionary."
            )
        logger.info(f"{paths[1]}: {len(target)} types")
        task = cls(cfg, target, Subwords.load(cfg.data))
        tokenizer = read_options(cfg.data).get("tokenizer")
        task.tokenizer = tokenizer if tokenizer in list(TOKENIZERS) else None
        return task

    @classmethod
    def from_provenance(
        cls,
        words: list[str],
        extractor: Mapping[str, Any],
        feature_dim: int,
        source_words: Optional[list[str]] = None,
        *,
        subwords: Optional[dict[str, Any]] = None,
        max_frames: int = 256,
        **fields: Any,
    ) -> "VideoSummarizationTask":
        """Build a task without a data folder, see :meth:`MultimodalTask.from_provenance`.

        ``subwords`` is the dict returned by ``Subwords.to_state``, or None if words are not split
        into subwords. ``max_frames`` is the number of frames at which videos are truncated.
        """
        return super().from_provenance(
            words,
            extractor,
            feature_dim,
            options={"max_frames": max_frames},
            subwords=Subwords.from_state(subwords or {"kind": "none"}),
            **fields,
        )

    @classmethod
    def check_ensemble_states(
        cls, first: str, ours: Mapping[str, Any], other: str, theirs: Mapping[str, Any]
    ) -> None:
        ends = [(state.get("task_state") or {}).get("source_ends") for state in (ours, theirs)]
        if ends[0] != ends[1]:
            raise UserError(
                f"{other}: was trained with --source-ends {ends[1]}, but {first} with {ends[0]}."
            )

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def max_frames(self) -> int:
        return self.cfg.max_frames

    @property
    def subwords_state(self) -> dict[str, Any]:
        """Description of the subwords to save in checkpoints, with a hash of the subwords."""
        return {**self.subwords.to_state(), "fingerprint": self.subwords.fingerprint}

    @property
    def reads_video(self) -> Optional[bool]:
        return _reads_video(self.models[0]) if self.models else None

    def state_dict(self) -> dict[str, Any]:
        # not among carried_options: a checkpoint trained on noise is warned of, not followed
        others = {"noise_features": self.cfg.noise_features, "tokenizer": self.tokenizer}
        return {**super().state_dict(), **others}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.tokenizer = state_dict.get("tokenizer") or self.tokenizer
        if state_dict.get("noise_features") and not self.cfg.noise_features:
            logger.warning(
                "the checkpoint was trained on noise in the place of videos, and is given videos: "
                "--noise-features gives it noise."
            )

    def max_positions(self) -> tuple[int, int]:
        """Return the maximum lengths of transcript and summary, in tokens including ``</s>``."""
        limits = [(self.cfg.max_source_positions, self.cfg.max_target_positions)]
        limits += [model.max_positions() for model in self.models]
        return min(source for source, _ in limits), min(target for _, target in limits)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        # models without a dataclass have a Namespace, whose architecture is called arch
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        architecture = ARCH_MODEL_REGISTRY.get(name, object)
        reads_text = issubclass(architecture, FairseqEncoderDecoderModel)
        if not reads_text or "src_tokens" not in signature(architecture.forward).parameters:
            raise UserError(f"--arch {name}: reads no transcript.")
        # the class is asked, because the model needs the dimension of the features when it is built
        if _reads_video(architecture):
            if not self.feature_dim:
                self.open_features()
        elif self.cfg.features or self.cfg.noise_features:
            logger.warning(
                f"--arch {name} reads no video: --features and --noise-features do nothing."
            )
        if issubclass(architecture, BARTModel) and not from_checkpoint:
            # BART has these options in common with the task, where they are the maximum lengths of
            # texts. Smaller tables could not load published weights.
            for option in ("max_source_positions", "max_target_positions"):
                setattr(cfg, option, max(getattr(cfg, option, None) or 0, _BART_POSITIONS))
        model = super().build_model(cfg, from_checkpoint)
        start_index = getattr(model, "start_index", self.dictionary.eos())
        if from_checkpoint and self.models:
            if _reads_video(model) != self.reads_video or start_index != self.start_index:
                raise UserError(
                    f"--arch {name} cannot be in an ensemble with the others: all must read "
                    "videos or none, and begin summaries alike."
                )
        elif not from_checkpoint:  # a training has one model, also if the task is used again
            self.models.clear()
        self.models.append(model)
        self.start_index = start_index
        self.build_validation(model)
        return model

    @property
    def text_pair(self) -> tuple[str, ...]:
        return self.cfg.source_lang, self.cfg.target_lang

    def build_dataset(
        self, records: Split, combine: Optional[bool], *, generates: bool
    ) -> MultimodalDataset:
        cfg, keys = self.cfg, records.keys
        videos: Optional[CutVideos] = None
        if self.reads_video is not False:
            keys = self.keys_of(records)
            features, noise = self.open_features(), cfg.noise_features
            videos = (
                NoiseVideos(features, cfg.max_frames, seed=cfg.seed)
                if noise
                else CutVideos(features, cfg.max_frames)
            )
        transcripts, summaries = load_texts(records, [self.dictionary] * 2)
        longest_source, longest_target = self.max_positions()
        source = self._with_ends(transcripts, longest_source)
        target = CutLines(summaries, longest_target, self.dictionary.eos())
        dataset = MultimodalDataset(
            keys,
            videos,
            target,
            self.dictionary,
            source=source,
            source_dictionary=self.dictionary,
            split=records.name,
            lines=self.select_lines(records, generates=generates),
            shuffle=bool(combine),  # fairseq passes True only for the training split
            start=self.start_index,
            items="videos",
            is_target_read=self.is_scored(generates),
        )
        cut = [f"{source.num_cut} transcripts", f"{target.num_cut} summaries"]
        if videos is not None:
            cut.append(f"{sum(map(videos.is_cut, set(keys or ())))} videos")
        logger.info(f"{records.name}: {len(dataset)} summaries; cut: {', '.join(cut)}")
        if self.subwords.indexed_oov and not combine and (generates or cfg.eval_gen):
            self.oov_words[records.name] = records.field("unknowns")
        return dataset

    def _with_ends(self, transcripts: Any, limit: int) -> CutLines:
        ends = str(self.cfg.source_ends)
        return CutLines(
            transcripts,
            limit,
            self.dictionary.eos(),
            start=self.dictionary.bos() if ends == "both" else None,
            keeps_end=ends != "none",
        )

    def build_generator(
        self,
        models: Any,
        args: Any,
        *others: Any,
        allow_unk: Optional[bool] = None,
        **kwargs: Any,
    ) -> Any:
        """Build the generator of summaries.

        Unless ``<unk>`` is allowed (``allow_unk``, default ``--allow-unk``), a summary contains
        only those indexed OOV tokens (``<unk-0>``, ...) that are in its transcript.
        """
        self.nbest = getattr(args, "nbest", 1)
        generator = super().build_generator(models, args, *others, allow_unk=allow_unk, **kwargs)
        may_be_unk = self.cfg.allow_unk if allow_unk is None else allow_unk
        count = self.subwords.indexed_oov
        if count and not may_be_unk and not getattr(args, "score_reference", False):
            indices = [self.dictionary.index(oov_token(i)) for i in range(count)]
            generator.search = SourceOovSearch(self.dictionary, generator.search, indices)
        return generator

    def begin_search(
        self, generator: Any, sample: dict[str, Any], prefix_tokens: Optional[Tensor]
    ) -> None:
        if isinstance(getattr(generator, "search", None), SourceOovSearch):
            generator.search.begin(sample["net_input"]["src_tokens"])

    def inference_step(
        self, generator: Any, models: list[Any], sample: dict[str, Any], *others: Any, **kwargs: Any
    ) -> list[list[dict[str, Any]]]:
        batch = super().inference_step(generator, models, sample, *others, **kwargs)
        oov_words = self.oov_words.get(sample.get("split", ""))
        if oov_words is not None and "target" in sample:
            # fairseq-generate decodes the transcript, the summary and the hypotheses of each line
            num_texts = 1 + (sample["target"] is not None)
            self.readable.oov_words = deque(
                oov_words[line]
                for line, hypotheses in zip(sample["id"].tolist(), batch)
                for _ in range(num_texts + min(self.nbest, len(hypotheses)))
            )
        return batch

    def reward_text(self) -> RewardText:
        splits = self.subwords.kind != "none"
        return RewardText(self.dictionary, subwords=self.subwords if splits else None)

    def decode_hypothesis(self, tokens: Tensor, split: str, line: int) -> str:
        oov_words = self.oov_words.get(split)
        text = self.dictionary.string(tokens)
        return self.readable.decode_text(text, None if oov_words is None else oov_words[line])

    @property
    def reads_only_text(self) -> bool:  # type: ignore[override]
        return not self.reads_video

    def aligns_words(self, models: Any) -> bool:
        return self.reads_only_text

    def build_bpe(self, args: Any) -> Any:
        """Return the object that turns subwords into text; ``args`` is None without ``--bpe``."""
        return self.readable if args is None else super().build_bpe(args)

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: Any, **kwargs: Any
    ) -> MultimodalDataset:
        """Build the dataset of the transcripts that ``fairseq-interactive`` reads."""
        source = self._with_ends(TensorLines(src_tokens), self.max_positions()[0])
        return MultimodalDataset(
            None, None, None, self.dictionary, source=source, source_dictionary=self.dictionary
        )


def _reads_video(model: Any) -> bool:
    return bool(getattr(model, "reads_video", False))
