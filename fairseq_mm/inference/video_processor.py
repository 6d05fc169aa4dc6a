"""Turns videos with transcripts into examples of the task ``video_summarization``."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypedDict, Union

import numpy as np
import torch

from fairseq_mm.data.indexed_oov import index_oov_words
from fairseq_mm.data.transcript_text import (
    NOT_AVAILABLE,
    TOKENIZERS,
    is_not_available,
)
from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import Extractor, FirstClips, build_extractor
from fairseq_mm.extract.media import VIDEOS, AnyMedia, MediaFile
from fairseq_mm.generation.config import typed_option
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.inference.image_processor import MediaReader, is_features, list_media
from fairseq_mm.inference.processor import Decoded, Example, Processor, read_field
from fairseq_mm.prepare.jsonl import text_or_file

logger = logging.getLogger(__name__)


class Transcript(NamedTuple):
    """Transcript of a video as the model reads it.

    Attributes:
        text: Text before tokenization.
        tokens: Token indices, truncated, with start and end symbols as in training.
        oov_words: Words that the tokens ``<unk-0>``, ``<unk-1>``, ... stand for.
        num_tokens: Number of tokens before truncation, without start and end symbols.
        is_available: False if the text is "transcript not available".
    """

    text: str
    tokens: torch.Tensor
    oov_words: list[str]
    num_tokens: int
    num_cut: int
    is_available: bool


class TranscriptEncoder:
    """Encoder that converts the text of a transcript to tokens.

    Attributes:
        limit: Maximum number of tokens of a transcript, without start and end symbols.
        tokenizer: Name in ``TOKENIZERS`` of the normalisation of the training transcripts; the
            default for the kind of subwords if the training did not record it.
    """

    def __init__(self, task: Any, file: str) -> None:
        self.task = task
        self.file = file
        # from the task's dataset, which knows how many positions the start and end symbols take
        self.limit: int = self._with_ends([]).limit
        # the default of `prepare videos`
        default = "words" if task.subwords.kind == "none" else "none"
        self.tokenizer: str = task.tokenizer or default
        self._known = frozenset(task.source_dictionary.symbols)

    def encode(self, text: Optional[str], *, tokenizer: Optional[str] = None) -> Transcript:
        """Convert a transcript to the models' tokens; None means "transcript not available".

        ``tokenizer``, in ``TOKENIZERS``, normalises the text before it is split into subwords; by
        default as in training.
        """
        text = NOT_AVAILABLE if text is None else typed_option("transcript", text, str)
        name = self.tokenizer if tokenizer is None else tokenizer
        name = typed_option("tokenizer", name, str, choices=[*TOKENIZERS])
        subwords, dictionary = self.task.subwords, self.task.source_dictionary
        words = subwords.encode(TOKENIZERS[name](text))
        oov_words: list[str] = []
        if subwords.indexed_oov:
            words, oov_words = index_oov_words(words, self._known, subwords.indexed_oov)
        tokens = torch.tensor([dictionary.index(word) for word in words], dtype=torch.long)
        # if somebody says "<pad>" or "</s>", it is an unknown word, not the special symbol
        tokens[tokens < dictionary.nspecial] = dictionary.unk()
        is_available = not is_not_available(text)
        # an empty transcript, or one in another language or spelling, would be summarised as noise
        if is_available and bool((tokens == dictionary.unk()).all()):
            raise UserError(f"none of the transcript's words is in the dictionary of {self.file}.")
        num_cut = max(0, len(words) - self.limit)
        tokens = self._with_ends([tokens])[0]
        return Transcript(text, tokens, oov_words, len(words), num_cut, is_available)

    def _with_ends(self, tokens: list[torch.Tensor]) -> Any:
        """Truncate each sequence of token indices in ``tokens``, and add start and end symbols.

        It uses the dataset class of training for this.
        """
        # fairseq's lines end with </s>
        end = self.task.source_dictionary.eos()
        lines = [torch.cat([line, line.new_tensor([end])]) for line in tokens]
        return self.task.build_dataset_for_inference(lines, [len(line) for line in lines]).source


class VideoReader(MediaReader):
    """Reader that turns videos into features like the training data's; see :class:`MediaReader`.

    Attributes:
        reads_video: False if the models read only transcripts.
        max_frames: Maximum number of clips of a video; each clip has one feature vector. Further
            clips are not read.
    """

    noun = "video"
    reads = "videos"

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded, weights=weights)
        self.reads_video = bool(loaded.task.reads_video)
        self.max_frames: int = loaded.task.max_frames

    def _build_extractor(self) -> Extractor:
        # How2's features name their network, but record no weights file
        if "weights" in self.identity or self.weights is None:
            return super()._build_extractor()
        name = str(self.identity["extractor"])
        extractor = build_extractor(name, weights=str(self.weights), device=self.device)
        logger.warning(
            "%s: its features do not record their weights and preprocessing: taken to be %s and "
            "%s's own",
            *(self.files[0], self.weights, name),
        )
        return extractor


class Video(TypedDict, total=False):
    """Input of a model that summarizes videos: a video and its transcript.

    The video is a path, a file's content or features [frames, D].
    """

    video: Union[AnyMedia, np.ndarray]
    transcript: Union[str, Transcript, None]


AnyInput = Union[Video, AnyMedia, str]


class VideoProcessor(Processor[AnyInput]):
    """Processor that turns videos with transcripts into examples for models that summarize videos.

    An input is ``{"video": path, "transcript": text}``. A string is the path of a video without
    transcript; for models that read only transcripts, it is a transcript.

    Args:
        loaded: Models that read the examples.
        weights: Path of the video extractor's weights (state dict), see :class:`.MediaReader`.
    """

    _has_warned = False
    batch_sizes = (8, 32)
    reading_options: Mapping[str, type] = {
        "tokenizer": str,
        "batch_size": int,
        "max_pixels": int,
        "num_images": int,
    }
    record_fields = ("transcript",)
    # one batch: features of videos are large
    num_read = batch_sizes

    def __init__(self, loaded: LoadedModels, *, weights: Optional[str] = None) -> None:
        super().__init__(loaded)
        self.reader = VideoReader(loaded, weights=weights)
        names = ("video", "transcript", "transcript_file")
        self.input_fields = names if self.reader.reads_video else names[1:]
        if self.reader.reads_video:
            self.extractor_identity = self.reader.identity
        self.encoder = TranscriptEncoder(loaded.task, loaded.files[0])

    def is_single(self, inputs: Any) -> bool:
        is_one = isinstance(inputs, (str, bytes, os.PathLike, Mapping, np.ndarray))
        return is_one or hasattr(inputs, "read")

    def from_record(self, record: Mapping[str, Any], folder: Optional[str]) -> AnyInput:
        names = ("transcript", "transcript_file")
        known = {name: read_field(record, name) for name in names if record.get(name) is not None}
        video: Video = {}
        if known:
            # without a folder, the record is from a split, and its texts are no names of files
            if folder is None:
                video["transcript"] = known["transcript"]
            else:
                video["transcript"] = text_or_file(known, "transcript", Path(folder))
        if record.get("video") is None:
            return video
        if not self.reader.reads_video:
            if not self._has_warned:
                name = f"{self.loaded.files[0]} (--arch {self.loaded.architectures[0]})"
                logger.warning("%s reads no video: only transcripts are summarized", name)
            self._has_warned = True
        elif isinstance(record["video"], MediaFile):
            video["video"] = record["video"]
        else:
            video["video"] = os.path.join(folder or "", read_field(record, "video"))
        return video

    def list_files(self, paths: Sequence[str]) -> list[tuple[dict[str, Any], Optional[UserError]]]:
        return list_media(paths, VIDEOS)

    def from_features(
        self, record: Mapping[str, Any], folder: Optional[str], features: list[Any]
    ) -> AnyInput:
        video: Any = self.from_record({**record, "video": None}, folder)
        return {**video, "video": features[0]}

    def get_id(self, record: Mapping[str, Any], number: int) -> str:
        video = record.get("video")
        return os.path.basename(video) if isinstance(video, str) else str(number)

    def describe_reading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"tokenizer": options.get("tokenizer") or self.encoder.tokenizer}

    def describe_input(self, value: AnyInput, position: int) -> str:
        video: Any = value.get("video") if isinstance(value, Mapping) else value
        is_named = self.reader.reads_video and isinstance(video, (str, os.PathLike))
        return os.fspath(video) if is_named else f"video {position}"

    def example(self, value: Any, **options: Any) -> Example:
        """Return the example of a video with transcript.

        The keyword options are ``tokenizer``, as in :meth:`.TranscriptEncoder.encode`, and
        ``batch_size``, ``max_pixels`` and ``num_images``, as in :meth:`.Extractor.first_clips`.
        """
        # the reader of videos does not know this option
        tokenizer = options.pop("tokenizer", None)
        video, transcript = self._split_input(value)
        if not isinstance(transcript, Transcript):
            transcript = self.encoder.encode(transcript, tokenizer=tokenizer)
        clips = None if video is None else self._read_clips(video, options)
        fields: dict[str, Any] = {
            "transcript_tokens": transcript.num_tokens,
            "transcript_tokens_cut": transcript.num_cut,
        }
        remarks = {}
        if not transcript.is_available:
            remarks[f'no transcript ("{NOT_AVAILABLE}" is read)'] = ""
        if transcript.num_cut:
            remark = f"transcript truncated to {self.encoder.limit} tokens"
            remarks[remark] = f"of {transcript.num_tokens}"
        if clips is not None:
            fields.update(frames=len(clips.rows), frames_cut=clips.is_cut)
            if clips.is_cut:
                remarks[f"video truncated to {self.reader.max_frames} frames (clips)"] = ""
        return Example(
            features=None if clips is None else clips.rows,
            source=transcript.tokens,
            origin=transcript,
            oov_tokens=transcript.oov_words,
            fields=fields,
            remarks=remarks,
            images=() if clips is None else clips.images,
        )

    def _split_input(self, value: Any) -> tuple[Any, Union[str, Transcript, None]]:
        """Return video and transcript of an input; None for a missing video or transcript."""
        name = f"{self.loaded.files[0]}: --arch {self.loaded.architectures[0]}"
        if not isinstance(value, Mapping):
            value = {"video" if self.reader.reads_video else "transcript": value}
        video, transcript = value.get("video"), value.get("transcript")
        reads_video = self.reader.reads_video
        is_whole = (video is not None) == reads_video and (reads_video or transcript is not None)
        if not is_whole or set(value) - {"video", "transcript"}:
            needed = "videos: give `video`, a file or features, and `transcript` if there is one"
            needed = needed if reads_video else "no video: give `transcript` alone"
            raise UserError(f"{name} reads {needed}.")
        return video, transcript

    def _read_clips(self, video: Any, options: Mapping[str, Any]) -> FirstClips:
        limit = self.reader.max_frames
        if is_features(video):
            clips = FirstClips(video, len(video) > limit, [])
        else:
            clips = self.reader.extractor.first_clips(video, limit, **options)
        self.reader.check_rows(clips.rows)
        # as in training; the models have no positions for more frames
        return clips._replace(rows=clips.rows[:limit].astype(np.float32))

    def tokenize(self, text: str) -> str:
        return " ".join(self.task.subwords.encode(text))

    def decode(self, tokens: torch.Tensor, example: Example) -> Decoded:
        line = self.dictionary.string(tokens)
        has_oov = self.task.subwords.indexed_oov
        text = self.task.readable.decode_text(line, example.oov_tokens if has_oov else None)
        return Decoded(text, line)
