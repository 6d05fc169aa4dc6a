"""Defines base classes of the tasks: options, features, generation, validation by generated text.

A task sets the attributes of :class:`GeneratesText`, loads its splits, and adds constraints to
fairseq's beam search if it needs them.
"""

import contextlib
import copy
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask
from omegaconf import II, MISSING
from torch import Tensor

from fairseq_mm.compat import activate
from fairseq_mm.compat.options import check_sizes, option
from fairseq_mm.data.binarised_text import build_dictionary
from fairseq_mm.data.feature_store import FeatureStores, open_folder_features
from fairseq_mm.data.multimodal_dataset import encode_words
from fairseq_mm.data.records import Split, open_split
from fairseq_mm.data.reward_text import RewardText
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import check_search, read_generation_options
from fairseq_mm.generation.defaults import ALLOW_UNK_HELP, SAMPLING_BEAM, SEED
from fairseq_mm.generation.sampling_policy import SamplingPolicy
from fairseq_mm.generation.task import GeneratesText, explain_failed_search
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize
from fairseq_mm.tasks._generated_text import (
    CAPTION_MEASURES,
    GeneratedTextScores,
    Measure,
    check_best_checkpoint_metric,
    first_hypotheses,
    log_generated_text_scores,
)

logger = logging.getLogger(__name__)

# generation options of the texts that --criterion self_critical draws
POLICY_OPTIONS = ("max_len_a", "max_len_b", "min_len")


@dataclass
class GenerationTaskConfig(FairseqDataclass):
    data: str = option(MISSING, "data folder")
    allow_unk: bool = option(False, ALLOW_UNK_HELP)
    typical_p: float = option(
        -1.0,
        "with --sampling: sum of probabilities that the tokens nearest to the entropy "
        "must reach to be sampled from (locally typical sampling; default: all tokens)",
    )
    compile: bool = option(
        False,
        "compile the model's forward and backward pass with torch.compile: the first "
        "updates take longer, the others less time on a GPU",
    )
    seed: int = II("common.seed")
    # Any, not bool: fairseq's parser would take the truth value of the text "${...}", which is true
    score_reference: Any = II("generation.score_reference")  # noqa: RUF009
    skip_invalid_size_inputs_valid_test: bool = II("dataset.skip_invalid_size_inputs_valid_test")
    max_tokens: Any = II("dataset.max_tokens")  # noqa: RUF009


@dataclass
class MultimodalTaskConfig(GenerationTaskConfig):
    features: Optional[str] = option(
        None,
        "feature store, or several separated by the system's path separator "
        "(default: features.h5 in the data folder)",
    )
    preload_features: bool = option(False, "read the feature store into memory at the start")
    all_lines: bool = option(
        False,
        "generate a text for every line of the split, even if several lines have the "
        "same image, image sequence or video; --score-reference needs this option",
    )
    eval_gen: bool = option(
        False,
        "also generate texts in validation and log their scores: bleu1 to bleu4, "
        "cider, and rouge_l for captions and visual stories or rouge1, rouge2 and rouge_l_f1 "
        "for summaries",
    )
    eval_gen_args: str = option(
        "{}",
        "generation options for --eval-gen as a JSON object, such as "
        '\'{"beam": 3, "max_len_b": 30}\'',
    )
    eval_gen_print_samples: bool = option(
        False, "log one of the texts that --eval-gen generates for each batch"
    )
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")


