"""Applies constraints of texts at every step of a search or of sampling.

A summary has no indexed out-of-vocabulary (OOV) tokens that its source lacks. A story of five
images has exactly five sentences, each with a minimum and a maximum number of words. Two more
constraints of stories can be switched on: a word becomes less probable the more often the story has
used it, and a sentence ends only after a punctuation mark.
They come from the released code of

Li, Liu, Mao, Wang. Transtory-XL: Tell Stories from Image Streams. 2020

but are not described in this paper.

Differs from the released code:
- A sentence that reaches the maximum number of words is ended by the separator, even without a
  punctuation mark; the released code truncates the sentence.
- All search strategies of fairseq follow the constraints; the released code generates each word as
  the most frequent of 100 samples.
"""

import math
from collections.abc import Sequence
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.search import Search
from torch import Tensor

from fairseq_mm.data.story_text import NUM_IMAGES, SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.generation.config import typed_option

# words that the released code allows a story to repeat, in addition to the ends of sentences
MAY_REPEAT = "a an am is was are were do does did . ? !".split()  # noqa: SIM905
ENDING_MARKS = (".", "?", "!")


def find_separator(dictionary: Dictionary, path: str = "the dictionary") -> int:
    """Return the dictionary index of the token that separates the sentences of a story.

    ``path`` names the dictionary in the message.
    """
    index = dictionary.index(SEPARATOR)
    if index == dictionary.unk():
        raise UserError(
            f"{path}: has no word {SEPARATOR!r}, which stands between the sentences of a story: "
            "make the folder with fairseq-mm prepare stories."
        )
    return index


