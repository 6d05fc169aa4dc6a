"""Items as cards: images, hypothesis, references and scores, to be sorted and filtered.

Without JavaScript all items are shown in the order of the split.
"""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple, Optional

from fairseq_mm.report.html_page import Section

_STYLE = """
.bar { display: flex; flex-wrap: wrap; gap: .75rem; align-items: center; margin: .5rem 0 1rem;
  position: sticky; top: 0; padding: .5rem 0; background: var(--ground); z-index: 1; }
.bar input, .bar select { font: inherit; font-size: .875rem; color: inherit; padding: .3rem .5rem;
  background: var(--card); border: 1px solid var(--line); border-radius: .375rem; }
.bar input { flex: 1 1 14rem; max-width: 26rem; }
.gallery { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.item { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem; min-width: 0; overflow-wrap: anywhere; }
.item[hidden] { display: none; }
.item .images { display: flex; gap: .5rem; overflow-x: auto; margin-bottom: .5rem; }
.item img { display: block; height: 11rem; max-width: 100%; object-fit: contain;
  border-radius: .25rem; background: var(--line); }
.item .hypothesis { font-size: 1.0625rem; font-weight: 600; }
.item .hypothesis mark { background: var(--mark); color: inherit; border-radius: .2rem; }
.item ul { margin: .4rem 0; padding-left: 1.1rem; color: var(--quiet); font-size: .875rem; }
.item .scores { display: flex; flex-wrap: wrap; gap: .125rem .75rem; font-size: .8125rem;
  font-variant-numeric: tabular-nums; }
.item .scores b { font-weight: 500; color: var(--quiet); }
.item .key { font-size: .75rem; margin-top: .375rem; }
"""

# The order of the items with equal scores, and of those without one (always last), is the file's.
_SCRIPT = """
(function () {
  var gallery = document.querySelector('.gallery');
  var items = Array.prototype.slice.call(gallery.children);
  var order = document.getElementById('order'), words = document.getElementById('words');
  var shown = document.getElementById('shown');
  function score(item, name) {
    var text = item.getAttribute('data-scores');
    var value = text ? JSON.parse(text)[name] : undefined;
    return typeof value === 'number' ? value : NaN;
  }
  function sort() {
    var choice = JSON.parse(order.value), sorted = items.slice();
    if (choice) sorted = items.map(function (item, place) {
      return [score(item, choice[0]), place, item];
    }).sort(function (a, b) {
      if (isNaN(a[0]) || isNaN(b[0])) return isNaN(a[0]) - isNaN(b[0]) || a[1] - b[1];
      return (choice[1] ? b[0] - a[0] : a[0] - b[0]) || a[1] - b[1];
    }).map(function (entry) { return entry[2]; });
    sorted.forEach(function (item) { gallery.appendChild(item); });
  }
  function filter() {
    var wanted = words.value.toLowerCase().split(/\\s+/).filter(Boolean), count = 0;
    items.forEach(function (item) {
      var text = item.textContent.toLowerCase();
      item.hidden = !wanted.every(function (word) { return text.indexOf(word) >= 0; });
      count += !item.hidden;
    });
    shown.textContent = count + ' of ' + items.length + ' items';
  }
  order.addEventListener('change', sort);
  words.addEventListener('input', filter);
  document.querySelector('.bar').hidden = false;
  sort(); filter();
})();
"""


class Item(NamedTuple):
    """One item of a split.

    Attributes:
        key: the line of ``visual_ids``; several keys are separated by tabs.
        hypothesis: generated text, or None if there is none.
        references: raw sentences.
        scores: name to number.
        images: key to data URI.
    """

    key: str
    hypothesis: Optional[str]
    references: Sequence[str] = ()
    scores: Mapping[str, float] = {}
    images: Mapping[str, str] = {}


def gallery_section(items: Sequence[Item], *, heading: str, note: str = "") -> Section:
    """Cards of ``items``, with a box to filter and a menu to sort by any of their scores.

    Args:
        items: in the order of the split.
        heading: plain text.
        note: plain text above the cards.
    """
    names = list(dict.fromkeys(name for item in items for name in item.scores))
    options = ["<option value='null'>in the order of the split</option>"]
    for name in names:
        for falling, words in ((False, "lowest first"), (True, "highest first")):
            value = escape(json.dumps([name, falling]))
            options.append(f'<option value="{value}">{escape(name)}, {words}</option>')
    bar = (
        '<div class="bar" hidden><input id="words" type="search" aria-label="filter" '
        'placeholder="show items with these words"><select id="order" aria-label="order">'
        f'{"".join(options)}</select><span class="quiet" id="shown"></span></div>'
    )
    text = f'<p class="quiet">{escape(note)}</p>' if note else ""
    cards = "\n".join(map(_card, items))
    return Section(heading, f'{text}{bar}<div class="gallery">{cards}</div>', _STYLE, _SCRIPT)


def _card(item: Item) -> str:
    keys = item.key.split("\t")
    images = "".join(
        f'<img src="{escape(uri)}" alt="{escape(key)}" loading="lazy">'
        for key, uri in item.images.items()
    )
    references = "".join(f"<li>{escape(sentence)}</li>" for sentence in item.references)
    scores = "".join(
        f"<span><b>{escape(name)}</b> {value:.4g}</span>" for name, value in item.scores.items()
    )
    finite = {name: value for name, value in item.scores.items() if math.isfinite(value)}
    return (
        f'<article class="item" data-scores="{escape(json.dumps(finite))}">'
        + (f'<div class="images">{images}</div>' if images else "")
        + f'<div class="hypothesis">{_marked(item)}</div>'
        + (f"<ul>{references}</ul>" if references else "")
        + (f'<div class="scores">{scores}</div>' if scores else "")
        + f'<div class="key quiet">{escape(", ".join(keys))}</div></article>'
    )


def _marked(item: Item) -> str:
    """The hypothesis; words that no reference has are marked."""
    if item.hypothesis is None:
        return '<span class="quiet">no hypothesis</span>'
    known = {_bare(word) for sentence in item.references for word in sentence.split()}
    words = []
    for word in item.hypothesis.split():
        bare = _bare(word)
        new = bool(item.references) and bool(bare) and bare not in known
        words.append(f"<mark>{escape(word)}</mark>" if new else escape(word))
    return " ".join(words)


def _bare(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
