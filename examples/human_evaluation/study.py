#!/usr/bin/env python3
"""Makes annotation sheets, and scores the annotators' answers.

  python examples/human_evaluation/study.py pairing \\
      --stories fusion.jsonl nearest.jsonl --output pairing
  python examples/human_evaluation/study.py preference \\
      --a fusion.jsonl --b nearest.jsonl --output pref
  python examples/human_evaluation/study.py score pairing answers-*.csv

The questions are from Fan et al. 2018, section 5.5. Stories are JSONL files of
fairseq-mm tell ({"id", "prompt", "hypothesis"}) or retrieve. The program writes
questions.html (open it, answer, download the answers as CSV), questions.csv and
template.html (for crowd platforms such as Mechanical Turk: one question a line
as escaped HTML, and the form with its ${column} fields) and key.json. Do not
show key.json to annotators: only this file names the system of each question.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Optional

from annotation.answers import read_answers
from annotation.figures import score_pairing, score_preference
from annotation.questions import (
    KEY_FILE,
    make_key,
    pairing_questions,
    preference_questions,
    read_key,
)
from annotation.sheets import crowd_template, sheet_csv, sheet_page
from annotation.stories import read_stories

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, Rows
from fairseq_mm.cli.script import run_script
from fairseq_mm.data.output_file import output_file
from fairseq_mm.errors import UserError

SHEETS = ("questions.csv", "questions.html", "template.html")
NAMED = 20  # invalid answers and questions listed in messages

_FILE: dict[str, Any] = {"metavar": "FILE", "required": True}
_NUMBER: dict[str, Any] = {"metavar": "N", "type": int}
_SHEETS: Rows = {
    "--output": ("Folder to make.", {"metavar": "DIR", "required": True}),
    "--seed": ("Seed of the choice and the order (default: 1).", {**_NUMBER, "default": 1}),
    "--overwrite": ("Replace sheets in the folder.", FLAG),
}
# action -> summary and arguments
ACTIONS: dict[str, tuple[str, Rows]] = {
    "pairing": (
        "Make sheets that ask which story belongs to which prompt.",
        {
            "--stories": ("Stories of each system, a file each.", {**_FILE, "nargs": "+"}),
            "--count": (
                "Number of stories of each system that are asked about, three in a question "
                "(default: 105).",
                {**_NUMBER, "default": 105},
            ),
            **_SHEETS,
        },
    ),
    "preference": (
        "Make sheets that ask which of two stories is preferred.",
        {
            "--a": ("Stories of one system.", _FILE),
            "--b": ("Stories of the other system.", _FILE),
            "--count": (
                "Number of questions, each with a pair of stories (default: 400).",
                {**_NUMBER, "default": 400},
            ),
            **_SHEETS,
        },
    ),
    "score": (
        "Score the answers.",
        {
            "folder": ("Folder of the sheets, with key.json.", {"metavar": "DIR"}),
            "answers": ("CSV files of answers.", {"nargs": "+", "metavar": "ANSWERS"}),
            "--annotators": (
                "Name the questions with fewer than N answers (default: 1).",
                _NUMBER,
            ),
            "--bootstrap": ("Bootstrap samples (default: 2000).", {**_NUMBER, "default": 2000}),
            "--seed": ("Seed of the bootstrap (default: 1).", {**_NUMBER, "default": 1}),
            "--json": ("Write the figures as JSON to this file.", {"metavar": "FILE"}),
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_actions(parser, ACTIONS)


def run(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    if args.action == "score":
        _score(args)
    else:
        _make_sheets(args)
    return 0


def _make_sheets(args: argparse.Namespace) -> None:
    is_pairing = args.action == "pairing"
    systems = _system_names(args.stories if is_pairing else [args.a, args.b])
    stories = {name: read_stories(path) for name, path in systems.items()}
    make_questions = pairing_questions if is_pairing else preference_questions
    questions = make_questions(stories, count=args.count, seed=args.seed)
    folder = Path(args.output)
    key = json.dumps(make_key(args.action, questions, systems), indent=1, ensure_ascii=False) + "\n"
    existing = [name for name in SHEETS if (folder / name).exists()]
    # after a run that was killed, only the missing sheets are written
    is_begun = 0 < len(existing) < len(SHEETS) and _has_text(folder / KEY_FILE, key)
    if existing and not args.overwrite and not is_begun:
        raise UserError(
            f"--output {folder}: has {existing[0]} already; answers to it would lose their key. "
            "Give another folder, or --overwrite."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {folder}: cannot be made ({error.strerror}).") from None
    # Old sheets go first and the key is written first: no sheet is ever beside another key.
    finished = existing if is_begun and not args.overwrite else []
    for name in set(existing).difference(finished):
        (folder / name).unlink()
    contents = (
        *(key, sheet_csv(args.action, questions), sheet_page(args.action, questions)),
        crowd_template(args.action),
    )
    for name, text in zip((KEY_FILE, *SHEETS), contents):
        if name not in finished:
            with output_file(folder / name, errors="replace") as file:
                file.write(text)
    print(
        f"{folder}: {len(questions)} questions in {' and '.join(SHEETS[:2])}, and {SHEETS[2]} for "
        f"crowd platforms; {KEY_FILE} is not for "
        "the annotators",
        file=sys.stderr,
    )


def _has_text(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace") == text
    except OSError:
        return False


def _system_names(paths: list[str]) -> dict[str, str]:
    """Return the path of each system by the file's stem, or by its path if stems are equal."""
    stems = [Path(path).stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else paths
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{repeated}: is given twice; each system is one file.")
    return dict(zip(names, paths))


def _score(args: argparse.Namespace) -> None:
    if args.bootstrap < 1:
        raise UserError(f"--bootstrap: must be 1 or more, but is {args.bootstrap}.")
    key = read_key(args.folder)
    read = read_answers(args.answers, key)
    for line in read.left_out[:NAMED]:
        print(f"{line}; left out", file=sys.stderr)
    if len(read.left_out) > NAMED:
        print(f"... {len(read.left_out)} answers are left out in all", file=sys.stderr)
    by_question: dict[str, list[Any]] = {name: [] for name in key["questions"]}
    for answer in read.answers:
        by_question[answer.question].append(answer)
    _name_missing(by_question, args.annotators)
    result: dict[str, Any] = {
        "task": key["task"],
        "answers": len(read.answers),
        "left_out": len(read.left_out),
        "annotators": len({answer.annotator for answer in read.answers}),
        "questions": {"asked": len(by_question), "answered": sum(map(bool, by_question.values()))},
    }
    score_answers = score_pairing if key["task"] == "pairing" else score_preference
    result.update(score_answers(key, by_question, samples=args.bootstrap, seed=args.seed))
    if args.json:
        with output_file(args.json) as file:
            file.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    _print(result)


def _name_missing(by_question: dict[str, list[Any]], wanted: Optional[int]) -> None:
    needed = wanted or 1
    few = [name for name, answers in by_question.items() if len(answers) < needed]
    if few:
        named = ", ".join(few[:NAMED]) + (", ..." if len(few) > NAMED else "")
        what = f"fewer than {needed} answers" if wanted else "no answer"
        print(f"{len(few)} of {len(by_question)} questions have {what}: {named}", file=sys.stderr)


def _percent(share: dict[str, Any]) -> str:
    low, high = share["interval"]
    return f"{share['value']:6.1%} [{low:.1%}, {high:.1%}]"


def _kappa(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3f}"


def _print(result: dict[str, Any]) -> None:
    asked, answered = result["questions"]["asked"], result["questions"]["answered"]
    print(
        f"{result['answers']} answers of {result['annotators']} annotators to {answered} of "
        f"{asked} questions, {result['left_out']} left out; intervals: 95 %, bootstrap over "
        "questions"
    )
    if result["task"] == "pairing":
        width = max(len(name) for name in (*result["systems"], "chance"))
        head = ("all three right", "right pairs", "answers", "kappa")
        print(f"{'':{width}}  {head[0]:24}{head[1]:24}{head[2]:>7}  {head[3]}")
        for name, entry in result["systems"].items():
            if entry is None:
                print(f"{name:{width}}  no answer")
                continue
            print(
                f"{name:{width}}  {_percent(entry['all_three']):24}{_percent(entry['pairs']):24}"
                f"{entry['answers']:7}  {_kappa(entry['fleiss_kappa'])}"
            )
        chance = result["chance"]
        print(f"{'chance':{width}}  {chance['all_three']:6.1%}{'':18}{chance['pairs']:6.1%}")
        return
    first, second = result["systems"]
    test = result["sign_test"]
    print(f"{first} is preferred to {second}: {_percent(result['preference']).strip()}")
    print(
        f"majority of a question: {test['first']} for {first}, {test['second']} for {second}, "
        f"{test['even']} even; sign test p = {test['p']:.3g}"
    )
    print(
        f"kappa {_kappa(result['fleiss_kappa'])}; the story that stood first was chosen "
        f"{result['left_side']:.1%} of the time"
    )


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
