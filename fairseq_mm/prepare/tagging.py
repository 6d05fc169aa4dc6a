"""Writes the part-of-speech tags of a data folder's captions to its records.

The taggers are NLTK's, spaCy's and the rules of this package.
"""

import importlib.util
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional

from tqdm.auto import tqdm

from fairseq_mm.data.output_file import output_file
from fairseq_mm.data.record_split import record_digests
from fairseq_mm.data.records import CAPTIONS, ImportedSplit, open_split, split_names
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.prepare.data_folder import locked_output
from fairseq_mm.prepare.rule_tagger import RuleTagger
from fairseq_mm.prepare.writer import json_line

TAGGERS = ("nltk", "spacy", "rules")
_SPACY_MODEL = "en_core_web_sm"


def tag_folder(
    folder: Path, *, tagger: Optional[str] = None, model: Optional[str] = None
) -> Iterator[str]:
    """Write the field ``tags`` to the records of captions; yield a message for each split.

    ``tagger`` is ``nltk``, ``spacy`` or ``rules`` (default: the first that is installed), ``model``
    spaCy's model (default: ``en_core_web_sm``).
    """
    tagger = tagger or installed_tagger()
    with locked_output(folder):
        splits = [open_split(folder, name) for name in split_names(folder)]
        if not splits or any(
            isinstance(x, ImportedSplit) or x.kind is not CAPTIONS for x in splits
        ):
            raise UserError(
                f"{folder}: has no records of captions (see fairseq-mm prepare upgrade)."
            )
        texts = {split: [" ".join(words) for words in split.iterate_tokens()] for split in splits}
        for split, lines in texts.items():
            counts: Counter[str] = Counter()
            # the rules learn verbs from train, so that all splits are tagged consistently
            tagged = tag_lines(lines, tagger, model=model, known=texts.get(splits[0], lines))
            tags = iter(tqdm(tagged, split.name, len(lines), unit=" lines", disable=None))
            with output_file(split.path) as file:
                for _, record in split.iterate():
                    record["tags"] = list(itertools.islice(tags, len(record["captions"])))
                    counts.update(tag for line in record["tags"] for tag in line.split())
                    file.write(f"{json_line(record)}\n")
            total = sum(counts.values())
            shares = ", ".join(f"{tag} {n / total:.0%}" for tag, n in counts.most_common(4))
            kinds = f"{len(counts)} kinds of tags by {tagger} ({shares})"
            yield f"{split.path}: {len(lines):,} lines, {kinds}"
        # the text is the same, and need not be binarised anew
        record_digests(folder, [split.name for split in splits])


def installed_tagger() -> str:
    """Return ``nltk`` or ``spacy``, the first that is installed."""
    for name in ("nltk", "spacy"):
        if importlib.util.find_spec(name) is not None:
            return name
    raise UserError(
        "neither NLTK nor spaCy is installed: pip install 'fairseq-mm[tag]', or give --tagger "
        "rules, which needs neither and is rougher."
    )


def tag_lines(
    lines: Sequence[str], tagger: str, *, model: Optional[str] = None, known: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the universal part-of-speech tags of each line's tokens, separated by spaces.
    The tagger ``rules`` learns verbs from the lines ``known``."""
    tag: Callable[[list[str]], list[str]]
    if tagger == "nltk":
        tag = _nltk_tagger()
    elif tagger == "spacy":
        tag = _spacy_tagger(model or _SPACY_MODEL)
    else:
        tag = RuleTagger(known).tag
    for line in lines:
        # a tag must be one word: taggers may return an empty one for a token that they do not know
        yield " ".join((t or "X").replace(" ", "_") for t in tag(line.split()))


def _nltk_tagger() -> Callable[[list[str]], list[str]]:
    nltk = import_extra("nltk", extra="tag", purpose="--tagger nltk")

    def tag(tokens: list[str]) -> list[str]:
        try:
            return [tag for _, tag in nltk.pos_tag(tokens, tagset="universal")]
        except LookupError:  # NLTK's own message fills a page
            raise UserError(
                "--tagger nltk: its model of English is missing: python -m nltk.downloader "
                "averaged_perceptron_tagger averaged_perceptron_tagger_eng universal_tagset"
            ) from None

    return tag


def _spacy_tagger(model: str) -> Callable[[list[str]], list[str]]:
    spacy = import_extra("spacy", extra="tag", purpose="--tagger spacy")
    try:
        # tags need neither the parser nor the recognition of entities
        pipeline = spacy.load(model, exclude=["parser", "ner"])
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"--tagger spacy: its model {model} cannot be loaded ({reason}): python -m spacy "
            f"download {model}"
        ) from None

    def tag(tokens: list[str]) -> list[str]:
        # a Doc of given words: pipeline(text) would split the text into other tokens
        document = spacy.tokens.Doc(pipeline.vocab, words=tokens)
        for _, component in pipeline.pipeline:
            document = component(document)
        return [token.pos_ for token in document]

    return tag
