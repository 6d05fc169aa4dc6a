"""Alignment of two texts by METEOR 1.5 (Denkowski and Lavie 2014).

Words of both texts can be aligned if they are equal (stage 0), have the same stem (1) or share a
synset of WordNet (2); phrases of up to seven words can be aligned if they are paraphrases (3). A
beam search over the reference's words chooses a subset of these matches without overlaps. The
subset that covers the most words is the best; ties are broken by the number of chunks, then by the
sum of distances.

Properties of METEOR's jar that decide between alignments are kept: a match of single words that are
not equal covers no words, since the jar rounds the weight of 0.5 down; the distance of a match is
added to the alignments without the match, and not to the alignments with it; equal alignments keep
their order; words are compared by Java's 32-bit hash.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics._meteor_tables import Tables
from fairseq_mm.metrics._meteor_words import stem

EXACT, STEM, SYNONYM, PARAPHRASE = STAGES = range(4)
BEAM = 40
# The search takes up to BEAM steps per match, so this bounds its time to about a minute.
MAX_MATCHES = 1_000_000

# Words of a hypothesis that can be aligned with words of a reference: index of the hypothesis's
# first word, number of the hypothesis's words, number of the reference's words, stage. A plain
# tuple, since a corpus has millions of matches.
StageMatch = tuple[int, int, int, int]

_get_key = itemgetter(0)


class Text:
    """Words of a text, prepared for alignments; words and hashes are represented by numbers.

    Args:
        words: Number of each word in the aligner's vocabulary.
        keys: Number of each word's hash; equal words have equal keys.
        stems: Number of each stem's hash.
        is_function: True for each function word.
    """

    __slots__ = (
        *("exact", "is_function", "keys", "num_function_words", "occurrences", "phrases"),
        *("same_stem", "starts", "stems", "words"),
    )

    def __init__(
        self, words: list[int], keys: list[int], stems: list[int], is_function: list[bool]
    ) -> None:
        self.words, self.keys, self.stems, self.is_function = words, keys, stems, is_function
        self.num_function_words = sum(is_function)
        # (start, length, paraphrases) of each phrase with paraphrases, by start, then by length
        self.phrases: list[tuple[int, int, dict[int, int]]] = []
        # phrase -> starts of its occurrences, and its length
        self.occurrences: dict[int, tuple[list[int], int]] = {}
        # filled by index_words
        self.starts: dict[int, list[int]] = {}
        self.exact: dict[int, list[StageMatch]] = {}
        self.same_stem: dict[int, dict[int, list[StageMatch]]] = {}

    def index_words(self) -> None:
        """Prepare lookups of the words of this text, which is a hypothesis.

        ``starts`` maps a word to its positions. ``exact`` maps a word's key to its matches of stage
        0 (equal words). ``same_stem`` maps a stem to a dict from the keys of its words to their
        matches of stage 1 (equal stems).
        """
        if not self.starts:
            for start, (word, key, stem_key) in enumerate(zip(self.words, self.keys, self.stems)):
                self.starts.setdefault(word, []).append(start)
                self.exact.setdefault(key, []).append((start, 1, 1, EXACT))
                stems = self.same_stem.setdefault(stem_key, {})
                stems.setdefault(key, []).append((start, 1, 1, STEM))


class Aligner:
    """Aligner of texts with METEOR's stages for English."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._numbers: dict[str, int] = {}
        # hash -> first word or stem with this hash
        self._first_with_hash: dict[int, int] = {}
        # a row per word of the vocabulary
        self._keys: list[int] = []
        self._stems: list[int] = []
        self._is_function: list[bool] = []
        self._synsets: list[frozenset[int]] = []
        self._phrase_words: list[int] = []
        self._words_of_synset: dict[int, list[int]] = {}
        # word -> other words of the vocabulary that share a synset
        self._synonyms: dict[int, frozenset[int]] = {}

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self._keys)
            # lone surrogates cannot be written to the jar, which gets a question mark
            word = word.encode("utf-8", "replace").decode()
            units = word
            if not word.isascii() and max(word) > "\uffff":
                # strings of Java have surrogate pairs for these characters
                pairs = np.frombuffer(word.encode("utf-16-le", "surrogatepass"), "<u2")
                units = "".join(map(chr, pairs.tolist()))
            self._keys.append(self._hash_number(units))
            self._stems.append(self._hash_number(stem(units)))
            self._is_function.append(word.lower() in self._tables.function_words)
            synsets = self._tables.synsets(word)
            self._synsets.append(synsets)
            for synset in synsets:
                self._words_of_synset.setdefault(synset, []).append(number)
            self._phrase_words.append(self._tables.phrase_word_id(word))
        return number

    def _hash_number(self, word: str) -> int:
        """Return the number of a word's hash in Java."""
        hashed = 0
        for character in word:
            hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
        return self._first_with_hash.setdefault(hashed, len(self._first_with_hash))

    def prepare(self, texts: Iterable[Sequence[str]]) -> list[Text]:
        """Prepare texts, each a sequence of words, for :meth:`align`.

        Texts can be aligned only with texts that were prepared by the same call.
        """
        # the vocabulary grows
        self._synonyms.clear()
        prepared = []
        for words in texts:
            numbers = [self._number(word) for word in words]
            keys = [self._keys[number] for number in numbers]
            stems = [self._stems[number] for number in numbers]
            prepared.append(Text(numbers, keys, stems, [self._is_function[n] for n in numbers]))
        self._find_phrases(prepared)
        return prepared

    def _find_phrases(self, texts: Sequence[Text]) -> None:
        lengths = np.array([len(text.words) for text in texts], np.int64)
        ends = np.cumsum(lengths)
        numbers = np.fromiter(chain.from_iterable(text.words for text in texts), np.int64)
        words = np.array(self._phrase_words, np.int64)[numbers]
        phrases = self._tables.find_phrases(words, np.repeat(ends, lengths))
        paraphrases = self._tables.paraphrases(phrases.states)
        owners = np.searchsorted(ends, phrases.positions, side="right")
        starts = phrases.positions - (ends - lengths)[owners]
        targets = set(chain.from_iterable(paraphrases.values()))
        columns = (owners, starts, phrases.lengths, phrases.states)
        for owner, start, length, phrase in zip(*(column.tolist() for column in columns)):
            if phrase in paraphrases:
                texts[owner].phrases.append((start, length, paraphrases[phrase]))
            if phrase in targets:
                occurrences = texts[owner].occurrences
                occurrences.setdefault(phrase, ([], length))[0].append(start)

    def align(self, hypothesis: Text, reference: Text) -> list[tuple[int, StageMatch]]:
        """Return pairs (index of the first matched reference word, match), in ascending order.
        Raise UserError if the texts have more than ``MAX_MATCHES`` possible matches."""
        matches: list[Sequence[StageMatch]]
        if hypothesis.keys == reference.keys:
            # equal texts are aligned by stage 0 only
            hypothesis.index_words()
            matches = [hypothesis.exact[key] for key in reference.keys]
            _check_number(sum(map(len, matches)))
        else:
            matches = self._find_matches(hypothesis, reference)
        fixed = _find_fixed(matches, len(hypothesis.words))
        if fixed is None:
            return [(start, found[0]) for start, found in enumerate(matches) if found]
        return _search(matches, fixed)

    def _find_matches(self, hypothesis: Text, reference: Text) -> list[Sequence[StageMatch]]:
        """Return the possible matches from each word of the reference on, in METEOR's order."""
        hypothesis.index_words()
        exact, same_stem, starts = hypothesis.exact, hypothesis.same_stem, hypothesis.starts
        result: list[Sequence[StageMatch]] = []
        total = 0
        for word, key, stem_key in zip(reference.words, reference.keys, reference.stems):
            found: Sequence[StageMatch] = exact.get(key, ())
            stems = same_stem.get(stem_key)
            if stems is not None and (len(stems) > 1 or key not in stems):
                others = sorted(chain(*(stems[other] for other in stems if other != key)))
                found = [*found, *others]
            synonyms = self._synonyms.get(word)
            if synonyms is None:
                words = chain.from_iterable(self._words_of_synset[s] for s in self._synsets[word])
                synonyms = frozenset(other for other in words if self._keys[other] != key)
                self._synonyms[word] = synonyms
            if synonyms and not synonyms.isdisjoint(starts.keys()):
                positions = sorted(chain(*(starts[other] for other in synonyms & starts.keys())))
                found = [*found, *((start, 1, 1, SYNONYM) for start in positions)]
            result.append(found)
            total += len(found)
            _check_number(total)
        added: dict[int, list[StageMatch]] = {}
        for start, length, other_start, other_length in _paraphrases(reference, hypothesis):
            match = (other_start, other_length, length, PARAPHRASE)
            added.setdefault(start, []).append(match)
            total += 1
            _check_number(total)
        for start, length, other_start, other_length in _paraphrases(hypothesis, reference):
            added.setdefault(other_start, []).append((start, length, other_length, PARAPHRASE))
            total += 1
            _check_number(total)
        for start, paraphrases in added.items():
            result[start] = [*result[start], *paraphrases]
        return result


