"""Defines the task of captions of images: ``--task multimodal_captioning``.

The data folder is made by ``fairseq-mm prepare captions``, or has the files of
``fairseq-preprocess --only-source`` and ``<split>.visual_ids``; and ``features.h5``. Training and
perplexity count pairs of an image and a caption; generation and its scores count images.

The task ``visual_storytelling`` extends this task to stories of five images.
"""

import copy
import logging
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Union

import numpy as np
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from omegaconf import II, open_dict

from fairseq_mm.compat.loading import AVERAGE_KEY
from fairseq_mm.compat.options import option
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.data.feature_store import open_folder_features
from fairseq_mm.data.multimodal_dataset import MultimodalDataset
from fairseq_mm.data.pos_sequences import FolderPosSequences
from fairseq_mm.data.record_cache import load_texts
from fairseq_mm.data.records import Split
from fairseq_mm.data.word_vectors import read_word_vectors
from fairseq_mm.errors import UserError
from fairseq_mm.generation.defaults import CAPTIONS
from fairseq_mm.tasks._image_network import (
    PhotoOptions,
    attach_image_network,
    step_with_scaled_network,
)
from fairseq_mm.tasks._ranking_validation import RankingValidation, log_ranking
from fairseq_mm.tasks.multimodal_task import MultimodalTask, MultimodalTaskConfig

logger = logging.getLogger(__name__)


@dataclass
class TextOfImagesConfig(MultimodalTaskConfig):
    """Options of the task of captions, and of tasks that extend it."""

    one_per_item: bool = option(
        False,
        "keep only the first line of each image or image sequence; generation "
        "does so unless --all-lines is given, because all lines of an image would give the "
        "same hypothesis",
    )
    prefix_words: Optional[str] = option(
        None, "words that every generated text begins with, such as 'a man'"
    )
    max_target_positions: int = option(1024, "maximum length of a text in tokens, including </s>")
    use_ema: bool = option(
        False,
        "with --store-ema, for models that embed images and sentences: validate the "
        "moving average of the weights, and load it as the model of the checkpoint",
    )
    # Any, not bool: fairseq's parser would take the truth value of the text "${...}", which is true
    store_ema: Any = II("ema.store_ema")  # noqa: RUF009
    ema_decay: Any = II("ema.ema_decay")  # noqa: RUF009


@dataclass
class MultimodalCaptioningConfig(PhotoOptions, TextOfImagesConfig):
    """Options of captions of images."""


