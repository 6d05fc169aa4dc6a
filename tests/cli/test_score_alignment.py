"""`fairseq-mm score` scores output of fairseq-generate with the folder it was generated from."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from toy_data import (
    make_captions_folder,
    make_dictionary,
    make_videos_folder,
    make_visual_stories_folder,
    write_split,
)

from fairseq_mm.cli.main import main
from fairseq_mm.data.records import open_split

LOG = "2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {log}\n"


def lines_of(folder, side=None):
    """The binarised text of each line: words outside the dictionary are <unk>."""
    split = open_split(folder, "valid")
    known = {x.split()[0] for x in Path(split.dictionary_path(side)).read_text().splitlines()}
    return [
        " ".join(word if word in known else "<unk>" for word in words)
        for words in split.iterate_tokens(side)
    ]


def make_folder(folder, *, seed=0):
    """7 images of three captions, in an order that the seed decides, with an unknown word."""
    make_captions_folder(folder)
    generator = np.random.default_rng(5)
    lines = []
    for i in range(7):
        for k in range(3):
            words = generator.choice(make_dictionary().symbols[4:], size=4 + (i + k) % 3)
            lines.append((f"valid{i}.jpg", " ".join([*words, "zebra"])))
    order = np.random.default_rng(seed).permutation(7)
    lines = [lines[3 * i + k] for i in order for k in range(3)]
    write_split(folder, "valid", lines, make_dictionary())
    return folder


@pytest.fixture
def data(tmp_path):
    return make_folder(tmp_path / "data")


@pytest.fixture
def other(tmp_path):
    """The same images and captions in another order."""
    return make_folder(tmp_path / "other", seed=1)


def generated(
    folder,
    *,
    numbers=range(0, 21, 3),
    kinds="THDP",
    n_best=1,
    change=lambda text: text,
    decode=lambda text: text,
    log=None,
    text="a dog runs on the snow",
):
    """Return what fairseq-generate prints of lines of a folder.

    ``change`` turns tokens of a target into the tokens that are printed of it, ``decode`` tokens
    into text, as --bpe does. Without ``text`` the hypothesis is the target.
    """
    texts = lines_of(folder)
    printed = [] if log is None else [LOG.format(log=log)]
    for number in numbers:
        target = change(texts[number])
        words = target if text is None else f"{text} {number}"
        lines = {"T": decode(target.replace("<unk>", "<<unk>>"))}
        for rank in range(n_best):
            lines |= {
                f"H{rank}": f"{-0.5 - rank}\t{words}",
                f"D{rank}": f"{-0.5 - rank}\t{decode(words)}",
                f"P{rank}": " ".join(["-0.1"] * (len(words.split()) + 1)),
            }
        printed += [f"{key[0]}-{number}\t{x}\n" for key, x in lines.items() if key[0] in kinds]
    return "".join(printed)


@pytest.fixture
def score(data, tmp_path, capsys):
    """Runs the command over a text; returns exit status, BLEU-4 and stderr."""

    def run(text, *arguments, folder=data, name="out.txt"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        result = tmp_path / "scores.json"
        result.unlink(missing_ok=True)
        options = [] if folder is None else ["--data", str(folder)]
        status = main(
            [
                *("score", str(tmp_path / name), *options, "--metrics", "bleu"),
                *("--json", str(result), *map(str, arguments)),
            ]
        )
        err = capsys.readouterr().err
        if not result.exists():
            assert (status, err.count("\n")) == (2, 1)
            return status, None, err
        figures = {x["metric"]: x["value"] for x in json.loads(result.read_text())["scores"]}
        return status, figures["bleu4"], err

    return run


def test_output_of_another_folder_names_both_files_and_the_first_line_that_differs(
    score, data, other, tmp_path
):
    assert score(generated(data, text=None))[0] == 0
    status, _, err = score(generated(other, text=None))
    expected = lines_of(data)[0][:50]
    found = lines_of(other)[0].replace("<unk>", "<<unk>>")[:50]
    assert status == 2
    assert (
        f"{tmp_path / 'out.txt'}:1: T-0 is {found!r}, but line 0 (counted from 0) of "
        f"{data / 'valid.bin'} is {expected!r} (7 of 7 such lines differ): it was generated from "
        "another data folder or split." in err
    )


# a text that fairseq-generate prints of the folder's lines -> it is scored
BELONGING = {
    "n-best": {"n_best": 3},
    "without targets": {"kinds": "HDP"},
    "hypotheses alone": {"kinds": "H"},
    "detokenised alone": {"kinds": "D"},
    "every line": {"numbers": range(21)},
    "cut targets": {"change": lambda text: " ".join(text.split()[:3])},
    "as a tokenizer writes": {"decode": lambda text: text.replace(" ", "&#32;") + " &apos; ."},
    "as --post-process does": {"change": lambda text: text.replace("dog", "d@@ og")},
    "with its log": {"log": "{'gen_subset': 'valid', 'nbest': 1, 'score_reference': False}"},
    "an overfitted model of every line": {"text": None, "numbers": range(21)},
}


@pytest.mark.parametrize("case", BELONGING)
def test_output_of_the_folder_is_scored(score, data, case):
    status, bleu, err = score(generated(data, **BELONGING[case]))
    assert status == 0
    if "overfitted" in case:
        assert bleu > 0.7  # <unk> is none of the references' words
        assert ("texts that all equal their T- line" in err) is ("every" in case)
    elif "T" not in BELONGING[case].get("kinds", "T"):
        assert f"compared with {data / 'valid.bin'}: the file has no T- or S- lines" in err
    else:
        assert err == ""


# texts of the folder and of another -> a file of several runs
SEVERAL = {
    "twice": lambda data, other: generated(data) + generated(data),
    "two folders": lambda data, other: generated(data) + generated(other),
    "a run that was restarted": lambda data, other: (
        generated(data, numbers=[0, 3, 6]) + generated(data)
    ),
    "sorted hypotheses with the log": lambda data, other: "".join(
        sorted((2 * generated(data, kinds="H", log="{'nbest': 1}")).splitlines(keepends=True))
    ),
    "JSON of two runs": lambda data, other: 2 * as_json("a dog") + as_json("a cat"),
    "JSON of two checkpoints": lambda data, other: (
        as_json("a dog", [0, 1], checkpoint="1" * 64) + as_json("a cat", [2], checkpoint="2" * 64)
    ),
    "JSON of which a part names its checkpoint": lambda data, other: (
        as_json("a dog", [0, 1], checkpoint="1" * 64) + as_json("a cat", [2])
    ),
    "ids and texts": lambda data, other: 2 * "".join(f"valid{i}.jpg\ta dog\n" for i in range(7)),
    "COCO results": lambda data, other: json.dumps(
        2 * [{"image_id": f"valid{i}.jpg", "caption": "a dog"} for i in range(7)]
    ),
}


def as_json(text, numbers=range(7), **fields):
    records = [{"id": f"valid{i}.jpg", "hypothesis": text, **fields} for i in numbers]
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize("case", SEVERAL)
def test_several_runs_in_a_file_are_refused(score, data, other, case):
    status, _, err = score(SEVERAL[case](data, other))
    assert status == 2
    assert "must hold one run" in err


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("'seed': 2", "seed 2, but the log of line 1 has 1"),
        ("'path': 'b.pt'", "path 'b.pt', but the log of line 1 has 'a.pt'"),
    ],
)
def test_parts_whose_logs_differ_are_several_runs(score, data, setting, shown):
    settings = "'seed': 1, 'path': 'a.pt', 'beam': 5, 'sampling': False, 'data': 'one'"
    name = setting.split(":")[0]
    changed = re.sub(rf"{name}: [^,]*", setting, settings)
    logs = [f"{{{settings}, 'shard_id': 0}}", f"{{{changed}, 'shard_id': 1}}"]
    first, second = (
        generated(data, numbers=numbers, log=log)
        for numbers, log in zip(([0, 6], [3, 9, 15]), logs)
    )
    status, _, err = score(first + second)
    assert status == 2
    assert f"{len(first.splitlines()) + 1}: its log has {shown}: the file must hold one run" in err


@pytest.mark.parametrize("kind", ["T", "H", "D", "P"])
def test_an_item_that_is_cut_at_the_end_is_not_scored(score, data, kind):
    text = generated(data)
    status, _, err = score(text[: text.rindex(f"{kind}-18\t") + 12])
    assert status == 0
    key = (data / "valid.visual_ids").read_text().split()[18]
    assert (f"1 references without a text: {key}" in err) is (kind != "P")
    assert ("1 items whose lines are cut short at the end of the file" in err) is (kind != "P")


def test_targets_are_compared_with_plain_references(score, data, tmp_path):
    """Without a data folder, a text that is another line of the references is a mistake."""
    lines = [text.replace("<unk>", "dog") for text in lines_of(data)]
    (tmp_path / "references.txt").write_text("".join(f"{line}\n" for line in lines))
    text = generated(data, change=lambda text: text.replace("<unk>", "dog"))
    arguments = ("--references", tmp_path / "references.txt")
    assert score(text, *arguments, folder=None)[0] == 0
    (tmp_path / "references.txt").write_text("".join(f"{x}\n" for x in [*lines[1:], lines[0]]))
    status, _, err = score(text, *arguments, folder=None)
    assert status == 2
    assert f":1: T-0 is {lines[0][:50]!r}, but line 0 (counted from 0) of " in err
    # tokenised in another way, nothing can be said
    (tmp_path / "references.txt").write_text("".join(f"the {x}\n" for x in [*lines[1:], lines[0]]))
    assert score(text, *arguments, folder=None)[0] == 0


def test_visual_stories_are_compared_with_their_separators(score, tmp_path):
    data = make_visual_stories_folder(tmp_path / "stories")
    text = generated(data, numbers=range(0, 10, 2))
    assert score(text, folder=data)[::2] == (0, "")
    text = generated(data, numbers=range(2, 10, 2)).replace("-2\t", "-0\t")
    status, _, err = score(text, folder=data)
    assert status == 2
    assert "T-0 is " in err


def test_summaries_are_compared_as_they_are_printed(score, tmp_path):
    """With words in the place of indexed OOV tokens; stock translation prints these."""
    data = make_videos_folder(tmp_path / "videos", indexed_oov=2)

    def restore(text):
        return text.replace("<unk-0>", "zebra")

    kinds = {"numbers": range(5), "text": "a <unk-0>"}
    assert score(generated(data, **kinds, decode=restore), folder=data)[::2] == (0, "")
    assert score(generated(data, **kinds), folder=data)[::2] == (0, "")
    turned = generated(data, **kinds, change=lambda text: " ".join(reversed(text.split())))
    assert score(turned, folder=data)[0] == 2


def test_sources_are_compared_where_no_targets_are_printed(score, tmp_path):
    """fairseq-interactive prints sources alone, and logs a split that it does not read."""
    data = make_videos_folder(tmp_path / "videos")
    sources = lines_of(data, "tran")
    log = LOG.replace("generate", "interactive").format(log="{'gen_subset': 'test'}")
    lines = [f"S-{i}\t{sources[i]}\nH-{i}\t-0.5\ta dog\n" for i in range(5)]
    assert score(log + "".join(lines), folder=data)[::2] == (0, "")
    lines = [f"S-{i}\t{sources[4 - i]}\nH-{i}\t-0.5\ta dog\n" for i in range(5)]
    status, _, err = score("".join(lines), folder=data)
    assert status == 2
    assert f":1: S-0 is {sources[4][:50]!r}, but line 0 (counted from 0) of " in err


def perplexity(data, path, capsys):
    status = main(["score", "--reference-scores", str(path), "--data", str(data)])
    return status, capsys.readouterr().err


def test_scores_of_references_are_of_the_folder(data, other, tmp_path, capsys):
    log = "{'score_reference': True}"
    path = tmp_path / "scores.txt"

    def said(text):
        path.write_text(text)
        return perplexity(data, path, capsys)

    every = {"numbers": range(21), "text": None}
    assert said(generated(data, **every, log=log)) == (0, "")
    assert said(generated(data, **every, kinds="P")) == (0, "")
    status, err = said(generated(other, **every, log=log))
    assert (status, err.count("\n")) == (2, 1)
    assert f"{path}:2: T-0 is " in err
    # scores alone have no texts, but a length
    status, err = said(generated(other, **every, kinds="P"))
    assert (status, err.count("\n")) == (2, 1)
    assert "scores, but line " in err
    status, err = said(generated(data, **every, log="{'score_reference': False}"))
    assert (status, err.count("\n")) == (2, 1)
    assert "scores the model's own texts" in err
    status, err = said(2 * generated(data, **every, log=log))
    assert (status, err.count("\n")) == (2, 1)
    assert "the file must hold one run" in err
    status, err = said(generated(data, **every)[:-6])
    assert (status, err.count("\n")) == (2, 1)
    assert "must end with a line break" in err


def test_without_references_the_binarised_targets_are_said_to_be_them(score, data):
    figures = score(generated(data))
    references = data / "valid.references.jsonl"
    texts = [json.loads(line) for line in references.read_text().splitlines()]
    references.unlink()
    status, bleu, err = score(generated(data))
    assert status == 0
    assert err == (
        f"{references}: no such file; the references are the lines of {data / 'valid.bin'}.\n"
    )
    # the folder's text has <unk> in the place of a word that the text has never
    assert all(len(entry["references"]) == 3 for entry in texts)
    assert bleu == pytest.approx(figures[1])


# a text that belongs to the folder, damaged or joined in a way that changes no figure
HARMLESS = {
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "a progress bar among the lines": lambda text: text.replace("T-", "  3%| | 1/7\rT-"),
    "alignments": lambda text: text.replace("\nT-", "\nA-3\t0-0 1-1\nT-"),
    "empty lines": lambda text: text.replace("\n", "\n\n"),
    "sums at the end": lambda text: text + "Generate valid with beam=5: BLEU4 = 3.1, 9.1/2.2\n",
    "the log of a training before it": lambda text: (
        LOG.replace("generate", "train").format(log="{'gen_subset': 'test', 'nbest': 1}") + text
    ),
    "a warning in the middle": lambda text: text.replace("\nT-6", "\nUserWarning: H-0 is\nT-6"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_changes_no_text_changes_no_figure(score, data, case):
    text = generated(data)
    expected = score(text)
    assert expected[2] == ""
    assert score(HARMLESS[case](text)) == expected


# a text of the folder and of another -> one that nobody should score, and what is said
WRONG = {
    "targets alone": (lambda data, other: generated(data, kinds="T"), "such as lines H-NUMBER"),
    "numbers from 1": (
        lambda data, other: re.sub(r"-(\d+)\t", lambda x: f"-{int(x[1]) + 1}\t", generated(data)),
        "T-1 is ",
    ),
    "parts of two folders": (
        lambda data, other: generated(data, numbers=[0, 3]) + generated(other, numbers=[6, 9, 12]),
        "it was generated from another data folder or split",
    ),
    "a target of a larger split": (
        lambda data, other: generated(data) + "T-21\ta dog\n",
        "T-21 is 'a dog', but line 21",
    ),
    "words that were exchanged": (
        lambda data, other: generated(data, change=lambda text: " ".join(text.split()[::-1])),
        "T-0 is ",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_belong_together_is_one_line(score, data, other, case):
    make, message = WRONG[case]
    status, _, err = score(make(data, other), "--split", "valid")
    assert status == 2
    assert message in err
