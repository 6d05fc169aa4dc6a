"""What words of a transcript or a summary look at in a video: heat maps of words by frames, with
time across, as sections of a page."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Optional

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import Section

_COLOR = (10, 75, 179)  # of the strongest weight; on a dark page it is made brighter
_MOST_LABELS = 10

_STYLE = """
.watch { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  margin: .5rem 0 1.25rem; box-shadow: 0 1px 3px rgb(0 0 0 / .06); overflow: auto;
  max-height: 46rem; --row: 1.15rem; }
.watch .grid { display: grid; grid-template-columns: max-content minmax(30rem, 1fr) max-content;
  column-gap: .6rem; padding: 0 1.25rem 1rem; }
.watch .top { position: sticky; top: 0; z-index: 1; background: var(--card); padding-top: .75rem; }
.watch .label { text-align: right; font-size: .75rem; color: var(--quiet); align-self: end; }
.watch .words { text-align: right; white-space: nowrap;
  font: .875rem/1 Charter, "Bitstream Charter", Georgia, "DejaVu Serif", serif; }
.watch .words div, .watch .shares div { height: var(--row); line-height: var(--row); }
.watch .shares { font-size: .75rem; font-variant-numeric: tabular-nums; color: var(--quiet);
  text-align: right; }
.watch .words .unknown { text-decoration: underline dotted; }
.watch .words .end { font: italic .75rem/1 system-ui, "DejaVu Sans", sans-serif;
  color: var(--quiet); line-height: var(--row); }
.watch .map { display: block; width: 100%; image-rendering: pixelated; border: 1px solid
  var(--line); border-radius: .2rem; }
.watch .bars { display: block; width: 100%; height: 2.5rem; fill: var(--second);
  border-bottom: 1px solid var(--line); }
.watch .thumbs { display: flex; } .watch .thumbs img { min-width: 0; flex: 1 1 0; width: 0;
  height: 3.4rem; object-fit: cover; border-left: 1px solid var(--card); }
.watch .axis { position: relative; height: 1.1rem; font-size: .6875rem; color: var(--quiet);
  font-variant-numeric: tabular-nums; }
.watch .axis span { position: absolute; transform: translateX(-50%); }
.watch-ramp { display: inline-block; width: 9rem; height: .75rem; border-radius: .2rem;
  margin: 0 .4rem; vertical-align: -.05rem; box-shadow: inset 0 0 0 1px var(--line);
  background: linear-gradient(to right, var(--card), rgb(10 75 179)); }
.watch-seen { min-height: 1.3rem; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .watch .map, .watch-ramp { filter: brightness(1.9); }
  .watch-ramp { background: linear-gradient(to right, rgb(15 18 22), rgb(10 75 179)); } }
