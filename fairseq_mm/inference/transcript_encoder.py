"""What is said in a video -> tokens as a checkpoint's training had them."""

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
    """What is said in a video, as the models read it.

    Attributes:
        text: as it was given.
        tokens: their numbers, the ends included.
        oov_words: words that its indexed OOV tokens stand for.
        num_tokens: before it was cut, ends not counted.
        num_cut: of these, those that were cut off at the end.
        is_available: it does not say that there is none.
    """

    text: str
    tokens: torch.Tensor
    oov_words: list[str]
    num_tokens: int
    num_cut: int
    is_available: bool


class TranscriptEncoder:
    """
    Args:
        task: with the models, which decide how long a transcript may be.
        file: the checkpoint, for messages.

    Attributes:
        limit: longest transcript in tokens, its ends not counted.
        tokenizer: what the transcripts of the training data went through, as far as it is known:
            one of ``TOKENIZERS``.
    """

    def __init__(self, task: Any, file: str) -> None:
        self.task = task
        self.file = file
        self.limit: int = self._with_ends([]).limit
        self.tokenizer: str = task.tokenizer or default_tokenizer(task.subwords.kind)
        self._known = frozenset(task.source_dictionary.symbols)

    def encode(self, text: Optional[str], *, tokenizer: Optional[str] = None) -> Transcript:
        """
        Args:
            text: what is said; None for "transcript not available".
            tokenizer: what it goes through before it becomes subwords: one of ``TOKENIZERS``;
                None for what the training data went through.

        Raises:
            UserError: if it has no word, none that the models know, or a control symbol.
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
        if is_available and bool((tokens == dictionary.unk()).all()):
            raise UserError(f"none of the transcript's words is in the dictionary of {self.file}.")
        num_cut = max(0, len(words) - self.limit)
        tokens = self._with_ends([tokens])[0]
        return Transcript(text, tokens, oov_words, len(words), num_cut, is_available)

    def _with_ends(self, tokens: list[torch.Tensor]) -> Any:
        """Lines as the training cut them, with the ends that it gave them."""
        # fairseq's lines end with </s>
        end = self.task.source_dictionary.eos()
        lines = [torch.cat([line, line.new_tensor([end])]) for line in tokens]
        return self.task.build_dataset_for_inference(lines, [len(line) for line in lines]).source
