"""Mistakes of ``fairseq-mm score`` are one line each, with exit status 2 and nothing written."""

import json

import pytest

from fairseq_mm.cli.main import main

ITEM = '{"id": "a.jpg", "rouge1": 0.1, "rouge2": 0.1, "rouge_l": 0.1}\n'
# name -> content, beside the data folder ``data``
FILES = {
    "T": '{"id": "a.jpg", "hypothesis": "a dog"}\n{"id": "b.jpg", "hypothesis": "a cat"}\n',
    "P": "P-9\t-1.0\n",
    "empty": " \n",
    "list": "[\n]\n",
    "short": "one line\n",
    "twice": '{"id": "a.jpg", "hypothesis": "a"}\n{"id": "b.jpg", "hypothesis": "b"}\n' * 2,
    "beyond": "H-6\t-1\ta\n",
    "repeated": "D-0\t-1\ta\nD-1\t-1\ta\nD-0\t-1\ta\n",
    "unscored": "H-1\tx\ta\n",
    "no text": '{"id": "a.jpg"}\n',
    "bool id": '{"id": true, "hypothesis": "a"}\n',
    "cut": '{"id": "a.jpg",\n',
    "coco": '[{"image_id": 1}]',
    "no coco": '[{"caption": "a"]',
    "other": '{"id": "z.jpg", "hypothesis": "a"}\n',
    "rescored": "I | {'score_reference': True}\nH-0\t-1\ta\n",
    "latin": b"\xe9",
    "generated": "H-0\t-1\ta\nH-1\t-1\ta\n",
    "T.json": "{}",
    "captions.json": '{"annotations": [{"image_id": 7, "caption": 5}]}',
    "lines": "a\nb\n",
    "numbers": '{"id": "12.jpg", "hypothesis": "a"}\n{"id": "012.jpg", "hypothesis": "b"}\n',
    "same": '{"id": "12.jpg", "hypothesis": "a"}\n{"id": "12.jpg", "hypothesis": "b"}\n',
    "item": ITEM,
    "items": 2 * ITEM,
    "infinite": ITEM.replace("0.1", "NaN", 1),
    "lacking": '{"id": "a", "rouge2": 0.1, "rouge_l": 0.1}\n',
    "other item": ITEM.replace("a.jpg", "b.jpg"),
}
THREE = ["--system", "3,3,3", "--text-only", "2,2,2", "--baseline", "1,1,1"]