class StoryConstraints:
    """Constraints that change the log-probabilities of the next word of a story.

    The log-probability of forbidden words becomes ``-inf``, and other log-probabilities do not
    change, as with fairseq's own length limits. The repetition penalty lowers the probability of
    repeated words, and then scales all probabilities so that their sum is as before.

    Args:
        dictionary: Dictionary of the stories.
        min_words_per_sentence: Minimum number of words of each sentence.
        max_words_per_sentence: Maximum number of words of each sentence.
        repetition_penalty: Penalty p; the probability of a word that the story contains n times is
            divided by 1 + n p. The released code has p = 5; 0 switches the penalty off. It does not
            apply to punctuation, articles and some forms of "to be" and "to do".
        end_after_punctuation: If True, a sentence of less than the maximum number of words ends
            only after one of ``. ? !``.
        no_repeat_ngram: Length of word sequences that may not occur twice in a story; 0 allows all
            repetitions. Only sequences within one sentence count.

    Attributes:
        min_length: Number of tokens of the shortest story, with separators and ``</s>``.
        max_length: Number of tokens of the longest story, with separators and ``</s>``.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        *,
        min_words_per_sentence: int = 1,
        max_words_per_sentence: int = 50,
        repetition_penalty: float = 0.0,
        end_after_punctuation: bool = False,
        no_repeat_ngram: int = 0,
    ) -> None:
        most = max_words_per_sentence
        typed_option("min_words_per_sentence", min_words_per_sentence, int, least=1, most=most)
        typed_option("repetition_penalty", repetition_penalty, float, least=0)
        self.min_words = min_words_per_sentence
        self.max_words = max_words_per_sentence
        self.repetition_penalty = repetition_penalty
        self.no_repeat_ngram = no_repeat_ngram
        self.min_length = NUM_IMAGES * (min_words_per_sentence + 1)
        self.max_length = NUM_IMAGES * (max_words_per_sentence + 1)
        self.start, self.pad, self.end = dictionary.bos(), dictionary.pad(), dictionary.eos()
        self.separator = find_separator(dictionary)
        self.marks = _find_indices(dictionary, ENDING_MARKS) if end_after_punctuation else None
        if self.marks is not None and not len(self.marks):
            raise UserError(
                "`end_after_punctuation` needs one of . ? ! in the dictionary, but it has none: "
                "was the text prepared without punctuation?"
            )
        self._is_counted = torch.ones(len(dictionary))
        self._is_counted[_find_indices(dictionary, MAY_REPEAT)] = 0
        self._is_counted[[self.start, self.pad, self.end, self.separator]] = 0

    def apply(self, lprobs: Tensor, tokens: Tensor) -> Tensor:
        """Apply the constraints to the log-probabilities [..., V] of the next token of N stories.

        ``lprobs`` is changed in place and returned; ``tokens`` [N, t] are the stories so far,
        beginning with fairseq's start token ``</s>``.
        """
        rows = lprobs.view(-1, lprobs.size(-1))
        self._forbid_ends(rows, tokens)
        if self.no_repeat_ngram:
            self._forbid_repeated(rows, tokens)
        if self.repetition_penalty:
            self._penalize_repeated(rows, tokens)
        return lprobs

    def place_in_story(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of complete sentences [N], and of words of the incomplete sentence [N].

        ``tokens`` [N, t] are the stories so far, beginning with fairseq's start token ``</s>``;
        padding at their ends is ignored.
        """
        is_separator = tokens.eq(self.separator)
        places = torch.arange(tokens.size(1), device=tokens.device)
        last = (is_separator * places).amax(dim=1)
        lengths = tokens.ne(self.pad).sum(dim=1)
        return is_separator.sum(dim=1), lengths - 1 - last

    def longest(self, tokens: Tensor) -> int:
        """Return the maximum number of tokens of stories that begin with ``tokens`` [N, t], with
        separators and ``</s>``."""
        sentences, words = self.place_in_story(tokens)
        rest = (self.max_words - words).clamp(min=0) + 1
        rest += (NUM_IMAGES - 1 - sentences).clamp(min=0) * (self.max_words + 1)
        return int((tokens.ne(self.pad).sum(dim=1) - 1 + rest).max())

    def _forbid_ends(self, rows: Tensor, tokens: Tensor) -> None:
        """Forbid ends of sentences and stories in wrong places, and force long sentences to end.

        ``</s>`` may end only the fifth sentence, the separator only the first four. ``rows`` [N, V]
        are the log-probabilities of the next token, changed in place; ``tokens`` are the N stories
        so far, see :meth:`place_in_story`.
        """
        sentences, words = self.place_in_story(tokens)
        is_last = sentences >= NUM_IMAGES - 1
        must_end = words >= self.max_words
        cannot_end = words < self.min_words
        if self.marks is not None:
            marks = self.marks.to(tokens.device)
            cannot_end |= ~must_end & ~tokens[:, -1:].eq(marks).any(dim=1)
        if must_end.any():
            ends = rows[:, [self.separator, self.end]]
            rows.masked_fill_(must_end[:, None], -math.inf)
            rows[:, [self.separator, self.end]] = ends
        rows[:, self.start] = -math.inf
        for index, is_forbidden in ((self.separator, is_last), (self.end, ~is_last)):
            rows[:, index].masked_fill_(is_forbidden | cannot_end, -math.inf)

    def _penalize_repeated(self, rows: Tensor, tokens: Tensor) -> None:
        before = rows.logsumexp(dim=1, keepdim=True)
        counts = torch.zeros_like(rows)
        counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=rows.dtype))
        used = counts.gather(1, tokens) * self._is_counted.to(rows)[tokens]
        # a word that occurs twice is written twice, with the same value
        rows.scatter_(1, tokens, rows.gather(1, tokens) - (self.repetition_penalty * used).log1p())
        after = rows.logsumexp(dim=1, keepdim=True)
        rows += torch.where(after.isfinite(), before - after, torch.zeros_like(after))

    def _forbid_repeated(self, rows: Tensor, tokens: Tensor) -> None:
        n = self.no_repeat_ngram
        words = tokens[:, 1:]
        if words.size(1) < n:
            return
        sequences = words.unfold(1, n, 1)  # [N, t - n, n]
        last = words[:, words.size(1) - n + 1 :].unsqueeze(1)
        repeats = sequences[:, :, : n - 1].eq(last).all(dim=2)
        repeats &= sequences.ne(self.separator).all(dim=2)
        row, start = repeats.nonzero(as_tuple=True)
        word = sequences[row, start, n - 1]
        before = rows[row, word]
        rows[row, word] = -math.inf
        # if all words are forbidden, the search would have no candidate
        is_left = (rows.amax(dim=1) > -math.inf)[row]
        rows[row, word] = torch.where(is_left, rows[row, word], before)


class WrappedSearch(Search):
    """Base class of search strategies that change log-probabilities for another strategy.

    Args:
        search: Search strategy that chooses among the allowed words.
    """

    def __init__(self, dictionary: Dictionary, search: Search) -> None:
        super().__init__(dictionary)
        self.search = search
        self.supports_constraints = search.supports_constraints
        self.stop_on_max_len = search.stop_on_max_len

    def init_constraints(self, batch_constraints: Optional[Tensor], beam_size: int) -> None:
        self.search.init_constraints(batch_constraints, beam_size)

    def set_src_lengths(self, src_lengths: Tensor) -> None:
        self.search.set_src_lengths(src_lengths)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.search.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        self.search.update_constraints(active_hypos)


