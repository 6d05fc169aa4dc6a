#!/usr/bin/env python3
"""Parts of speech of a prepared folder's captions: the field `tags` of its records.

A text of tags per caption, a universal tag for each of its tokens: structures for --arch sc_nlm.
NLTK or spaCy does it where it is installed with a model of English (python -m nltk.downloader
averaged_perceptron_tagger_eng universal_tagset; python -m spacy download en_core_web_sm).
--tagger rules needs neither and is rougher. Tags of any other tagger will do as well.
"""

import argparse
import importlib.util
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Callable, Optional

from tqdm.auto import tqdm

from fairseq_mm.cli.script import run_script
from fairseq_mm.data.output_file import output_file
from fairseq_mm.data.record_split import CAPTIONS, record_digests
from fairseq_mm.data.records import ImportedSplit, open_split, split_names
from fairseq_mm.errors import UserError, import_extra
from fairseq_mm.inference.candidates import FUNCTION_WORDS_BY_TAG
from fairseq_mm.prepare.data_folder import locked_output
from fairseq_mm.prepare.writer import json_line

TAGGERS = ("nltk", "spacy", "rules")
_SPACY_MODEL = "en_core_web_sm"

# The rules use universal tags (Petrov, Das, McDonald. A Universal Part-of-Speech Tagset. LREC 2012,
# https://arxiv.org/abs/1104.2086). They suit captions, in which most words are nouns, verbs with
# -ing, and words of the closed classes; a trained tagger is better.
# words of the closed classes and frequent words of the open ones, by their universal tag
_CLOSED = {
    **FUNCTION_WORDS_BY_TAG,
    "ADV": (
        "very together away also just almost too still only again apart forward backwards "
        "backward upside here now then when where how back ahead alone high low close "
        "sideways outdoors indoors outstretched airborne overhead nearby half well even "
        "perhaps"
    ),
    "VERB": (
        "is are was were be been being am has have had having do does did can could will "
        "would may might must should seems appears looks get gets got goes go went take takes "
        "took make makes made stand stands stood sit sits sat lie lies lay hold holds held "
        "wear wears wore run runs ran ride rides rode throw throws threw catch catches caught "
        "swim swims swam fly flies flew eat eats ate leap leaps leapt swings swung dressed "
        "covered worn seen shown filled surrounded attached leashed tied"
    ),
    "ADJ": (
        "red blue green yellow black white brown gray grey orange pink purple tan blond "
        "blonde golden dark light bright pale colorful colored striped plaid spotted little "
        "small big large huge tall short long young old older younger elderly wet dry dirty "
        "muddy sandy snowy grassy rocky wooden empty busy crowded open many several few other "
        "same different male female asian african american black-and-white bare shirtless "
        "barefoot naked happy fluffy furry hairy shallow deep steep narrow lone ready outdoor "
        "indoor plastic metal wide tiny giant heavy new beautiful steel stone concrete hot "
        "cold sunny more most first second last similar various front own public professional "
        "chinese toy"
    ),
    "NUM": "one two three four five six seven eight nine ten eleven twelve dozen hundred",
}
_TAGS = {word: tag for tag, words in _CLOSED.items() for word in words.split()}
_PLURALS = {"people", "men", "women", "children", "they", "we", "you", "who"}
# frequent nouns of captions that the rules would tag as verbs, by their ending
_NOUNS_IN_ING = {
    "building", "clothing", "railing", "ring", "spring", "string", "thing", "king", "wing",
    "ceiling", "evening", "morning", "painting", "wedding", "swing", "sling",
}  # fmt: skip
_ADJECTIVE_ENDINGS = ("ful", "ous", "ish", "less", "able", "ible")


class RuleTagger:
    """Tagger that uses word lists, endings and neighbouring words.

    Args:
        lines: Texts of lower-case tokens separated by spaces, from which the tagger learns verbs: a
            word without a verb's ending is tagged as a verb only if its -ing form is in the texts.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        words = {word for line in lines for word in line.split()}
        self.gerunds = {word for word in words if word.endswith("ing")}

    def tag(self, tokens: list[str]) -> list[str]:
        tags: list[str] = []
        has_verb = False
        for place, token in enumerate(tokens):
            before = tags[-1] if tags else "."
            word_before = tokens[place - 1].lower() if place else ""
            tag = self._choose_tag(token.lower(), before, word_before, has_verb)
            # a running dog: a word between an article and its noun is no verb
            follows_ing = before == "VERB" and word_before.endswith("ing")
            if tag == "NOUN" and follows_ing and tags[-2:-1] in (["DET"], ["ADJ"], ["NUM"]):
                tags[-1] = "ADJ"
            # a clause has one verb: after it, a word that ends in -s is a noun again
            has_verb = tag == "VERB" or (has_verb and tag not in ("CONJ", "."))
            tags.append(tag)
        return tags

    def _choose_tag(self, token: str, before: str, word_before: str, has_verb: bool) -> str:
        if not any(letter.isalnum() for letter in token):
            return _TAGS.get(token, ".")
        if any(letter.isdigit() for letter in token):
            return "NUM"
        if token in _TAGS:
            return _TAGS[token]
        if token.endswith("ing") and token not in _NOUNS_IN_ING:
            return "VERB"
        # shorter words with these endings are others: fly, ugly, red, bed, sled
        if token.endswith("ly") and len(token) > 4:
            return "ADV"
        if token.endswith("ed") and len(token) > 4:
            return "ADJ" if before in ("DET", "NUM", "ADJ") else "VERB"
        if token.endswith(_ADJECTIVE_ENDINGS):
            return "ADJ"
        if word_before in ("to", "not") and self._has_gerund(token):
            return "VERB"
        is_plural = word_before in _PLURALS or re.search("[^s]s$", word_before) is not None
        # verb and noun agree in number: a dog jumps, dogs jump
        agrees = token.endswith("s") != is_plural
        if before in ("NOUN", "PRON") and not has_verb and agrees:
            return "VERB" if self._has_gerund(_stem(token)) else "NOUN"
        return "NOUN"

    def _has_gerund(self, word: str) -> bool:
        # jumping for jump, running for run, diving for dive
        dropped = [f"{word[:-1]}ing"] if word.endswith("e") else []
        forms = [f"{word}ing", f"{word}{word[-1:]}ing", *dropped]
        return len(word) > 1 and not self.gerunds.isdisjoint(forms)


def _stem(word: str) -> str:
    """Remove a verb's ending: return jump for jumps, catch for catches, carry for carries."""
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="folder of `fairseq-mm prepare captions`")
    parser.add_argument(
        "--tagger", choices=TAGGERS, help="default: NLTK or spaCy, whichever is installed"
    )
    parser.add_argument("--model", help="of spaCy (default: en_core_web_sm)")


def run(args: argparse.Namespace) -> int:
    for line in tag_folder(args.data, tagger=args.tagger, model=args.model):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