# texts and references
TEXTS = [
    (["empty"], "empty: must have generated texts, .* but begins with"),
    (["list"], "list: must have generated texts, .* but begins with"),
    (["short"], "must have a line for each of 2 items or the split's 4 lines, but has 1"),
    (["twice"], "must hold one run, but holds several"),
    (["beyond"], "beyond: line 6 must be one of the split's 4 lines"),
    (["repeated"], "repeated:3: D-0 is in line 1 already: the file must hold one run"),
    (["unscored"], "H-1 must have a score and a text, separated by tabs, but"),
    (["no text"], 'no text:1: must be {"id": "...", "hypothesis": "..."}'),
    (["bool id"], 'bool id:1: must be {"id": "..."'),
    (["cut"], "cut:1: not JSON"),
    (["coco"], 'coco: entry 0: must be {"id"'),
    (["no coco"], "no coco: not JSON"),
    (["other"], "none of its 1 ids (such as 'z.jpg') is among the 2 ids of"),
    (["rescored"], "give it as --reference-scores"),
    (["latin"], "latin: must be UTF-8 text"),
    (["absent"], "absent: cannot be read (No such file"),
    (["generated", "--data", "", "--references", "T.jsonl"], "need --data and --split"),
    (["T", "--data", ""], "references are needed: give --data DIR"),
    (["T", "--split", "x"], "has no split 'x', but valid."),
    (["T", "--references", "absent.json"], "absent.json: cannot be read (No such file"),
    (["T", "--references", "T.json"], "T.json: must have references: .* COCO's .* ('annotations')"),
    (["T", "--references", "captions.json"], "captions.json: must have references:"),
    (
        ["T", "--references", "lines"],
        "lines: must have references: .* (it has 2 lines, the split 4).",
    ),
    (
        ["--reference-scores", "P"],
        "P: P-9 has 1 scores, but line 9 (counted from 0) of data/valid.jsonl has 0",
    ),
    (["T", "--preset", "wp", "--compare", "other", "--data", ""], "have no item in common"),
]
# options and outputs
OPTIONS = [
    ([], "give the inputs or --constant or --reference-scores or --system."),
    (["T", "--metrics", "blue"], "of bleu, meteor, .*, but has 'blue'; did you mean bleu?"),
    (["T", "--metrics", "blue4"], "but has 'blue4'; did you mean bleu4?"),
    (["T", "--metrics", ","], "of bleu, meteor, .*, but has ''"),
    (["T", "--metrics", "rouge,rouge_l"], "has rouge and rouge_l, which both make a row"),
    (["T", "--metrics", "clipscore"], "--metrics clipscore: needs --images."),
    (["--reference-scores", "P", "--compare", "T"], "--compare: needs the inputs or --constant"),
    (["T", "--references-of", "album", "--references", "T"], "--references-of and --references:"),
    (["T", "--per-item", "T"], "--per-item T: would overwrite a file that is read."),
    (["T", "--per-item", "no/where.jsonl"], "no/where.jsonl: there is no folder no."),
    (["T", "--per-item", "out.json"], "--per-item and --json name one file; give two."),
    (["T", "--per-item", "-"], "--per-item -: give /dev/stdout for standard output"),
    (["T", "--submission", "s", "--preset", "how2"], "--submission: needs --preset coco or m_rnn"),
    (["T", "--submission", "s"], 'an id of COCO such as .*, but "a.jpg" has not.'),
    (["numbers", "--submission", "s", "--data", ""], 'must have one caption, .* but "012.jpg"'),
    (["same", "--submission", "s", "--data", ""], 'must have one caption, .* but "12.jpg"'),
    (["--constant", "--data", ""], "references are needed"),
    (
        ["--constant", "--data", "", "--preset", "wp"],
        "--constant: needs --data, or TEXT and --references.",
    ),
    (["T", "--constant", "a dog"], "--constant and the inputs: leave one of the two out"),
    (["--constant"], "has no split 'train', but valid."),
]
# the gain from the video
GAIN = [
    (["--system", "1,2", *THREE[2:]], "--system: must have 3 figures of 0 to 100, rouge1, rouge2"),
    (["--system", "1,2,101", *THREE[2:]], "--system: must have 3 figures of 0 to 100"),
    ([*THREE[:4], "--baseline", "absent"], "absent: cannot be read"),
    ([*THREE[:4], "--baseline", "lines"], "lines:1: not JSON"),
    *(
        ([*THREE[:4], "--baseline", name], f"--baseline {name}: must be what fairseq-mm score")
        for name in ("lacking", "infinite", "items", "empty")
    ),
    (["--system", "item", "--text-only", "other item", *THREE[4:]], "have no item in common"),
    (THREE[:2], "--system: needs --text-only beside it."),
    (["T", *THREE[2:4]], "--text-only: needs --baseline beside it."),
    (THREE[2:], "--text-only: needs the inputs or --system beside it."),
    (["T", *THREE], "--system and the inputs: leave one of the two out"),
    ([*THREE, "--metrics", "bleu"], "--system and --metrics: leave one of the two out"),
    (["T", *THREE[2:]], "--text-only: needs --preset how2, or another one with --metrics rouge."),
]


@pytest.mark.parametrize(("arguments", "message"), [*TEXTS, *OPTIONS, *GAIN])
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/prepare.json").write_text('{"options": {"tokenizer": "words"}}')
    items = [{"id": key, "captions": ["a dog", "the dog"]} for key in ("a.jpg", "b.jpg")]
    lines = "".join(json.dumps(entry) + "\n" for entry in items)
    for path in ("data/valid.jsonl", "T.jsonl"):
        (tmp_path / path).write_text(lines)
    for name, content in FILES.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    options = [] if "--data" in arguments or "--system" in arguments else ["--data", "data"]
    if "--data" in arguments and arguments[arguments.index("--data") + 1] == "":
        at = arguments.index("--data")
        arguments = arguments[:at] + arguments[at + 2 :]
    before = sorted(tmp_path.rglob("*"))
    if not {"--metrics", "--preset", "--system", "--reference-scores"} & {*arguments}:
        options += ["--metrics", "bleu"] if "--submission" not in arguments else []
    if "s" not in arguments:  # a submission alone needs no references
        options += ["--json", "out.json"]
    assert main(["score", *arguments, *options]) == 2
    err = capsys.readouterr().err
    assert all(part in err.splitlines()[-1] for part in message.split(".*"))
    assert err.startswith("fairseq-mm score: ") or "not compared with" in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["--bootstrap", "-1"], ["--seed", "-1"]])
def test_numbers_are_checked_by_the_parser(arguments, capsys):
    with pytest.raises(SystemExit):
        main(["score", "T", *arguments])
    assert f"argument {arguments[0]}: must be" in capsys.readouterr().err
