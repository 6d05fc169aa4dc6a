"""The sheets of a study: a CSV for crowd platforms, and a page on which one can answer.

The page is one file that needs no network; answers stay in the browser until they are downloaded
or copied as CSV. Fields of the CSV are HTML, escaped and with ``<br>`` for line breaks: Mechanical
Turk and its like put them into their template as they are, and take no line breaks in a field.
"""

import csv
import io
from collections.abc import Sequence
from html import escape

from fairseq_mm.data.story_text import detokenize_story
from fairseq_mm.report.html_page import Section, render_page
from fairseq_mm.study.questions import LETTERS, Question

TASK_TEXT = {
    "pairing": (
        "Which story was written for which prompt?",
        "Each question shows three prompts and three stories. Give every story its prompt; each "
        "prompt belongs to one story.",
    ),
    "preference": (
        "Which story do you prefer to read?",
        "Each question shows two stories. Choose the one that you prefer reading. They may break "
        "off in the middle.",
    ),
}


def answer_columns(task: str) -> list[str]:
    """Columns of an answer after ``judge`` and ``question``."""
    return [f"story_{i}" for i in (1, 2, 3)] if task == "pairing" else ["preferred"]


def as_html(text: str) -> str:
    """Text as people read it, escaped, with ``<newline>`` tokens as line breaks."""
    lines = detokenize_story(text.split()).split("\n")
    return "<br>".join(escape(line.strip(), quote=False) for line in lines)


def sheet_csv(task: str, questions: Sequence[Question]) -> str:
    """One question a line, under ``question``, ``prompt_a`` to ``prompt_c``, ``story_1`` and on."""
    text = io.StringIO()
    prompts = [f"prompt_{letter.lower()}" for letter in LETTERS] if task == "pairing" else []
    stories = [f"story_{i + 1}" for i in range(len(questions[0].stories))]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["question", *prompts, *stories])
    for question in questions:
        shown = [*question.prompts, *question.stories]
        writer.writerow([question.name, *map(as_html, shown)])
    return text.getvalue()


def sheet_page(task: str, questions: Sequence[Question]) -> str:
    """The page with all questions."""
    title, instruction = TASK_TEXT[task]
    columns = ",".join(answer_columns(task))
    cards = "".join(
        _card(task, number, question) for number, question in enumerate(questions, start=1)
    )
    body = (
        f'<p>{escape(instruction)}</p><form id="study" data-columns="{columns}" '
        f'data-name="{questions[0].name}" autocomplete="off">'
        '<p><label>Your name or number: <input id="judge" required></label></p>'
        f"{cards}</form>"
        '<div id="done"><span id="progress"></span> <button type="button" id="next">Next open '
        'question</button> <button type="button" id="download">Download answers</button> '
        '<button type="button" id="copy">Show as text</button>'
        '<textarea id="text" readonly hidden rows="8"></textarea></div>'
    )
    return render_page(title, [Section("", body, style=_STYLE, script=_SCRIPT)])


def _card(task: str, number: int, question: Question) -> str:
    parts = [f'<fieldset class="question" data-name="{question.name}"><legend>{number}</legend>']
    if task == "pairing":
        parts.append('<ol class="prompts">')
        parts += [f"<li>{as_html(prompt)}</li>" for prompt in question.prompts]
        parts.append("</ol>")
    parts.append('<div class="stories">')
    for i, story in enumerate(question.stories, start=1):
        parts.append(f'<div class="story"><p>{as_html(story)}</p><p class="choice">')
        if task == "pairing":
            parts.append(f"Story {i} belongs to prompt ")
            parts += [_radio(f"{question.name}-story_{i}", letter, letter) for letter in LETTERS]
        else:
            parts.append(_radio(f"{question.name}-preferred", str(i), "I prefer this one"))
        parts.append("</p></div>")
    parts.append('</div><p class="warning" role="alert"></p></fieldset>')
    return "".join(parts)