class ConstrainedSearch(WrappedSearch):
    """Search strategy of fairseq that applies the constraints of stories at every step.

    Attributes:
        num_forced: Number of steps at the beginning in which a prefix may force the token; forced
            tokens are exempt from the constraints.
    """

    def __init__(
        self, dictionary: Dictionary, search: Search, constraints: StoryConstraints
    ) -> None:
        super().__init__(dictionary, search)
        self.constraints = constraints
        self.num_forced = 0

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> Any:
        assert prev_output_tokens is not None
        if step < self.num_forced:
            # fairseq leaves a token of the prefix as the only candidate of its step
            is_forced = lprobs.isfinite().sum(dim=2) == 1
            forced = lprobs[is_forced]
            self.constraints.apply(lprobs, prev_output_tokens)
            lprobs[is_forced] = forced
        else:
            self.constraints.apply(lprobs, prev_output_tokens)
        return self.search.step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)


def constrain_search(generator: Any, constraints: StoryConstraints) -> None:
    """Make a generator of fairseq follow the constraints of stories.

    The generator is changed in place: its search strategy becomes a :class:`ConstrainedSearch`.
    """
    generator.search = ConstrainedSearch(generator.tgt_dict, generator.search, constraints)
    # the constraints have their own n-gram rule, which allows the separator to repeat
    generator.repeat_ngram_blocker = None
    generator.max_len_a = 0
    begin_with(generator, None)


def begin_with(generator: Any, prefix: Optional[Tensor]) -> None:
    """Set the prefix of the next batch of stories in a constrained generator, and their maximum
    length.

    ``prefix`` has [B, p] token indices, right-padded, with which the stories must begin.
    """
    search = generator.search
    constraints: StoryConstraints = search.constraints
    length, search.num_forced = constraints.max_length, 0
    if prefix is not None:
        start = prefix.new_full((prefix.size(0), 1), constraints.end)
        length = constraints.longest(torch.cat([start, prefix], dim=1))
        search.num_forced = prefix.size(1)
    if length > generator.max_len:
        most = generator.max_len // NUM_IMAGES - 1
        raise UserError(
            f"stories of {NUM_IMAGES} sentences of up to {constraints.max_words} words have up to "
            f"{length} tokens, but the model has positions for {generator.max_len}: give "
            f"--max-words-per-sentence {max(most, 1)} or less."
        )
    # fairseq's maximum length does not include </s>
    generator.max_len_b = length - 1


class SourceOovSearch(WrappedSearch):
    """Search strategy whose texts have no other indexed OOV tokens than their source text.

    The tokens ``<unk-0>``, ``<unk-1>``, ... stand for the words of a source text that are not in
    the vocabulary, in the order of the source (See, Liu, Manning. Get To The Point: Summarization
    with Pointer-Generator Networks. ACL 2017, section 2.2). A generated token that does not occur
    in the source would stand for no word and become ``<unk>``.

    Args:
        indices: Indices in the dictionary of the K indexed OOV tokens.
    """

    def __init__(self, dictionary: Dictionary, search: Search, indices: Sequence[int]) -> None:
        super().__init__(dictionary, search)
        self.indices = torch.tensor(indices)
        self._is_absent = torch.empty(0)

    def begin(self, src_tokens: Tensor) -> None:
        """Set the source texts [B, S] (token indices) of the next batch."""
        self.indices = self.indices.to(src_tokens.device)
        is_there = src_tokens.unsqueeze(2).eq(self.indices).any(dim=1)
        self._is_absent = ~is_there  # [B, K]

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Optional[Tensor],
        prev_output_tokens: Optional[Tensor] = None,
        original_batch_idxs: Optional[Tensor] = None,
    ) -> Any:
        # the token of a forced prefix is the only candidate of its step, and stays
        is_free = lprobs.isfinite().sum(dim=2, keepdim=True) > 1  # [B, beam, 1]
        is_forbidden = self._is_absent.unsqueeze(1) & is_free  # [B, beam, K]
        values = lprobs[:, :, self.indices].masked_fill(is_forbidden, -math.inf)
        lprobs[:, :, self.indices] = values
        return self.search.step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        # by rows, not by the indices of the sources: two inputs of a batch may have the same index
        self._is_absent = self._is_absent[batch_idxs]
        super().prune_sentences(batch_idxs)


def _find_indices(dictionary: Dictionary, words: Any) -> Tensor:
    """Return the dictionary indices of ``words``; leave out words that the dictionary lacks."""
    indices = [dictionary.index(word) for word in words]
    return torch.tensor([i for i in indices if i != dictionary.unk()], dtype=torch.long)