@contextlib.contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep PyTorch from computing attention on GPUs by cuDNN in a ``with`` block.

    cuDNN makes a new plan for each new number of keys. A decoding step has one key more than the
    step before, and making the plan takes longer than the step's attention.
    """
    backends = torch.backends.cuda
    if not torch.cuda.is_initialized():
        yield
        return
    before = backends.cudnn_sdp_enabled()
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(before)


class GenerationTask(GeneratesText, FairseqTask):
    """Base of tasks that generate text.

    Attributes:
        start_index: Index of the token that precedes the first generated token; None for ``</s>``.
        config: Dataclass of the task's options.
        carried_options: Names of the options, such as the maximum lengths of texts, whose values
            are saved in checkpoints, so that generation uses the same values as training.
        side_names: Words for a source text and for a target text in messages, such as "prompt" and
            "story".
        reads_only_text: False if the model reads images or videos.
    """

    start_index: Optional[int] = None
    config: ClassVar[type[GenerationTaskConfig]]
    carried_options: tuple[str, ...] = ()
    side_names: tuple[str, str] = ("source", "text")
    reads_only_text: bool = True
    folders: Sequence[str] = ()

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Build the task of one data folder, or of several, separated by the path separator.

        With several folders, each epoch reads its training split from the next folder, and all
        other splits are in the first folder.
        """
        folders = cfg.data.split(os.pathsep)
        cfg.data = folders[0]
        task = cls.from_folder(cfg)
        task.folders = folders
        return task

    @classmethod
    def from_folder(cls, cfg: Any) -> Any:
        """Build the task of the data folder ``cfg.data``."""
        return cls(cfg)

    def __init__(self, cfg: Any, **options: Any) -> None:
        activate()  # repairs of fairseq, here also for programs that call none of its commands
        check_sizes(type(self).config, cfg)
        super().__init__(cfg, **options)

    def has_sharded_data(self, split: str) -> bool:
        return len(self.folders) > 1

    def state_dict(self) -> dict[str, Any]:
        # the value of an option with choices is an Enum, which weights-only loading refuses
        options = {name: getattr(self.cfg, name) for name in self.carried_options}
        return {
            name: value if isinstance(value, (bool, int)) else str(value)
            for name, value in options.items()
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set the options in ``carried_options`` to the values of a checkpoint.

        An option whose value is not its default was set by the user and does not change.
        """
        for name in self.carried_options:
            default = self.config.__dataclass_fields__[name].default
            trained = state_dict.get(name)
            trained = default if trained is None else trained
            is_length = type(trained) is not int or 0 <= trained < 1 << 31
            if type(trained) is not type(default) or not is_length:
                raise UserError(
                    f"the state of its task: `{name}` must be like {default!r}, but is "
                    f"{repr(trained)[:80]}."
                )
            # as text, because an option with choices is an Enum here and a text in the checkpoint
            if str(getattr(self.cfg, name)) == str(default) != str(trained):
                logger.info(f"--{name.replace('_', '-')} {trained}, as the checkpoint was trained")
                setattr(self.cfg, name, trained)

    @property
    def text_pair(self) -> tuple[str, ...]:
        """Suffixes of source and target texts in the data folder; empty for a single text."""
        return ()

    def load_dataset(
        self, split: str, combine: Optional[bool] = None, task_cfg: Any = None, **kwargs: Any
    ) -> None:
        """Load a split.

        Args:
            split: Name of the split.
            combine: True for the training split, which is shuffled; False for validation; None if
                fairseq generates.
            task_cfg: Config of the task in a checkpoint, which fairseq passes if it generates or
                validates.
            **kwargs: ``epoch`` if fairseq trains or validates.
        """
        if task_cfg is not None:
            self.adopt(task_cfg)
        number = (kwargs.get("epoch", 1) - 1) % len(self.folders) if combine and self.folders else 0
        task: Any = self
        if number:  # a task of another data folder
            cfg = copy.deepcopy(self.cfg)
            cfg.data = self.folders[number]
            task = type(self).from_folder(cfg)
            if task.target_dictionary != self.target_dictionary:
                raise UserError(f"{cfg.data}: its dictionary must be that of {self.folders[0]}.")
            # what is read depends on the models
            names = vars(self).keys() & {"models", "loaded_models"}
            vars(task).update({name: getattr(self, name) for name in names})
        records = open_split(task.cfg.data, split, task.text_pair)
        # fairseq passes neither `combine` nor the epoch to generate
        generates = combine is None and not kwargs
        self.datasets[split] = task.build_dataset(records, combine, generates=generates)
        if not combine and not generates:
            self.prepare_scores(records)

    def adopt(self, task_cfg: Any) -> None:
        """Take options over from the config of a checkpoint's task; by default none."""

    def prepare_scores(self, records: Split) -> None:
        """Prepare the scores of generated texts in validation; by default none."""

    def build_dataset(self, records: Split, combine: Optional[bool], *, generates: bool) -> Any:
        """Build the dataset of a split; ``combine`` is the argument of :meth:`load_dataset`."""
        raise NotImplementedError

    def is_scored(self, generates: bool) -> bool:
        """Return True if a model reads or scores the target texts of a split.

        Models do so in training, in validation, and with ``--score-reference``. Otherwise,
        generation only prints the target texts.
        """
        return not generates or self.cfg.score_reference is True

    def suggest_lengths(self, side: int, size: int, limit: int) -> str:
        """Suggest how to change a source (``side`` 0) or target (1) of ``size`` tokens, if the
        model allows at most ``limit``."""
        return f"give a larger --max-{('source', 'target')[side]}-positions, or shorten it"

    def refuse_length(
        self, where: str, side: int, size: int, limit: int, *, remedy: str = "", rest: str = ""
    ) -> Any:
        """Raise UserError for a text that is too long, see :meth:`suggest_lengths`."""
        remedy = remedy or self.suggest_lengths(side, size, limit)
        skip = ", or leave such lines out with --skip-invalid-size-inputs-valid-test."
        raise UserError(
            f"{where}: the {self.side_names[side]} has {size} tokens, its end included, but must "
            f"have at most {limit}: {remedy}{rest or skip}"
        )

    def filter_indices_by_size(
        self,
        indices: np.ndarray,
        dataset: Any,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
    ) -> np.ndarray:
        """Leave out examples with more tokens than the model has positions, or raise UserError."""
        # fairseq raises a plain Exception with a traceback, or trains on nothing
        _, too_long = dataset.filter_indices_by_size(indices, max_positions)
        if not len(too_long) or (ignore_invalid_inputs and len(too_long) < len(indices)):
            return super().filter_indices_by_size(
                indices, dataset, max_positions, ignore_invalid_inputs
            )
        index, split = too_long[0], dataset.split or "the input"
        sizes, limits = dataset.size(index), max_positions
        # a dataset without source text has one size per example, and its task has one limit
        if not isinstance(sizes, tuple):
            sizes = (0, sizes)
        if not isinstance(limits, (tuple, list)):
            limits = (limits, limits)
        side = next(side for side in (0, 1) if sizes[side] > limits[side])
        size, limit = sizes[side], limits[side]
        most = max(np.max(dataset.size(index)) for index in too_long)
        by_tokens = f"--max-tokens must be {most} or more"
        return self.refuse_length(
            f"line {dataset.lines[index] + 1} of {split} ({len(too_long)} such lines)",
            *(side, size, limit),
            remedy=by_tokens if limit == self.cfg.max_tokens else "",
            rest=f": no line of {split} would be left." if ignore_invalid_inputs else "",
        )

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Any, Any, dict[str, Any]]:
        # a criterion that samples seeds its samples by the update
        if hasattr(criterion, "update_num"):
            criterion.update_num = update_num
        with without_cudnn_attention():
            return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model of a config, and with ``--compile`` compile it for training."""
        model = super().build_model(cfg, from_checkpoint)
        if self.cfg.compile and not from_checkpoint:
            model.compile()  # at the first call; parameters keep their names
        return model

    def aligns_words(self, models: Any) -> bool:
        """Return True if the models align the words of a text with words of its source."""
        return False

    def build_generator(self, models: Any, args: Any, *others: Any, **kwargs: Any) -> Any:
        """Build fairseq's generator, see :meth:`GeneratesText.build_generator`."""
        if any(hasattr(model, "embed_sentences") for model in models):
            raise UserError(
                f"the model embeds images and sentences, and generates no {self.text_names[1]}: "
                "use fairseq-mm rank or fairseq-mm retrieve."
            )
        aligns = self.aligns_words(models)
        check_search(args, has_source=bool(self.text_pair), aligns=aligns)
        return super().build_generator(models, args, *others, **kwargs)

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> Any:
        """Encode the lines that ``fairseq-interactive`` reads."""
        if not self.reads_only_text:
            raise UserError(
                f"fairseq-interactive reads lines of text, and no {self.input_kind}: use "
                f"fairseq-generate or fairseq-mm {self.command}."
            )
        tokens, lengths = super().get_interactive_tokens_and_lengths(lines, encode_fn)
        for number, length in enumerate(lengths, 1):
            if length < 2:  # only </s>
                name = self.side_names[0]
                raise UserError(f"{name} {number} is empty: it must have at least one word.")
        return tokens, lengths

    def build_policy(self, model: Any, beam: int, *, sampling: bool, text: str) -> SamplingPolicy:
        """Build the policy that generates texts with a model in training, in evaluation mode.

        Args:
            model: Model without wrappers for several processes.
            beam: Number of texts per input.
            text: JSON object of generation options, the value of ``--sample-args``.
        """
        options = read_generation_options(text, "--sample-args", POLICY_OPTIONS)
        if getattr(self.cfg, "prefix_words", None):
            raise UserError("--prefix-words: does not go with --criterion self_critical.")
        defaults = {name: self.generation_defaults[name] for name in POLICY_OPTIONS}
        values = {**defaults, **options, "beam": beam, "sampling": sampling, "unnormalized": True}
        generator = self.build_generator([model], Namespace(**values))
        # fairseq's beam has no more texts than the dictionary has words
        generator.beam_size = beam
        return SamplingPolicy(self, model, generator)

    def reward_text(self) -> RewardText:
        """Return the object that turns token indices into the words that rewards compare."""
        return RewardText(self.target_dictionary)

    def get_prefix(self, sample: dict[str, Any]) -> Optional[Tensor]:
        """Return the tokens ``[B, p]`` of ``--prefix-words`` for each row of a batch, if given."""
        words = getattr(self.cfg, "prefix_words", None)
        if not words:
            return None
        prefix = encode_words(self.target_dictionary, words)
        # <s>, padding and </s> precede <unk> in every dictionary of fairseq
        if bool((prefix < self.target_dictionary.unk()).any()):
            raise UserError(
                f"--prefix-words {words!r}: must have words alone, no signs of fairseq's."
            )
        return prefix.to(sample["id"].device).expand(sample["id"].numel(), -1)

    def begin_search(
        self, generator: Any, sample: dict[str, Any], prefix_tokens: Optional[Tensor]
    ) -> None:
        """Prepare the constraints of the search for the batch ``sample``; by default none."""

    def inference_step(
        self,
        generator: Any,
        models: list[Any],
        sample: dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Any] = None,
    ) -> list[list[dict[str, Any]]]:
        """Generate the texts of a batch; by default with the prefix of :meth:`get_prefix`."""
        if prefix_tokens is None:
            prefix_tokens = self.get_prefix(sample)
        if "id" not in sample:  # fairseq-interactive builds its batches without the dataset
            sample = self.numbered(sample)
        self.begin_search(generator, sample, prefix_tokens)
        self.use_weights(generator, models)
        with torch.no_grad(), self.searching(generator, models):
            return generator.generate(
                models,
                sample,
                prefix_tokens=prefix_tokens,
                constraints=constraints,
                bos_token=self.start_index,
            )

    @contextlib.contextmanager
    def searching(self, generator: Any, models: list[Any]) -> Iterator[None]:
        """Turn a failure of the search in a ``with`` block into an error that explains it."""
        try:
            with without_cudnn_attention():
                yield
        except AssertionError as error:  # fairseq checks lengths and scores by assert
            explain_failed_search(error, generator, models, self.text_names[0])
            raise


