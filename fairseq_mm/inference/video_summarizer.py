"""Videos and their transcripts -> summaries in Python: what ``fairseq-mm summarize`` does.

    import fairseq_mm

    summarizer = fairseq_mm.from_pretrained("checkpoints/vg_bart", weights="resnext-101.pth")
    summarizer.summarize(["knots.mp4"], ["hi , i 'm ann and ..."])   # ["learn how to tie ...", ]

    summarizer = fairseq_mm.from_pretrained("checkpoints/t5")        # reads transcripts alone
    summarizer.summarize(None, ["hi , i 'm ann and ..."])

A checkpoint carries its dictionary, its subwords and the identity of the extractor that it was
trained with, so nothing but the extractor's weights is needed beside it. fairseq's own models, such
as ``bart_base``, carry none of these: ``data`` names the folder that they were trained on. Yu, Dai,
Liu, Fung. Vision Guided Generative Pre-trained Language Models for Multimodal Abstractive
Summarization. EMNLP 2021.
"""

import logging
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from fairseq import utils

from fairseq_mm.data.collate import collate
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import (
    Extractor,
    FirstClips,
    build_extractor,
    build_extractor_from_identity,
)
from fairseq_mm.extract.media_list import AnyMedia, media_name
from fairseq_mm.generation.defaults import SAMPLING_BEAM, numbers_of
from fairseq_mm.inference.extractor_provenance import (
    check_recorded,
    check_trained_features,
    weights_file_of,
)
from fairseq_mm.inference.summary_models import SummaryModels, load_summary_models
from fairseq_mm.inference.summary_search import MAX_LEN, Search
from fairseq_mm.inference.text_models import Paths
from fairseq_mm.inference.transcript_encoder import Transcript, TranscriptEncoder

logger = logging.getLogger(__name__)


class Summary(NamedTuple):
    """A generated summary.

    Attributes:
        text: as people read it.
        score: mean log-probability of its tokens, the end included; with ``lenpen`` their sum by
            their number to that power.
    """

    text: str
    score: float


def from_pretrained(
    path: Paths,
    *,
    weights: Optional[str] = None,
    data: Optional[str] = None,
    device: Optional[str] = None,
    states: Optional[dict[str, dict[str, Any]]] = None,
) -> "VideoSummarizer":
    """A summariser from one checkpoint, or an ensemble of several.

    Args:
        path: checkpoint, or folder with ``checkpoint_best.pt`` or else ``checkpoint_last.pt``;
            several as a list or joined by the system's path separator. Their probabilities are
            averaged.
        weights: the extractor's state dict file; found by its content if it lies in the folder of
            a checkpoint.
        data: data folder of models of fairseq's own, whose dictionary and subwords they have.
        device: ``cpu``, ``cuda``, ``cuda:1``; by default a GPU where there is one.
        states: the checkpoints, if :func:`.load_states` has read them
            already.

    Raises:
        UserError: if a checkpoint cannot be loaded, summarises no videos, or two do not fit
            together; or ``weights`` is given for models that read no video.
    """
    loaded = load_summary_models(path, data=data, device=device, states=states)
    return VideoSummarizer(loaded, weights=weights)


