"""Protocols of ``fairseq-mm score``: what a preset computes, and how texts become words."""

from typing import Callable, NamedTuple


class Preset(NamedTuple):
    """A paper's protocol: how texts are split, and what is computed."""

    tokenizer: str
    metrics: tuple[str, ...]


PRESETS = {
    "coco": Preset("ptb", ("bleu", "meteor", "rouge_l", "cider", "diversity", "novelty")),
    "how2": Preset("none", ("rouge", "bleu", "meteor", "cider", "content_f1", "novel_ngrams")),
    "m_rnn": Preset("m_rnn", ("bleu", "perplexity", "diversity", "novelty")),
    "vist": Preset(
        "ptb",
        ("meteor_vist", "meteor", "bleu", "rouge_l", "cider", "diversity", "sentences"),
    ),
    "wp": Preset("none", ("diversity", "copying")),
}
METRICS = (
    *("bleu", "meteor", "meteor_vist", "rouge", "rouge_l", "cider", "content_f1", "perplexity"),
    *("diversity", "sentences", "novelty", "novel_ngrams", "copying"),
)
REFERENCES_OF = ("item", "album")
TOKENIZERS = ("ptb", "m_rnn", "wp", "none")


def tokenizer_of(name: str) -> Callable[[str], list[str]]:
    """Text -> words; ``name`` is one of :data:`TOKENIZERS`."""
    if name == "ptb":
        from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

        return ptb_tokenize
    if name == "m_rnn":
        from fairseq_mm.data.caption_text import CaptionTokenizer

        split = CaptionTokenizer("m_rnn")
        # one token, as it was when it was generated
        return lambda text: split(text.replace("<unk>", "unk"))
    if name == "wp":
        from fairseq_mm.data.story_text import tokenize_story_text

        return tokenize_story_text
    return str.split