class MultimodalTask(GenerationTask):
    """Base of tasks that read features and validate by generated text with ``--eval-gen``.

    Args:
        feature_dim: Dimension of the features; 0 until features are opened.
        feature_attributes: Attributes that identify the features, such as extractor, weights and
            layer.
        features: Feature stores; None until they are opened.

    Attributes:
        measures: Metrics of generated text in addition to BLEU and CIDEr, by name.
        score_tokenizer: Function from a text to the tokens that the metrics compare.
        generated_text_scores: Scorers of the texts that validation generates, by the name of the
            split.
    """

    reads_only_text = False
    measures: Mapping[str, Measure] = CAPTION_MEASURES
    score_tokenizer: Callable[[str], Sequence[str]] = staticmethod(ptb_tokenize)
    feature_dim: int = 0
    target_dictionary: Any = None  # fairseq's class has a property, which cannot be set

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        *,
        feature_dim: int = 0,
        feature_attributes: Optional[Mapping[str, Any]] = None,
        features: Optional[FeatureStores] = None,
    ) -> None:
        super().__init__(cfg)
        self.dictionary = self.target_dictionary = dictionary
        self.feature_dim = feature_dim
        self.feature_attributes = dict(feature_attributes or {})
        self.features = features
        self.generated_text_scores: dict[str, GeneratedTextScores] = {}
        self.sequence_generator: Optional[Any] = None

    @classmethod
    def from_provenance(
        cls,
        words: list[str],
        extractor: Mapping[str, Any],
        feature_dim: int,
        source_words: Optional[list[str]] = None,
        *,
        options: Mapping[str, Any] = {},
        **fields: Any,
    ) -> Any:
        """Build a task without a data folder, to load a model and generate with it.

        Args:
            words: Words of the dictionary in the order of their indices, without special symbols.
            extractor: Attributes that identify the extractor of the features.
            feature_dim: Dimension of the features; 0 if the model reads none.
            source_words: Words of a second dictionary; None if the model reads only one.
            options: Values of options of the task's config, by name.
            **fields: Further arguments of the task, named in ``provenance_fields``, with the values
                that the checkpoint contains.
        """
        if source_words is not None:
            fields["source_words"] = source_words
        return cls(
            cls.config(seed=SEED, **options),
            build_dictionary(words),
            feature_dim=feature_dim,
            feature_attributes=extractor,
            **fields,
        )

    def keys_of(self, records: Split) -> list[str]:
        """Return the keys of the images or the video of each record in the feature stores."""
        if records.keys is None:
            raise UserError(f"{records.path}: has no ids of {self.input_kind}.")
        return records.keys

    def open_features(self) -> FeatureStores:
        """Return the feature stores of ``--features``, which are opened at the first call."""
        if self.features is None:
            cfg = self.cfg
            self.features = open_folder_features(
                cfg.data, cfg.features, preload=cfg.preload_features
            )
            self.feature_dim = self.features.dim
            self.feature_attributes = self.features.extractor_attributes
        return self.features

    def select_lines(self, records: Split, *, generates: bool) -> Optional[np.ndarray]:
        """Return the indices of the lines of a split to load; None for all lines.

        All lines of an item (an image, an image sequence or a video) would give the same
        hypothesis, so generation loads only each item's first line, except with ``--all-lines``.
        """
        if generates and not self.cfg.all_lines:
            return np.flatnonzero(records.first)
        return None

    def prepare_scores(self, records: Split) -> None:
        """Read the references with which ``--eval-gen`` compares generated texts."""
        if not self.cfg.eval_gen or records.name in self.generated_text_scores:
            return
        self.generated_text_scores[records.name] = GeneratedTextScores(
            records.references(),
            records.items,
            tokenize=self.score_tokenizer,
            measures=self.measures,
        )
        if records.note:
            logger.warning(records.note)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:  # --best-checkpoint-metric is an option of training
            is_ranking = hasattr(model, "embed_sentences")
            check_best_checkpoint_metric(self.cfg, self.measures, is_ranking=is_ranking)
        return model

    def build_validation(self, model: Any) -> None:
        """Build the generator for validation by generated text if ``--eval-gen`` is given."""
        if self.cfg.eval_gen:
            options = read_generation_options(self.cfg.eval_gen_args, "--eval-gen-args")
            values = {**self.generation_defaults, **options}
            if values.get("sampling") and "beam" not in options:
                values["beam"] = SAMPLING_BEAM  # the default would sample several texts
            self.sequence_generator = self.build_generator([model], Namespace(**values))

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self.cfg.eval_gen:
            logging_output.update(self._generate_and_score(sample, model))
        return loss, sample_size, logging_output

    def _generate_and_score(self, sample: dict[str, Any], model: Any) -> dict[str, float]:
        """Generate texts for each item's first line in a batch; return sums of scores."""
        split = sample["split"]
        scores = self.generated_text_scores[split]
        hypotheses = {
            line: self.decode_hypothesis(tokens, split, line)
            for line, tokens in first_hypotheses(self, sample, model).items()
        }
        if self.cfg.eval_gen_print_samples and hypotheses:
            line = min(hypotheses)
            logger.info(f"example hypothesis {line}: {hypotheses[line]}")
            reference = scores.references[scores.items[line]][0]
            logger.info(f"example reference {line}: {reference}")
        return scores.sums(hypotheses)

    def decode_hypothesis(self, tokens: Tensor, split: str, line: int) -> str:
        """Convert ``tokens`` ``[T]``, the hypothesis of a line of a split, to the text that metrics
        score."""
        return self.dictionary.string(tokens)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if self.cfg.eval_gen:
            log_generated_text_scores(logging_outputs, self.measures)