class VideoSummarizer:
    """Summaries of videos with transcripts, or of transcripts, by one model or several.

    Args:
        loaded: the models.
        weights: the extractor's state dict file, or None.

    Attributes:
        files: the checkpoints.
        reads_video: False of models of transcripts alone.
        identity: of the extractor, as the feature store of the training data had it; empty if it
            had none.
        feature_dim: channels of the features; 0 where no video is read.
        max_frames: rows of features that are looked at.
        encoder: of transcripts.

    Raises:
        UserError: if weights are given, but no video is read.
    """

    def __init__(self, loaded: SummaryModels, *, weights: Optional[str] = None) -> None:
        self.task = loaded.task
        self.models = loaded.models
        self.files = loaded.files
        self.architectures = loaded.architectures
        self.device = loaded.device
        self.identity: dict[str, Any] = loaded.provenance["extractor"]
        self.feature_dim: int = loaded.provenance["feature_dim"]
        self.reads_video: bool = bool(self.task.reads_video)
        self.max_frames: int = self.task.max_frames
        self.weights = weights
        self.encoder = TranscriptEncoder(self.task, self.files[0])
        if weights is not None and not self.reads_video:
            raise UserError(
                f"`weights` (--weights) is for models of videos, but {self.files[0]} (--arch "
                f"{self.architectures[0]}) reads none."
            )

    def __repr__(self) -> str:
        name = "transcripts"
        if self.reads_video:
            name = f"videos as {self.identity.get('extractor', 'unknown features')}"
        return f"VideoSummarizer({os.pathsep.join(self.files)!r}: {name}, {self.device})"

    @property
    def dictionary(self) -> Any:
        return self.task.target_dictionary

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor that the models were trained with.

        Raises:
            UserError: if it is not known, or its weights are not the ones it had.
        """
        file = self.files[0]
        if not self.reads_video:
            raise UserError(f"{file}: --arch {self.architectures[0]} reads no video.")
        check_recorded(self.identity, file, noun="video")
        try:
            extractor = self._build_extractor()
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
        if extractor.dim != self.feature_dim:
            raise UserError(
                f"{file}: was trained on features of {self.feature_dim} channels, but "
                f"{self.identity['extractor']} gives {extractor.dim}."
            )
        return extractor

    def _build_extractor(self) -> Extractor:
        name = str(self.identity["extractor"])
        if "weights" in self.identity:
            weights_file = weights_file_of(self.identity, self.files, self.weights)
            return build_extractor_from_identity(
                self.identity, weights_file, self.device, reads="videos"
            )
        # as How2's features are published
        if self.weights is None:
            raise UserError(
                f"was trained on features of {name} with weights that are not recorded. Give the "
                "file that made them (--weights FILE; in Python weights=...), or features "
                "(--features STORE)."
            )
        extractor = build_extractor(name, weights=str(self.weights), device=self.device)
        logger.warning(
            "%s: its features do not record their weights and preprocessing: taken to be %s and "
            "%s's own",
            *(self.files[0], self.weights, name),
        )
        return extractor

    def read_video(
        self, video: AnyMedia, *, batch_size: Optional[int] = None, **options: Any
    ) -> FirstClips:
        """The features of a video, as far as the models look.

        Args:
            video: path, content, or an entry of a list.
            batch_size: clips that the extractor gets at a time, by default 8 on a CPU and 64
                elsewhere; it changes nothing but the speed.
            **options: of :meth:`.Extractor.first_clips`:
                ``keep_damaged=False``, ``max_pixels``, ``num_images=0``.

        Raises:
            UserError: if the extractor cannot be rebuilt; or why the video cannot be read, without
                its name.
        """
        size = batch_size or (8 if self.device.type == "cpu" else 64)
        return self.extractor.first_clips(video, self.max_frames, batch_size=size, **options)

    def encode_transcript(
        self, text: Optional[str], *, tokenizer: Optional[str] = None
    ) -> Transcript:
        """See :meth:`.TranscriptEncoder.encode`."""
        return self.encoder.encode(text, tokenizer=tokenizer)

    def check_features(self, attributes: Mapping[str, Any], dim: int, path: str) -> None:
        """
        Args:
            attributes: of a feature store.
            dim: its channels.
            path: its file, for the message.

        Raises:
            UserError: if the models were trained on other features.
        """
        check_trained_features(
            self.identity,
            self.feature_dim,
            self.files[0],
            attributes=attributes,
            dim=dim,
            path=path,
        )

    def check_search(self, search: Search) -> int:
        """
        Returns:
            max_len: tokens of the longest summary, its end not counted.

        Raises:
            UserError: if the search does not fit the models.
        """
        most = len(self.dictionary) - 1
        for name in ("beam", "topk"):
            if getattr(search, name) > most:
                raise UserError(
                    f"`{name}` must be at most {most}, so many words are in the dictionary, but "
                    f"is {getattr(search, name)} instead."
                )
        positions = min(model.max_decoder_positions() for model in self.models) - 1
        max_len = min(MAX_LEN, positions) if search.max_len is None else search.max_len
        if max_len > positions:
            raise UserError(
                f"`max_len` must be at most {positions}, for which {self.files[0]} has positions, "
                f"but is {max_len} instead."
            )
        if search.min_len > max_len:
            raise UserError(
                f"`min_len` must be at most the longest summary, {max_len}, but is "
                f"{search.min_len} instead."
            )
        return max_len

    def summarize(
        self,
        videos: Optional[Sequence[AnyMedia]],
        transcripts: Optional[Sequence[Optional[str]]] = None,
        *,
        tokenizer: Optional[str] = None,
        batch_size: Optional[int] = None,
        keep_damaged: bool = False,
        items: Optional[Sequence[int]] = None,
        **options: Any,
    ) -> list[str]:
        """One summary for each video, in their order.

        Args:
            videos: paths, or contents of files (bytes); None for models of transcripts alone.
            transcripts: what is said in each; None where there is none.
            tokenizer: see :meth:`encode_transcript`.
            batch_size: see :meth:`read_video`.
            keep_damaged: take what can be decoded of truncated and damaged videos.
            items: see :meth:`summarize_features`.
            **options: of :class:`Search`: ``beam=5``, ``max_len=None``, ``min_len=1``,
                ``lenpen=1.0``, ``no_repeat_ngram=3``, ``sampling=False``, ``topk=0``, ``topp=1.0``,
                ``temperature=1.0``, ``seed=1``, ``allow_unk=False``.

        Raises:
            UserError: if a video or a transcript cannot be read (naming it), there are not as many
                of both, or an option does not fit.
        """
        search = Search(**options)
        self.check_search(search)
        for name, given in (("videos", videos), ("transcripts", transcripts)):
            if isinstance(given, (str, bytes, os.PathLike)):
                raise UserError(f"`{name}` must be a list, but is a {type(given).__name__}.")
        if videos is not None and not self.reads_video:
            raise UserError(
                f"{self.files[0]}: --arch {self.architectures[0]} reads no video: give None for "
                "`videos`."
            )
        if transcripts is None:
            transcripts = [None] * len(videos or ())
        self._check_counts("videos", videos, len(transcripts))
        encoded = []
        for number, text in enumerate(transcripts):
            try:
                if text is None and not self.reads_video:
                    raise UserError("there is none, and no video is read.")
                encoded.append(self.encode_transcript(text, tokenizer=tokenizer))
            except UserError as error:
                raise UserError(f"transcript {number}: {error}") from None
        features = None
        if videos is not None:
            self.extractor  # noqa: B018  an extractor that cannot be rebuilt is named first
            features = []
            for number, video in enumerate(videos):
                try:
                    seen = self.read_video(video, batch_size=batch_size, keep_damaged=keep_damaged)
                except UserError as error:
                    raise UserError(f"{media_name(video, number, 'video')}: {error}") from None
                features.append(seen.rows)
        summaries = self.summarize_features(features, encoded, search, items=items)
        return [summary.text for summary in summaries]

    def summarize_features(
        self,
        features: Optional[Sequence[np.ndarray]],
        transcripts: Sequence[Union[Transcript, str, None]],
        search: Optional[Search] = None,
        *,
        items: Optional[Sequence[int]] = None,
    ) -> list[Summary]:
        """Summaries of videos that are features already.

        Args:
            features: for each video ``[frames, D]``, from the extractor of the training data; rows
                behind ``max_frames`` are not looked at. None for models of transcripts alone.
            transcripts: of :meth:`encode_transcript`, or as people write them; None where there is
                none.
            search: how summaries are generated.
            items: numbers of the videos, on which the draws of ``sampling`` depend; by default
                their places.

        Raises:
            UserError: if there are not as many of both, features have another number of channels,
                or the search does not fit the models.
        """
        search = search or Search()
        generator = self._build_generator(search, self.check_search(search))
        self._check_counts("features", features, len(transcripts))
        for number, rows in enumerate(features or ()):
            if rows.ndim != 2 or rows.shape[1] != self.feature_dim or not len(rows):
                raise UserError(
                    f"features of video {number} must be [frames, {self.feature_dim}], but are "
                    f"{list(rows.shape)}."
                )
        encoded = [
            text if isinstance(text, Transcript) else self.encode_transcript(text)
            for text in transcripts
        ]
        items = numbers_of(items, len(encoded))
        size = 8 if self.device.type == "cpu" else 32
        summaries: list[Summary] = []
        for start in range(0, len(encoded), size):
            batch = slice(start, start + size)
            part = None if features is None else features[batch]
            summaries += self._generate(generator, items[batch], part, encoded[batch])
        return summaries

    def _check_counts(self, name: str, given: Optional[Sequence[Any]], count: int) -> None:
        if given is None and self.reads_video:
            raise UserError(
                f"{self.files[0]}: --arch {self.architectures[0]} reads videos: give `{name}`."
            )
        if given is not None and len(given) != count:
            raise UserError(
                f"`{name}` and `transcripts` must be as many, but are {len(given)} and {count}."
            )

    def _build_generator(self, search: Search, max_len: int) -> Any:
        return self.task.build_generator(
            self.models,
            Namespace(
                beam=SAMPLING_BEAM if search.sampling else search.beam,
                max_len_b=max_len,
                min_len=search.min_len,
                lenpen=search.lenpen,
                no_repeat_ngram_size=search.no_repeat_ngram,
                temperature=search.temperature,
                sampling=search.sampling,
                sampling_topk=search.topk or -1,
                sampling_topp=search.topp if search.topp < 1 else -1.0,
            ),
            allow_unk=search.allow_unk,
            seed=search.seed,
        )

    def _generate(
        self,
        generator: Any,
        items: Sequence[int],
        features: Optional[Sequence[np.ndarray]],
        transcripts: Sequence[Transcript],
    ) -> list[Summary]:
        pad = self.dictionary.pad()
        examples = [
            {
                "id": item,
                "features": None
                if features is None
                else features[number][: self.max_frames].astype(np.float32),
                "source": transcript.tokens,
                "target": None,
                "is_first": True,
                "item": number,
            }
            for number, (item, transcript) in enumerate(zip(items, transcripts))
        ]
        sample = collate(examples, pad=pad, start=self.task.start_index, source_pad=pad)
        sample = utils.apply_to_sample(lambda tensor: tensor.to(self.device), sample)
        found = self.task.inference_step(generator, self.models, sample)
        summaries: dict[int, Summary] = {}
        for number, (best, *_) in zip(sample["item"].tolist(), found):
            words = self.dictionary.string(best["tokens"].int().cpu())
            unknowns = (
                transcripts[number].unknowns if self.task.subwords.numbered_unknowns else None
            )
            text = self.task.readable.text_of(words, unknowns)
            summaries[number] = Summary(text, float(best["score"]))
        return [summaries[number] for number in range(len(transcripts))]