@register_task("multimodal_captioning", dataclass=MultimodalCaptioningConfig)
class MultimodalCaptioningTask(MultimodalTask):
    """Task of image captions."""

    command = "caption"
    kind = "captions"
    input_kind = "images"
    input_names = ("image", "images")
    text_names = ("caption", "captions")
    processor = "fairseq_mm.inference.image_processor:CaptionProcessor"
    generation_defaults = CAPTIONS
    config: ClassVar[type[TextOfImagesConfig]] = MultimodalCaptioningConfig
    side_names = ("part-of-speech sequence", "caption")
    # not a dictionary: fairseq-generate would print a source text that does not exist
    source_dictionary = None

    def __init__(
        self,
        cfg: Any,
        dictionary: Dictionary,
        *,
        source_words: Optional[list[str]] = None,
        **options: Any,
    ) -> None:
        super().__init__(cfg, dictionary, **options)
        self.ranking: Optional[RankingValidation] = None
        self.num_negatives = 0
        # words of the tag dictionary, if the model reads part-of-speech sequences
        self.pos_sequences: Optional[FolderPosSequences] = None
        if source_words is not None:
            self.pos_sequences = FolderPosSequences("", source_words)
        self.reads_structure = False
        self.photos: Optional[Any] = None
        # None also in tasks without these options, and in configs of older checkpoints
        self.photos_folder: Optional[str] = getattr(cfg, "photos", None) or None

    @classmethod
    def from_folder(cls, cfg: Any) -> "MultimodalCaptioningTask":
        path = os.path.join(cfg.data, "dict.txt")
        dictionary = load_dictionary(path)
        logger.info(f"{path}: {len(dictionary)} types")
        preload = cfg.preload_features and not getattr(cfg, "photos", None)
        features = open_folder_features(cfg.data, cfg.features, preload=preload)
        # opened now, because models are built before a split is loaded and need the dimension
        return cls(
            cfg,
            dictionary,
            feature_dim=features.dim,
            feature_attributes=features.extractor_attributes,
            features=features,
        )

    @property
    def structure_dictionary(self) -> Dictionary:
        """Dictionary of the part-of-speech tags."""
        if self.pos_sequences is None:
            self.pos_sequences = FolderPosSequences(self.cfg.data)
        return self.pos_sequences.dictionary

    def max_positions(self) -> Union[int, tuple[int, int]]:
        """Return the maximum length of a caption in tokens, or of a tag sequence and a caption."""
        limit = self.cfg.max_target_positions
        return (limit, limit) if self.reads_structure else limit

    def build_dataset(
        self, records: Split, combine: Optional[bool], *, generates: bool
    ) -> MultimodalDataset:
        (text,) = load_texts(records, [self.dictionary])
        keys = self.keys_of(records)
        options = self.dataset_options(records, text)
        features: Any = self.features
        if self.photos_folder is not None:
            features = self.open_photos()
            features.check_keys(keys, records.name)
            if self.cfg.preload_features:
                features.preload(keys)
        if self.reads_structure:
            assert self.pos_sequences is not None
            sizes = np.asarray(text.sizes)
            options.update(self.pos_sequences.dataset_options(records, sizes, draw=generates))
        lines = self.select_lines(records, generates=generates)
        if self.cfg.one_per_item:
            lines = np.flatnonzero(records.first)
        dataset = MultimodalDataset(
            keys,
            features,
            text,
            self.dictionary,
            split=records.name,
            lines=lines,
            shuffle=bool(combine),  # fairseq passes True only for the training split
            groups_items=self.photos_folder is not None,
            num_negatives=self.num_negatives if combine else 0,
            is_target_read=self.is_scored(generates),
            seed=self.cfg.seed,
            **options,
        )
        logger.info(
            f"{records.name}: {len(dataset)} lines of {len(set(keys))} items, features "
            f"of dimension {self.feature_dim} from {features.path}"
        )
        return dataset

    def open_photos(self) -> Any:
        """Return the images of ``--photos``; the first call lists them."""
        if self.photos is None:
            # imports torchvision, which trainings on features do without
            from fairseq_mm.extract.preprocessing import Preprocessing
            from fairseq_mm.extract.trained_network import PhotoStore

            assert self.photos_folder is not None
            preprocessing = Preprocessing.from_json(str(self.feature_attributes["preprocessing"]))
            self.photos = PhotoStore(self.photos_folder, preprocessing)
        return self.photos

    def build_image_network(self) -> Any:
        """Build the image network of ``--image-network`` for training."""
        from fairseq_mm.extract.trained_network import build_trained_network, freeze_layers_before

        assert self.features is not None
        cfg, path = self.cfg, self.features.path
        network = build_trained_network(
            self.feature_attributes,
            cfg.image_network or None,
            store=path,
            flip=cfg.flip_photos,
        )
        network.requires_grad_(cfg.network_lr_scale > 0)
        if cfg.network_first_layer:
            freeze_layers_before(network, cfg.network_first_layer)
        return network

    def dataset_options(self, records: Split, text: Any) -> dict[str, Any]:
        """Return further arguments of the :class:`MultimodalDataset` of a split."""
        return {}

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        if from_checkpoint and getattr(cfg, "word_vectors", None):
            # The checkpoint contains the vectors, and their file may be gone. The caller's config
            # stays as it is, because the trainer saves it.
            cfg = copy.deepcopy(cfg)
            with open_dict(cfg):
                cfg.word_vectors = None
        model = super().build_model(cfg, from_checkpoint)
        if self.photos_folder is not None:
            network = self.build_image_network()
            attach_image_network(model, network)
            self.open_photos().num_rows = network.num_rows
        # by attributes, so that models of other packages can use this task
        self.ranking = RankingValidation() if hasattr(model, "embed_sentences") else None
        self.reads_structure = getattr(model, "reads_structure", False)
        if not from_checkpoint:
            self._check_options()
        self.build_validation(model)
        return model

    def _check_options(self) -> None:
        cfg = self.cfg
        problems = (
            (self.photos_folder and cfg.compile, "--compile does not go with --photos."),
            (
                cfg.eval_gen and self.reads_structure,
                "--eval-gen: the model reads the captions' tags, which would tell it what the "
                "references are like: generate with fairseq-generate, which draws others.",
            ),
            (
                cfg.store_ema is True and not 0 <= cfg.ema_decay < 1,
                f"--ema-decay must be 0 or more and below 1, but is {cfg.ema_decay}: the average "
                "of --store-ema would never follow the weights.",
            ),
            (
                cfg.use_ema and self.ranking is None,
                "--use-ema is for models that embed images and sentences (vse_lstm, vse_gru, "
                "vse_bow).",
            ),
            (
                cfg.use_ema and cfg.store_ema is not True,
                "--use-ema validates the average of the weights, which only --store-ema keeps: "
                "give both.",
            ),
        )
        for is_wrong, problem in problems:
            if is_wrong:
                raise UserError(problem)

    @property
    def uses_ema(self) -> bool:
        """True if fairseq's trainer must pass the average of the weights to :meth:`valid_step`."""
        return bool(self.cfg.use_ema)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, AVERAGE_KEY: True} if self.uses_ema else state

    def build_criterion(self, cfg: Any, *others: Any, **kwargs: Any) -> Any:
        criterion = super().build_criterion(cfg, *others, **kwargs)
        # fairseq loads the training split after it has built the criterion
        self.num_negatives = getattr(criterion, "extra_pairs_per_batch", 0)
        return criterion

    def read_word_vectors(self, path: str, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """Read pretrained word vectors for ``--word-vectors``.

        Returns:
            vectors: [V, dim] float32 vectors of the V entries of the dictionary, zeros for an entry
                without vector.
            is_found: [V] bool, True if the file has a vector of the entry.
        """
        word_vectors = read_word_vectors(path, self.dictionary.symbols, dim=dim)
        words = word_vectors.is_found[self.dictionary.nspecial :]
        logger.info(f"{path}: vectors of {words.sum()} of the dictionary's {len(words)} words")
        return word_vectors

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        ema_model: Optional[Any] = None,
    ) -> tuple[Any, Any, dict[str, Any]]:
        if self.ranking is not None:
            self.ranking.forget()
            # A process without a batch gets a dummy batch from fairseq. Other processes must not
            # take its items for negatives.
            sample = {**sample, "update_num": update_num, "is_dummy": ignore_grad}
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        if self.photos_folder is None or not self.cfg.network_lr_scale:
            super().optimizer_step(optimizer, model, update_num)
            return
        parameters = [x for x in model.image_network.parameters() if x.requires_grad]
        step_with_scaled_network(optimizer, parameters, self.cfg.network_lr_scale)

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        super().begin_valid_epoch(epoch, model)
        if self.ranking is not None:
            self.ranking.forget()

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any, ema_model: Optional[Any] = None
    ) -> tuple[Any, Any, dict[str, Any]]:
        if ema_model is not None:
            model = ema_model
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self.ranking is not None:
            split, device = sample["split"], sample["target"].device
            logging_output.update(self.ranking.get_scores(split, self.datasets, model, device))
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        log_ranking(logging_outputs)
