"""Makes question sheets for human judges, and scores their answers (Fan et al. 2018, section 5.5).

fairseq-mm study pairing --stories fusion.jsonl nearest.jsonl --output pairing
fairseq-mm study preference --a hierarchical.jsonl --b language_model.jsonl --output preference
fairseq-mm study score pairing answers-*.csv

Stories are the JSONL of fairseq-mm tell ({"id", "prompt", "hypothesis"}) or retrieve. The folder
gets questions.html (open it, answer, download the answers as CSV), questions.csv (for Mechanical
Turk and the like; fields are escaped HTML) and key.json. Judges must not see key.json: it alone
says which system is behind a question.
"""

import argparse
import json
import sys
from collections import defaultdict
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.study.answers import Answer
    from fairseq_mm.study.questions import Question

SHEETS = ("questions.csv", "questions.html")
NAMED = 20  # answers that are left out and said


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    pairing = actions.add_parser("pairing", help="sheets: which story belongs to which prompt")
    pairing.add_argument(
        "--stories", nargs="+", required=True, metavar="FILE", help="one file a system"
    )
    pairing.add_argument(
        "--count", type=int, default=105, help="stories of each system (default: 105)"
    )
    pairing.set_defaults(action_function=_pairing)
    preference = actions.add_parser("preference", help="sheets: which of two stories is preferred")
    preference.add_argument("--a", required=True, metavar="FILE", help="stories of one system")
    preference.add_argument("--b", required=True, metavar="FILE", help="stories of the other")
    preference.add_argument("--count", type=int, default=400, help="pairs (default: 400)")
    preference.set_defaults(action_function=_preference)
    for sheets in (pairing, preference):
        sheets.add_argument("--output", required=True, metavar="DIR", help="folder to make")
        sheets.add_argument("--seed", type=int, default=1, help="of order and choice (default: 1)")
        sheets.add_argument("--overwrite", action="store_true", help="replace sheets in DIR")
    score = actions.add_parser("score", help="answers and key -> figures")
    score.add_argument("folder", metavar="DIR", help="folder of the sheets, with key.json")
    score.add_argument("answers", nargs="+", metavar="ANSWERS", help="CSV files")
    score.add_argument(
        "--judges", type=int, metavar="N", help="name the questions with fewer answers than this"
    )
    score.add_argument("--bootstrap", type=int, default=2000, metavar="N", help="(default: 2000)")
    score.add_argument("--seed", type=int, default=1, help="of the bootstrap (default: 1)")
    score.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    score.set_defaults(action_function=_score)


def run(args: argparse.Namespace) -> None:
    if args.seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {args.seed}.")
    args.action_function(args)


def _pairing(args: argparse.Namespace) -> None:
    from fairseq_mm.data.story_file import read_stories
    from fairseq_mm.study.questions import pairing_questions

    systems = _system_names(args.stories)
    stories = {name: read_stories(path) for name, path in systems.items()}
    questions = pairing_questions(stories, count=args.count, seed=args.seed)
    _write_sheets(args, "pairing", questions, systems)


def _preference(args: argparse.Namespace) -> None:
    from fairseq_mm.data.story_file import read_stories
    from fairseq_mm.study.questions import preference_questions

    systems = _system_names([args.a, args.b])
    stories = {name: read_stories(path) for name, path in systems.items()}
    questions = preference_questions(stories, count=args.count, seed=args.seed)
    _write_sheets(args, "preference", questions, systems)