def _check_number(total: int) -> None:
    if total > MAX_MATCHES:
        raise UserError(
            f"METEOR aligns texts in which up to {MAX_MATCHES:,} pairs of words match, but a "
            "hypothesis and its reference have more such pairs. Score shorter texts."
        )


def _paraphrases(text: Text, other: Text) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and length of a phrase in ``text``, and of its paraphrase in ``other``."""
    occurrences = other.occurrences
    for start, length, paraphrases in text.phrases:
        if not occurrences.keys().isdisjoint(paraphrases.keys()):
            common = occurrences.keys() & paraphrases.keys()
            for phrase in sorted(common, key=paraphrases.__getitem__):
                other_starts, other_length = occurrences[phrase]
                for other_start in other_starts:
                    yield start, length, other_start, other_length


def _find_fixed(matches: Sequence[Sequence[StageMatch]], num_words: int) -> Optional[list[bool]]:
    """Return, for each word of the reference, True if it has a single match that overlaps with no
    other match; return None if all matches are of this kind."""
    # number of matches that contain a word
    in_hypothesis, in_reference = [0] * num_words, [0] * len(matches)
    for position, found in enumerate(matches):
        for start, length, reference_length, _ in found:
            for word in range(start, start + length):
                in_hypothesis[word] += 1
            for word in range(position, position + reference_length):
                in_reference[word] += 1
    fixed = [False] * len(matches)
    has_choice = False
    for position, found in enumerate(matches):
        if found:
            start, length, reference_length, _ = found[0]
            fixed[position] = len(found) == 1 and (
                max(in_hypothesis[start : start + length]) == 1
                and max(in_reference[position : position + reference_length]) == 1
            )
            has_choice = has_choice or not fixed[position]
    return fixed if has_choice else None


# Partial alignment of the beam search:
# - key, by which the beam is sorted, the smallest first;
# - end of the last match in the hypothesis, or -1 if the last word of the reference is not aligned;
# - index of the first word of the reference that no match covers yet;
# - bits of the hypothesis's aligned words, except words of fixed matches;
# - matches that were chosen, as nested pairs of a match and the earlier matches.
_Path = tuple[int, int, int, int, Optional[tuple]]


def _search(
    matches: Sequence[Sequence[StageMatch]], fixed: Sequence[bool]
) -> list[tuple[int, StageMatch]]:
    """Choose matches by a beam search like that of METEOR's official jar. ``matches`` begin at each
    word of the reference; ``fixed`` words have a single match, which is part of all alignments."""
    distances = sum(abs(j - match[0]) for j, found in enumerate(matches) for match in found)
    # The key is a sum of distances, with units for chunks and for words above it.
    chunk = 1 << distances.bit_length()
    covered = chunk << (len(matches) + 1).bit_length()
    paths: list[_Path] = [(0, -1, 0, 0, None)]
    position = 0
    while position < len(matches):
        paths.sort(key=_get_key)
        del paths[BEAM:]
        if matches[position] and not fixed[position]:
            paths = _branch(paths, position, matches[position], chunk, covered)
            position += 1
        else:
            # Every alignment goes the same way up to the next choice. Words one by one if an
            # alignment is inside of a phrase, since the beam is sorted at each word.
            last = len(matches)
            if any(path[2] > position for path in paths):
                last = position + 1
            paths, position = _advance(paths, position, last, matches, fixed, chunk)
    paths.sort(key=_get_key)
    best = min(paths[:BEAM], key=lambda path: path[0] + (chunk if path[1] != -1 else 0))
    result = [(j, found[0]) for j, found in enumerate(matches) if fixed[j]]
    chosen = best[4]
    while chosen is not None:
        match, chosen = chosen
        result.append(match)
    return sorted(result)


def _branch(
    paths: Sequence[_Path], position: int, found: Sequence[StageMatch], chunk: int, covered: int
) -> list[_Path]:
    """Extend each partial alignment by each possible match at a word, and once without a match."""
    alternatives = []
    for match in found:
        start, length, reference_length, stage = match
        # the weight of 0.5 after stage 0 is rounded down for each text
        words = 2 if stage == EXACT else length // 2 + reference_length // 2
        mask = ((1 << length) - 1) << start
        after = position + reference_length
        pair = (position, match)
        distance = abs(position - start)
        alternatives.append((start, mask, words * covered, start + length, after, distance, pair))
    result = []
    for path in paths:
        key, end, undecided, used, chosen = path
        if undecided > position:
            result.append(path)
            continue
        for start, mask, gain, match_end, after, distance, pair in alternatives:
            if not used & mask:
                breaks = end != -1 and end != start
                new_key = key - gain + chunk if breaks else key - gain
                result.append((new_key, match_end, after, used | mask, (pair, chosen)))
                # to the key of the alternatives, as in the jar
                key += distance
        if end != -1:
            key += chunk
        result.append((key, -1, position + 1, used, chosen))
    return result


def _advance(
    paths: Sequence[_Path],
    position: int,
    last: int,
    matches: Sequence[Sequence[StageMatch]],
    fixed: Sequence[bool],
    chunk: int,
) -> tuple[list[_Path], int]:
    """Extend all partial alignments by fixed matches and words without matches, where there is no
    choice, up to a word with several possible matches or to ``last``."""
    # a gap ends the chunk of every alignment, a match the chunks that it does not continue
    continued = matches[position][0][0] if fixed[position] else -1
    first, end = position, -1
    while position < last and (fixed[position] or not matches[position]):
        if fixed[position]:
            start, length, reference_length, _ = matches[position][0]
            end = start + length
            position += reference_length
        else:
            end = -1
            position += 1
    result = []
    for path in paths:
        key, path_end, undecided, used, chosen = path
        if undecided > first:
            result.append(path)
        else:
            breaks = path_end != -1 and path_end != continued
            result.append((key + chunk if breaks else key, end, position, used, chosen))
    return result, position
