"""What each word of a visual story looks at, as sections of a page: heat maps whose columns are
words and whose rows are the five images (Li et al. 2020, Transtory-XL, Figure 5) or the slices of
an image's vector.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.extract.images import read_image
from fairseq_mm.extract.media_list import MediaFile
from fairseq_mm.report.html_page import Section
from fairseq_mm.report.thumbnails import thumbnail_uri

_LINE = 104  # letters of the words that stand side by side
_LEAST = 5  # letters of the shortest word's column

# The ground of a cell goes from the card to --heat. Its text turns where the contrast of dark and
# of light letters is equal: at 72 % on white, at 50 % on the dark card; it is 4.3 there.
_STYLE = """
:root { --heat: #0a4bb3; --on-heat: #fff; --letters: #0d1117; }
@media (prefers-color-scheme: dark) { :root { --heat: #8cc4ff; --on-heat: #0d1117;
  --letters: #f2f5f8; } }
.looks { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  margin: .75rem 0 1.5rem; padding: .75rem 1.25rem 1rem; overflow-x: auto;
  box-shadow: 0 1px 3px rgb(0 0 0 / .06); }
.looks table { border-collapse: separate; border-spacing: 2px; margin: .5rem 0; }
.looks th, .looks td { padding: 0; }
.looks h3 { font-size: .8125rem; font-weight: 600; color: var(--quiet); margin: 1.1rem 0 0;
  position: sticky; left: 0; }
.looks h3:first-child { margin-top: .25rem; }
.looks .sentences { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
.looks .word { font: 1rem/1.3 Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif;
  color: var(--text); text-align: center; padding: 0 .3rem .15rem; white-space: nowrap; }
.looks .unknown { text-decoration: underline dotted; }
.looks .end { font: italic .8125rem system-ui, "DejaVu Sans", sans-serif; color: var(--quiet); }
.looks td { min-width: 2.5rem; height: 2.1rem; border-radius: .2rem; text-align: center;
  vertical-align: middle;
  font-size: .75rem; font-weight: 500; font-variant-numeric: tabular-nums;
  color: var(--letters); print-color-adjust: exact; -webkit-print-color-adjust: exact;
  background: color-mix(in srgb, var(--heat) calc(var(--t) * 1%), var(--card));
  box-shadow: inset 0 0 0 1px var(--line); }
.looks tr.low td { height: 1.5rem; }
.looks .over72 { color: var(--on-heat); }
@media (prefers-color-scheme: dark) { .looks .over50 { color: var(--on-heat); } }
.looks tr > th:first-child { width: 5.25rem; text-align: right; white-space: nowrap;
  font-size: .75rem; font-weight: 500; color: var(--quiet); padding-right: .4rem;
  vertical-align: middle; }
.looks .thumb { display: inline-block; width: 2.6rem; height: 1.95rem; border-radius: .2rem;
  background: center / cover no-repeat; vertical-align: middle; margin-right: .35rem;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.looks .boxed { box-shadow: inset 0 0 0 1px var(--line); }
.looks .large { width: 8rem; height: 6rem; margin: 0; border-radius: .375rem; }
.looks .own > th { color: var(--accent); font-weight: 700; }
.looks .own .thumb { outline: 2px solid var(--accent); outline-offset: 0; }
.looks .overview th:first-child { width: auto; max-width: 26rem; white-space: normal;
  text-align: left; font: 1rem/1.35 Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif;
  color: var(--text); padding-right: 1rem; }
.looks .overview td { width: 8rem; height: 2.75rem; font-size: .875rem; }
.looks .overview td.mine { box-shadow: inset 0 0 0 2px var(--accent); }
.looks .overview thead th { text-align: center; font-size: .75rem; color: var(--quiet);
  font-weight: 500; padding-bottom: .2rem; }
.ramp { display: inline-block; width: 9rem; height: .75rem; border-radius: .2rem; margin: 0 .4rem;
  vertical-align: -.05rem; box-shadow: inset 0 0 0 1px var(--line);
  background: linear-gradient(to right, var(--card), var(--heat));
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
"""

_STORY_STYLE = """
.part { font-size: 1rem; margin: 1.25rem 0 .25rem; }
"""


class EmbeddedImage(NamedTuple):
    """An image to show.

    Attributes:
        uri: of a small JPEG, as data.
        width: of the image itself, in pixels.
        height: likewise.
    """

    uri: str
    width: int
    height: int


def embed_image(image: MediaFile, side: int) -> EmbeddedImage:
    """An image whose longer side has at most ``side`` pixels on the page.

    Raises:
        UserError: naming the file, if it cannot be read as an image.
    """
    uri = thumbnail_uri(image, side)
    width, height = read_image(image.content()).size
    return EmbeddedImage(uri, width, height)


class LookingSentence(NamedTuple):
    """A sentence of W words, its end included, and what they look at.

    Attributes:
        text: as people read it.
        words: as the model writes them; the last is the sentence's end.
        is_known: unknown words are underlined.
        log_probs: natural.
        weights: ``[W, N]`` of the images or slices.
    """

    text: str
    words: Sequence[str]
    is_known: Sequence[bool]
    log_probs: np.ndarray
    weights: np.ndarray


def images_section(
    sentences: Sequence[LookingSentence],
    images: Sequence[Optional[EmbeddedImage]],
    *,
    is_missing: Sequence[bool],
    heading: str = "",
) -> Section:
    """How each sentence, and each of its words, divides its attention among the images.

    Args:
        sentences: one an image, with weights of the N images.
        images: N; None for one that is not shown.
        is_missing: N; the model has nothing of those images.
        heading: plain text.
    """
    strongest = max(float(sentence.weights.max()) for sentence in sentences)
    places = range(len(images))
    labels = [_thumb(images[n], n) + str(n + 1) for n in places]
    means = np.stack([sentence.weights[:-1].mean(axis=0) for sentence in sentences])
    parts = [_overview(sentences, means, strongest, images, is_missing)]
    parts.append('<div class="sentences">')
    for k, sentence in enumerate(sentences):
        maps = _heat_maps(sentence, labels, strongest, own=k)
        parts.append(f"<div><h3>Sentence {k + 1}</h3>{maps}</div>")
    parts.append("</div>")
    note = (
        f'<p class="quiet">{_ramp(strongest)} Per cent of a word\'s attention that an image gets, '
        "where the word is written (mean over heads, last layer). A blue frame marks the image "
        "that the sentence tells of, dotted underlines words that are not in the dictionary.</p>"
    )
    return Section(heading, f'{note}<div class="looks">{"".join(parts)}</div>', _STYLE)


def slices_section(
    sentences: Sequence[LookingSentence],
    images: Sequence[Optional[EmbeddedImage]],
    *,
    heading: str = "",
) -> Section:
    """How each word divides its attention among the slices of its own image's vector.

    Args:
        sentences: one an image, with weights of the slices.
        images: one a sentence; None for one that is not shown.
        heading: plain text.
    """
    strongest = max(float(sentence.weights.max()) for sentence in sentences)
    labels = [f"slice {n + 1}" for n in range(sentences[0].weights.shape[1])]
    parts = ['<div class="sentences">']
    for k, sentence in enumerate(sentences):
        shown = _thumb(images[k], k)
        maps = _heat_maps(sentence, labels, strongest, own=None)
        parts.append(f"<div><h3>{shown}Sentence {k + 1}, of image {k + 1}</h3>{maps}</div>")
    parts.append("</div>")
    note = (
        f'<p class="quiet">{_ramp(strongest)} Per cent of a word\'s attention that a slice of its '
        "image's vector gets. The first word of a sentence looks at all alike; dotted underlines "
        "mark words that are not in the dictionary.</p>"
    )
    return Section(heading, f'{note}<div class="looks">{"".join(parts)}</div>', _STYLE)


def _overview(
    sentences: Sequence[LookingSentence],
    means: np.ndarray,
    strongest: float,
    images: Sequence[Optional[EmbeddedImage]],
    is_missing: Sequence[bool],
) -> str:
    """Sentences by images; ``means`` over the words, ends aside."""
    heads = "".join(
        f'<th scope="col">{_thumb(image, n, "large")}<br>{_number(n, is_missing[n])}</th>'
        for n, image in enumerate(images)
    )
    rows = []
    for k, sentence in enumerate(sentences):
        cells = "".join(
            _cell(share, strongest, f"sentence {k + 1}, image {n + 1}: {share:.1%}", mine=n == k)
            for n, share in enumerate(means[k].tolist())
        )
        rows.append(f'<tr><th scope="row">{escape(sentence.text)}</th>{cells}</tr>')
    return (
        '<h3>Mean over the words of a sentence</h3><table class="overview">'
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _heat_maps(
    sentence: LookingSentence, labels: Sequence[str], strongest: float, *, own: Optional[int]
) -> str:
    """A table for each line of words: a column a word, a row a label (HTML)."""
    tables = []
    for line in lines_of_words(sentence.words):
        heads = "".join(_word(sentence, t) for t in line)
        rows = []
        for n, label in enumerate(labels):
            cells = "".join(
                _cell(
                    float(sentence.weights[t, n]),
                    strongest,
                    f"{_shown(sentence, t)}: {sentence.weights[t, n]:.1%}",
                )
                for t in line
            )
            kinds = (["own"] if n == own else []) + (["low"] if own is None else [])
            kind = f' class="{" ".join(kinds)}"' if kinds else ""
            rows.append(f'<tr{kind}><th scope="row">{label}</th>{cells}</tr>')
        tables.append(f"<table><tr><th></th>{heads}</tr>{''.join(rows)}</table>")
    return "".join(tables)


def lines_of_words(words: Sequence[str]) -> list[range]:
    """Places of the words of each line, as many as fit."""
    lines, start, width = [], 0, 0
    for t, word in enumerate(words):
        letters = max(len(word), _LEAST) + 1
        if width + letters > _LINE and t > start:
            lines.append(range(start, t))
            start, width = t, 0
        width += letters
    return [*lines, range(start, len(words))]


def _shown(sentence: LookingSentence, t: int) -> str:
    return "end" if t == len(sentence.words) - 1 else sentence.words[t]


def _word(sentence: LookingSentence, t: int) -> str:
    kind = "word" + ("" if sentence.is_known[t] else " unknown")
    kind += " end" if t == len(sentence.words) - 1 else ""
    title = f"probability {np.exp(sentence.log_probs[t]):.3g}"
    if not sentence.is_known[t]:
        title += " (of all words that are not in the dictionary)"
    return f'<th scope="col" class="{kind}" title="{title}">{escape(_shown(sentence, t))}</th>'


def _cell(share: float, strongest: float, title: str, *, mine: bool = False) -> str:
    heat = 100 * share / max(strongest, 1e-9)
    kinds = [name for name, bound in (("over50", 50), ("over72", 72)) if heat > bound]
    kinds += ["mine"] if mine else []
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td{kind} style="--t:{heat:.0f}" title="{escape(title)}">{100 * share:.0f}</td>'


def _thumb(image: Optional[EmbeddedImage], place: int, kind: str = "") -> str:
    kind = f"thumb {kind}".strip()
    if image is None:
        return f'<span class="{kind} boxed"></span>'
    return (
        f'<span class="{kind}" role="img" aria-label="image {place + 1}" '
        f'style="background-image:var(--image{place + 1})"></span>'
    )


def _number(place: int, is_missing: bool) -> str:
    return f"{place + 1}{' (missing)' if is_missing else ''}"


def _ramp(strongest: float) -> str:
    return f'0 %<span class="ramp"></span>{100 * strongest:.0f} %.'


def story_section(
    title: str, images: Sequence[Optional[EmbeddedImage]], parts: Sequence[Section]
) -> Section:
    """All that is shown of a story, as one section.

    Args:
        title: plain text.
        images: five; each stands in the page once, as an image that the style names.
        parts: sections of this story.
    """
    style = "".join(
        f"--image{n}:url({image.uri});"
        for n, image in enumerate(images, start=1)
        if image is not None
    )
    body = "".join(
        (f'<h2 class="part">{escape(part.heading)}</h2>' if part.heading else "") + part.body
        for part in parts
    )
    return Section(
        title,
        f'<div style="{style}">{body}</div>',
        _STORY_STYLE + "".join(dict.fromkeys(part.style for part in parts)),
        "".join(dict.fromkeys(part.script for part in parts)),
    )