"""

# the weight under the pointer, read from the image's own opacity
_SCRIPT = """
document.querySelectorAll(".watch .map").forEach((map) => {
  const canvas = document.createElement("canvas");
  const box = map.closest(".watch"), seen = box.nextElementSibling;
  const words = [...box.querySelectorAll(".words div")].map((word) => word.textContent);
  let pixels = null;
  map.addEventListener("mousemove", (event) => {
    if (!pixels) {
      canvas.width = map.naturalWidth; canvas.height = map.naturalHeight;
      const context = canvas.getContext("2d");
      context.drawImage(map, 0, 0);
      pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    }
    const at = map.getBoundingClientRect();
    const x = Math.min(canvas.width - 1, Math.max(0, Math.floor(
      (event.clientX - at.left) / at.width * canvas.width)));
    const y = Math.min(canvas.height - 1, Math.max(0, Math.floor(
      (event.clientY - at.top) / at.height * canvas.height)));
    const least = Number(map.dataset.least), strongest = Number(map.dataset.strongest);
    const opacity = pixels[4 * (y * canvas.width + x) + 3] / 255;
    const share = least + opacity * (strongest - least);
    const step = Number(map.dataset.step);
    const where = step ? (x * step).toFixed(1) + " s" : "row " + x;
    seen.textContent = words[y] + ", " + where + ": " + share.toPrecision(3) + " %";
  });
});
"""


class Times(NamedTuple):
    """When the frames of a video are.

    Attributes:
        step: seconds from the beginning of one to that of the next; None where nobody knows.
        thumbnails: data URIs of images, each of an equal part of the frames; may be none.
    """

    step: Optional[float] = None
    thumbnails: Sequence[str] = ()


def watching_section(
    words: Sequence[str],
    weights: np.ndarray,
    times: Times,
    *,
    is_known: Sequence[bool],
    heading: str = "",
    sums_over_words: bool = False,
    video_shares: Optional[np.ndarray] = None,
) -> Section:
    """A row a word, a column a frame; above them, the words' mean.

    Args:
        words: W.
        weights: ``[W, M]``.
        times: of the M frames.
        is_known: W; unknown words are underlined.
        heading: plain text.
        sums_over_words: weights are shares of a frame's, not of a word's.
        video_shares: ``[W]``, how much a word takes from the video rather than the transcript.
    """
    W, M = weights.shape
    least, strongest = 100 * float(weights.min()), 100 * float(weights.max())
    shares = label = ""
    if video_shares is not None:
        cells = "".join(f"<div>{100 * share:.0f} %</div>" for share in video_shares.tolist())
        shares, label = f'<div class="shares">{cells}</div>', "video"
    thumbs = ""
    if times.thumbnails:
        thumbs = "".join(f'<img src="{uri}" alt="">' for uri in times.thumbnails)
        thumbs = f'<div class="thumbs">{thumbs}</div>'
    unit = "seconds" if times.step else "rows of features"
    top = (
        f'<div class="label top">words\' mean<br>{unit}</div>'
        f'<div class="top">{thumbs}{_bars(weights.mean(axis=0))}{_axis(M, times.step)}</div>'
        f'<div class="label top">{label}</div>'
    )
    image = (
        f'<img class="map" src="{heat_uri(weights)}" style="height:calc({W} * var(--row))" '
        f'alt="{W} words by {M} frames" data-least="{least:.6g}" '
        f'data-strongest="{strongest:.6g}" data-step="{times.step or 0:.6g}">'
    )
    labels = "".join(map(_word, words, is_known))
    of_what = (
        "a frame's attention that comes from a word"
        if sums_over_words
        else ("a word's attention that a frame gets")
    )
    alike = 100 / (W if sums_over_words else M)
    shown_least, shown_strongest, shown_alike = _told_apart(least, strongest, alike)
    shown = " On the right, what the word takes from the video and not the transcript."
    note = (
        f'<p class="quiet">{shown_least} %<span class="watch-ramp"></span>{shown_strongest} %. '
        f"Per cent of {of_what} (mean over heads and layers); alike for all it would be "
        f"{shown_alike} %. Dotted underlines mark words that are not in the dictionary."
        f"{shown if shares else ''}</p>"
    )
    body = (
        f'{note}<div class="watch"><div class="grid">{top}<div class="words">{labels}</div>'
        f'<div>{image}</div>{shares or "<div></div>"}</div></div><p class="quiet watch-seen"></p>'
    )
    return Section(heading, body, _STYLE, _SCRIPT)


def heat_uri(weights: np.ndarray) -> str:
    """A PNG of a pixel a weight ``[W, M]``, as a data URI: the least cannot be seen, the greatest
    is opaque."""
    least, strongest = float(weights.min()), float(weights.max())
    shares = (weights - least) / max(strongest - least, 1e-12)
    opacity = np.rint(255 * shares).astype(np.uint8)
    color = np.broadcast_to(np.array(_COLOR, np.uint8), (*opacity.shape, 3))
    stream = io.BytesIO()
    pixels = np.concatenate([color, opacity[..., None]], axis=-1)
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _word(word: str, is_known: bool) -> str:
    if not is_known:
        return f'<div class="unknown">{escape(word)}</div>'
    if word == "</s>":
        return '<div class="end">end</div>'
    return f"<div>{escape(word) or '&nbsp;'}</div>"


def _told_apart(least: float, strongest: float, other: float) -> list[str]:
    """The numbers in as few digits as tell the first two apart."""
    for digits in range(3, 8):
        shown = [f"{x:.{digits}g}" for x in (least, strongest, other)]
        if shown[0] != shown[1]:
            break
    return shown


def _bars(mean: np.ndarray) -> str:
    highest = max(float(mean.max()), 1e-12)
    bars = "".join(
        f'<rect x="{i}" y="{1 - share / highest:.4f}" width="1" height="{share / highest:.4f}"/>'
        for i, share in enumerate(mean.tolist())
    )
    return (
        f'<svg class="bars" viewBox="0 0 {len(mean)} 1" preserveAspectRatio="none" role="img" '
        'shape-rendering="crispEdges" aria-label="mean of the words, at most '
        f'{100 * highest:.3g} %">{bars}</svg>'
    )


def _axis(num_frames: int, step: Optional[float]) -> str:
    """Round numbers of seconds, or of frames, where they are."""
    length = num_frames * (step or 1.0)
    gap = 0.1 if step else 1.0
    factors = [2.0, 2.5, 2.0]
    while length / gap > _MOST_LABELS:
        gap *= factors[0]
        factors = [*factors[1:], factors[0]]
    marks = []
    number = 0
    while number * gap <= length * (1 + 1e-9):
        place = 100 * number * gap / length
        marks.append(f'<span style="left:{place:.2f}%">{number * gap:g}</span>')
        number += 1
    return f'<div class="axis">{"".join(marks)}</div>'