def _radio(name: str, value: str, label: str) -> str:
    return f'<label><input type="radio" name="{name}" value="{value}">{label}</label> '


_STYLE = """
.question { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  margin: 0 0 1.5rem; padding: .5rem 1.25rem 1rem; }
.question.answered { border-color: var(--accent); }
legend { color: var(--quiet); padding: 0 .5rem; }
.prompts { list-style: upper-alpha; padding-left: 1.5rem; margin: .25rem 0 1rem; }
.prompts li { margin: .35rem 0; font-weight: 500; }
.prompts li::marker { color: var(--accent); font-weight: 700; }
.stories { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); }
.story { display: flex; flex-direction: column; justify-content: space-between;
  border-top: 1px solid var(--line); padding-top: .5rem; }
.choice { margin-top: .75rem; font-size: .9375rem; }
.choice label { padding: .2rem .35rem; cursor: pointer; white-space: nowrap; }
.warning { color: var(--second); font-size: .875rem; }
.warning:empty { display: none; }
#done { position: sticky; bottom: 0; background: var(--ground); border-top: 1px solid var(--line);
  padding: .75rem 0; }
#progress { margin-right: 1rem; font-variant-numeric: tabular-nums; }
#text { display: block; width: 100%; margin-top: .5rem; }
#text[hidden] { display: none; }
button, input { font: inherit; }
"""

_SCRIPT = """
(() => {
  const form = document.getElementById("study"), judge = document.getElementById("judge");
  const columns = form.dataset.columns.split(",");
  const cards = [...document.querySelectorAll(".question")];
  const place = "study-" + form.dataset.name;
  const chosen = (card) => columns.map((column) => {
    const box = form.elements[card.dataset.name + "-" + column];
    return box && box.value || "";
  });
  const isWhole = (values) => values.every(Boolean) && new Set(values).size === values.length;
  const quoted = (text) => '"' + text.replace(/"/g, '""') + '"';
  const refresh = () => {
    let count = 0;
    for (const card of cards) {
      const values = chosen(card), given = values.filter(Boolean);
      const whole = isWhole(values);
      count += whole;
      card.classList.toggle("answered", whole);
      card.querySelector(".warning").textContent =
        new Set(given).size < given.length ? "Each prompt belongs to one story only." : "";
    }
    document.getElementById("progress").textContent = count + " of " + cards.length + " answered";
    try {
      localStorage.setItem(place, JSON.stringify({
        judge: judge.value, values: cards.map(chosen) }));
    } catch (error) { /* no storage for local files in some browsers */ }
  };
  const table = () => {
    const lines = [["judge", "question", ...columns].join(",")];
    for (const card of cards) {
      const values = chosen(card);
      if (isWhole(values))
        lines.push([quoted(judge.value.trim()), card.dataset.name, ...values].join(","));
    }
    return lines.join("\\n") + "\\n";
  };
  try {
    const kept = JSON.parse(localStorage.getItem(place));
    judge.value = kept.judge;
    cards.forEach((card, i) => columns.forEach((column, j) => {
      const box = form.elements[card.dataset.name + "-" + column];
      if (kept.values[i][j]) box.value = kept.values[i][j];
    }));
  } catch (error) { /* nothing kept */ }
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("next").addEventListener("click", () => {
    const open = cards.find((card) => !isWhole(chosen(card)));
    if (open) open.scrollIntoView({ behavior: "smooth" });
  });
  const named = () => judge.value.trim() || (judge.reportValidity(), false);
  document.getElementById("download").addEventListener("click", () => {
    if (!named()) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([table()], { type: "text/csv" }));
    link.download = "answers-" + judge.value.trim().replace(/[^\\w.-]+/g, "_") + ".csv";
    link.click();
  });
  document.getElementById("copy").addEventListener("click", () => {
    if (!named()) return;
    const text = document.getElementById("text");
    text.hidden = false;
    text.value = table();
    text.select();
  });
  refresh();
})();
"""