def _system_names(paths: list[str]) -> dict[str, str]:
    """A file's name without its suffix; its path, where several are called the same."""
    stems = [Path(path).stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else paths
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{repeated}: is given twice; each system is one file.")
    return dict(zip(names, paths))


def _write_sheets(
    args: argparse.Namespace, task: str, questions: "list[Question]", systems: dict[str, str]
) -> None:
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.study.questions import KEY_FILE, key_of
    from fairseq_mm.study.sheets import sheet_csv, sheet_page

    folder = Path(args.output)
    there = next((name for name in (*SHEETS, KEY_FILE) if (folder / name).exists()), None)
    if there is not None and not args.overwrite:
        raise UserError(
            f"--output {folder}: has {there} already; answers to it would lose their key. Give "
            "another folder, or --overwrite."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {folder}: cannot be made ({error.strerror}).") from None
    key = json.dumps(key_of(task, questions, systems), indent=1, ensure_ascii=False) + "\n"
    contents = (sheet_csv(task, questions), sheet_page(task, questions), key)
    for name, text in zip((*SHEETS, KEY_FILE), contents):
        with output_file(folder / name, errors="replace") as file:
            file.write(text)
    print(
        f"{folder}: {len(questions)} questions in {' and '.join(SHEETS)}; {KEY_FILE} is not for "
        "the judges",
        file=sys.stderr,
    )


def _score(args: argparse.Namespace) -> None:
    from fairseq_mm.data.output_file import output_file
    from fairseq_mm.study.answers import read_answers
    from fairseq_mm.study.questions import read_key

    if args.bootstrap < 1:
        raise UserError(f"--bootstrap: must be 1 or more, but is {args.bootstrap}.")
    key = read_key(args.folder)
    read = read_answers(args.answers, key)
    for line in read.left_out[:NAMED]:
        print(f"{line}; left out", file=sys.stderr)
    if len(read.left_out) > NAMED:
        print(f"... {len(read.left_out)} answers are left out in all", file=sys.stderr)
    by_question: dict[str, list[Answer]] = {name: [] for name in key["questions"]}
    for answer in read.answers:
        by_question[answer.question].append(answer)
    _name_missing(by_question, args.judges)
    result: dict[str, Any] = {
        "task": key["task"],
        "answers": len(read.answers),
        "left_out": len(read.left_out),
        "judges": len({answer.judge for answer in read.answers}),
        "questions": {"asked": len(by_question), "answered": sum(map(bool, by_question.values()))},
    }
    figures = _pairing_figures if key["task"] == "pairing" else _preference_figures
    result.update(figures(key, by_question, args.bootstrap, args.seed))
    if args.json:
        with output_file(args.json) as file:
            file.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    _print(result)


def _name_missing(by_question: "dict[str, list[Answer]]", judges: Optional[int]) -> None:
    needed = judges or 1
    few = [name for name, answers in by_question.items() if len(answers) < needed]
    if few:
        named = ", ".join(few[:NAMED]) + (", ..." if len(few) > NAMED else "")
        what = f"fewer than {needed} answers" if judges else "no answer"
        print(f"{len(few)} of {len(by_question)} questions have {what}: {named}", file=sys.stderr)


def _pairing_figures(
    key: dict[str, Any], by_question: "dict[str, list[Answer]]", samples: int, seed: int
) -> dict[str, Any]:
    import numpy as np

    from fairseq_mm.metrics.study_answers import (
        CHANCE_ALL,
        CHANCE_PAIR,
        fleiss_kappa,
        share_of,
    )
    from fairseq_mm.study.questions import LETTERS

    orders = list(permutations(LETTERS))
    systems: dict[str, Any] = {}
    rows = defaultdict(list)  # system -> (all right, pairs right, answers, counts of orders)
    for name, answers in by_question.items():
        right = key["questions"][name]["answer"]
        if not answers:
            continue
        pairs = [sum(map(str.__eq__, answer.values, right)) for answer in answers]
        counts = [sum(answer.values == order for answer in answers) for order in orders]
        entry = (sum(pair == 3 for pair in pairs), sum(pairs), len(answers), counts)
        rows[key["questions"][name]["system"]].append(entry)
    for system in key["systems"]:
        if not rows[system]:
            systems[system] = None
            continue
        whole, pairs, totals, counts = zip(*rows[system])
        options = {"samples": samples, "seed": seed}
        systems[system] = {
            "all_three": share_of(whole, totals, **options)._asdict(),
            "pairs": share_of(pairs, [3 * total for total in totals], **options)._asdict(),
            "questions": len(totals),
            "answers": sum(totals),
            "fleiss_kappa": fleiss_kappa(np.array(counts)),
        }
    return {"systems": systems, "chance": {"all_three": CHANCE_ALL, "pairs": CHANCE_PAIR}}


def _preference_figures(
    key: dict[str, Any], by_question: "dict[str, list[Answer]]", samples: int, seed: int
) -> dict[str, Any]:
    import numpy as np

    from fairseq_mm.metrics.study_answers import fleiss_kappa, share_of, sign_test

    first, second = key["systems"]
    hits, totals, left = [], [], 0
    for name, answers in by_question.items():
        if not answers:
            continue
        shown = key["questions"][name]["answer"]
        hits.append(sum(shown[int(answer.values[0]) - 1] == first for answer in answers))
        totals.append(len(answers))
        left += sum(answer.values[0] == "1" for answer in answers)
    counts = np.array([hits, np.subtract(totals, hits)]).T
    return {
        "systems": [first, second],
        "preference": share_of(hits, totals, samples=samples, seed=seed)._asdict(),
        "sign_test": sign_test(hits, totals)._asdict(),
        "fleiss_kappa": fleiss_kappa(counts),
        "left_side": left / sum(totals),
    }


def _percent(share: dict[str, Any]) -> str:
    low, high = share["interval"]
    return f"{share['value']:6.1%} [{low:.1%}, {high:.1%}]"


def _kappa(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3f}"


def _print(result: dict[str, Any]) -> None:
    asked, answered = result["questions"]["asked"], result["questions"]["answered"]
    print(
        f"{result['answers']} answers of {result['judges']} judges to {answered} of {asked} "
        f"questions, {result['left_out']} left out; intervals: 95 %, bootstrap over questions"
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
