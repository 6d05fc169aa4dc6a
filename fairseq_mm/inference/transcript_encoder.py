"""Encodes transcripts of videos as in a checkpoint's training."""

from typing import Any, NamedTuple, Optional

import torch

from fairseq_mm.data.caption_text import reserved_token
from fairseq_mm.data.indexed_oov import index_oov_words
from fairseq_mm.data.transcript_text import (
    NOT_AVAILABLE,
    TOKENIZERS,
    default_tokenizer,
    is_not_available,
)
from fairseq_mm.errors import UserError


class Transcript(NamedTuple):
    """Transcript of a video as the model reads it.

    Attributes:
        text: Text as given.
        tokens: Token indices with ends.
        oov_words: Words that its indexed OOV tokens denote.
        num_tokens: Number of tokens before truncation, without ends.
        num_cut: Number of truncated tokens.
        is_available: False if the text says that there is no transcript.
    """

    text: str
    tokens: torch.Tensor
    oov_words: list[str]
    num_tokens: int
    num_cut: int
    is_available: bool


class TranscriptEncoder:
    """Encoder from the text of a transcript to tokens.

    Args:
        task: Task with the models, which limit the length of a transcript.
        file: Path of the checkpoint, for messages.

    Attributes:
        limit: Maximum number of tokens of a transcript, without ends.
        tokenizer: Normalisation of the training transcripts as far as it is known: one of
            ``TOKENIZERS``.
    """

    def __init__(self, task: Any, file: str) -> None:
        self.task = task
        self.file = file
        # from the training's dataset, which knows how many positions the ends take
        self.limit: int = self._with_ends([]).limit
        self.tokenizer: str = task.tokenizer or default_tokenizer(task.subwords.kind)
        self._known = frozenset(task.source_dictionary.symbols)

    def encode(self, text: Optional[str], *, tokenizer: Optional[str] = None) -> Transcript:
        """Encode a transcript.

        Args:
            text: Transcript; None for "transcript not available".
            tokenizer: Normalisation before the text is split into subwords: one of ``TOKENIZERS``;
                None for the normalisation of the training data.

        Raises:
            UserError: if the text has no word, no word that the models know, or a control symbol.
        """
        if text is not None and not isinstance(text, str):
            raise UserError(f"`transcript` must be a string, but is a {type(text).__name__}.")
        name = self.tokenizer if tokenizer is None else tokenizer
        if name not in TOKENIZERS:
            raise UserError(
                f"`tokenizer` must be one of {', '.join(TOKENIZERS)}, but is {name!r} instead."
            )
        text = NOT_AVAILABLE if text is None else text
        subwords, dictionary = self.task.subwords, self.task.source_dictionary
        words = subwords.encode(TOKENIZERS[name](text))
        if not words:
            raise UserError("the transcript is empty: it must have at least one word.")
        symbol = reserved_token(words)
        if symbol is not None:
            raise UserError(f"the transcript holds fairseq's control symbol {symbol}.")
        oov_words: list[str] = []
        if subwords.indexed_oov:
            words, oov_words = index_oov_words(words, self._known, subwords.indexed_oov)
        tokens = torch.tensor([dictionary.index(word) for word in words])
        is_available = not is_not_available(text)
        # a transcript in another language or spelling would be summarised as noise
        if is_available and bool((tokens == dictionary.unk()).all()):
            raise UserError(f"none of the transcript's words is in the dictionary of {self.file}.")
        num_cut = max(0, len(words) - self.limit)
        tokens = self._with_ends([tokens])[0]
        return Transcript(text, tokens, oov_words, len(words), num_cut, is_available)

    def _with_ends(self, tokens: list[torch.Tensor]) -> Any:
        """Truncate lines and add their ends, as in the training."""
        # fairseq's lines end with </s>
        end = self.task.source_dictionary.eos()
        lines = [torch.cat([line, line.new_tensor([end])]) for line in tokens]
        return self.task.build_dataset_for_inference(lines, [len(line) for line in lines]).source
