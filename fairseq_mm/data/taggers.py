"""Part-of-speech taggers: NLTK's, spaCy's, and the rules of this package."""

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

from fairseq_mm.data.rule_tagger import RuleTagger
from fairseq_mm.errors import UserError, import_extra

TAGGERS = ("nltk", "spacy", "rules")
_SPACY_MODEL = "en_core_web_sm"


def installed_tagger() -> str:
    """Return the first of NLTK and spaCy that is installed.

    Raises:
        UserError: If neither is installed.
    """
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
    """Tag the tokens of lines.

    Args:
        lines: Tokens separated by spaces.
        tagger: One of ``TAGGERS``.
        model: Model of spaCy; by default ``en_core_web_sm``.
        known: Texts from which ``rules`` learns verbs.

    Returns:
        For each line the universal tags of its tokens, separated by spaces.

    Raises:
        UserError: If the tagger or its model is not installed.
    """
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
