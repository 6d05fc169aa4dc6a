"""`fairseq-mm score`: every layout of texts, what is named, files written, published figures."""

import hashlib
import json
import subprocess
import sys

import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics.bleu import bleu_from_sums, bleu_sums
from fairseq_mm.metrics.ptb_tokenizer import ptb_tokenize

REFERENCES = {
    "a.jpg": ["A dog runs on the green grass.", "A brown dog is running."],
    "b.jpg": ["Two men ride their bikes.", "Two cyclists on a road, racing."],
    "c.jpg": ["A child climbs a wooden stair.", "A girl on stairs!"],
}
TEXTS = {
    "a.jpg": "a dog runs on the grass",
    "b.jpg": "two men ride a horse",
    "c.jpg": "a child climbs a wooden wall",
}
WITHOUT_METEOR = "bleu,rouge_l,cider,diversity,novelty"


def records(name, entries):
    return "".join(json.dumps({"id": key, name: texts}) + "\n" for key, texts in entries)


@pytest.fixture
def data(tmp_path):
    """A data folder; items have two lines each, and c stands before b."""
    folder = tmp_path / "data"
    folder.mkdir()
    order = [(key, i) for i in range(2) for key in ("a.jpg", "c.jpg", "b.jpg")]
    lines = records("captions", [(key, [REFERENCES[key][i]]) for key, i in order])
    (folder / "valid.jsonl").write_text(lines)
    training = [("d.jpg", ["two men ride a horse", "a cat"])]
    (folder / "train.jsonl").write_text(records("captions", training))
    (folder / "dict.txt").write_text("a 3\n")
    (folder / "prepare.json").write_text('{"options": {"tokenizer": "words"}}')
    return folder


@pytest.fixture
def score(data, tmp_path, capsys):
    """Runs the command; returns exit status, figures by name, stdout, stderr."""

    def run(*arguments, folder=True):
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        arguments = [str(argument) for argument in arguments]
        if "--metrics" not in arguments and "--preset" not in arguments:
            arguments += ["--metrics", WITHOUT_METEOR]
        if folder:
            arguments += ["--data", str(data)]
        status = main(["score", *arguments, "--json", str(out)])
        result = json.loads(out.read_text()) if out.exists() else {}
        printed = capsys.readouterr()
        return status, result, printed.out, printed.err

    return run


def figures(result):
    return {entry["metric"]: entry["value"] for entry in result["scores"]}


def entry_of(result, name):
    return next(entry for entry in result["scores"] if entry["metric"] == name)


def jsonl(texts):
    return "".join(json.dumps({"id": k, "hypothesis": t}) + "\n" for k, t in texts.items())


def generated(texts, lines=(("a.jpg", 0), ("c.jpg", 1), ("b.jpg", 2))):
    out = ["2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'path': 'x.pt', 'beam': 3}\n"]
    for key, number in reversed(lines):
        out.append(f"H-{number}\t-0.5\t{texts[key].replace(' ', '@ ')}\n")
        out.append(f"D-{number}\t-0.5\t{texts[key]}\nP-{number}\t-1.0 -0.5\n")
    return "".join(out)


def expected_bleu(ids=("a.jpg", "b.jpg", "c.jpg")):
    sums = sum(
        bleu_sums(ptb_tokenize(TEXTS[k]), [ptb_tokenize(r) for r in REFERENCES[k]]) for k in ids
    )
    return bleu_from_sums(sums)


def test_all_layouts_give_the_same_figures(score, write):
    order = ("a.jpg", "c.jpg", "b.jpg")
    coco = [{"image_id": key, "caption": text} for key, text in TEXTS.items()]
    files = {
        "fairseq-generate": write("generate-valid.txt", generated(TEXTS)),
        "jsonl": write("texts.jsonl", jsonl(TEXTS)),
        "coco": write("results.json", json.dumps(coco)),
        "text": write("plain.txt", "".join(f"{TEXTS[key]}\n" for key in order)),
        "ids and text": write("c.txt", "".join(f"my/{k}\t{t}\n" for k, t in TEXTS.items())),
    }
    seen = []
    for layout, path in files.items():
        status, result, _, err = score(path)
        assert status == 0
        assert ("not compared with" in err) is (layout == "fairseq-generate")
        assert err.count("\n") == (layout == "fairseq-generate")
        assert result["texts"][0]["layout"] == layout
        seen.append(figures(result))
    assert all(found == seen[0] for found in seen)
    assert [seen[0][f"bleu{n}"] for n in (1, 2, 3, 4)] == pytest.approx(expected_bleu())
    assert seen[0]["novelty"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("layout", ["log", "end", "jsonl", "coco", "tabs"])
def test_the_split_is_the_one_that_the_texts_were_generated_for(score, write, data, layout):
    text = (data / "valid.jsonl").read_text()
    (data / "test.jsonl").write_text(text)
    (data / "valid.jsonl").write_text(text.replace(".jpg", ".png"))
    content = {
        "log": generated(TEXTS).replace("'beam'", "'gen_subset': 'test', 'beam'"),
        "end": generated(TEXTS).partition("\n")[2] + "Generate test with beam=3: BLEU4 = 0.1\n",
        "jsonl": jsonl(TEXTS),
        "coco": json.dumps([{"image_id": key, "caption": text} for key, text in TEXTS.items()]),
        "tabs": "".join(f"my/{key}\t{text}\n" for key, text in TEXTS.items()),
    }[layout]
    status, result, _, err = score(write("texts", content))
    assert status == 0, err
    assert figures(result)["bleu4"] == pytest.approx(expected_bleu()[3])


def test_generated_records_name_their_folder_and_split(score, write, data):
    (data / "valid.jsonl").rename(data / "dev.jsonl")
    source = {"data": str(data), "split": "dev"}
    lines = [json.dumps({"id": k, "hypothesis": t, **source}) for k, t in TEXTS.items()]
    path = write("t.jsonl", "\n".join(lines))
    status, result, _, err = score(path, folder=False)
    assert (status, err) == (0, "")
    assert figures(result)["bleu4"] == pytest.approx(expected_bleu()[3])
    status, _, _, err = score(path, "--split", "valid")
    assert (status, f"{path}: has texts of dev, but --split is valid." in err) == (2, True)


WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "fairseq", "torchvision")))
from fairseq_mm.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_records_are_scored_without_torch_and_fairseq(write, data):
    """They take seconds and hundreds of megabytes."""
    arguments = ["score", write("t.jsonl", jsonl(TEXTS)), "--data", str(data), "--metrics", "bleu"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_figure_says_how_many_items_were_scored_and_what_is_missing(score, write):
    texts = {"a.jpg": TEXTS["a.jpg"], "b.jpg": TEXTS["b.jpg"], "z.jpg": "nobody"}
    path = write("t.jsonl", jsonl(texts) + jsonl({"a.jpg": "another text"}))
    status, result, out, err = score(path)
    assert status == 0
    assert f"{path}: 1 references without a text: c.jpg\n" in err
    assert f"{path}: 1 items with several texts (the first is scored): a.jpg\n" in err
    assert f"{path}: 1 texts without references (not scored): z.jpg\n" in err
    assert {(e["scored"], e["expected"]) for e in result["scores"]} == {(2, 3)}
    assert "2/3" in out
    assert figures(result)["bleu1"] == pytest.approx(expected_bleu(("a.jpg", "b.jpg"))[0])


def test_best_of_an_n_best_list_and_first_line_of_an_item_are_scored(score, write):
    text = "H-0\t-2.0\tx\nH-0\t-0.5\ta dog runs on the grass\nH-3\t-0.1\tx\nH-3\t-0.2\tx\n"
    text += "H-1\t-1\ty\nH-1\t-0.3\ta child climbs a wooden wall\n"
    text += "H-2\t-0.2\ttwo men ride a horse\nH-2\t-0.9\ty\n"
    status, result, _, err = score(write("generated.txt", text))
    assert (status, err.count("\n")) == (0, 1)
    assert "3 texts that were not compared with " in err
    assert figures(result)["bleu4"] == pytest.approx(expected_bleu()[3])
    assert result["texts"][0]["unused"] == 5


def test_items_of_a_coco_annotation_file_are_found_by_number_or_file_name(score, write):
    annotations = {
        "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "val/b.jpg"}],
        "annotations": [
            {"image_id": number, "caption": text}
            for number, key in ((7, "a.jpg"), (8, "b.jpg"))
            for text in REFERENCES[key]
        ],
    }
    references = write("annotations.json", json.dumps(annotations))
    by_number = write(
        "n.json",
        '[{"image_id": 7, "caption": "a dog runs on the grass"},'
        ' {"image_id": 8, "caption": "two men ride a horse"}]',
    )
    by_name = write("n.jsonl", jsonl({key: TEXTS[key] for key in ("a.jpg", "b.jpg")}))
    results = [
        score(path, "--references", references, "--metrics", "bleu,cider", folder=False)[1]
        for path in (by_number, by_name)
    ]
    assert figures(results[0]) == figures(results[1])
    assert figures(results[0])["bleu2"] == pytest.approx(expected_bleu(("a.jpg", "b.jpg"))[1])


def test_items_scores_are_written_ordered_by_id(score, write, tmp_path):
    score(write("t.jsonl", jsonl(TEXTS)), "--per-item", tmp_path / "items.jsonl")
    lines = (tmp_path / "items.jsonl").read_text().splitlines()
    items = [json.loads(line) for line in lines]
    assert [item["id"] for item in items] == ["a.jpg", "b.jpg", "c.jpg"]
    for item in items:
        tokens = ptb_tokenize(TEXTS[item["id"]])
        references = [ptb_tokenize(text) for text in REFERENCES[item["id"]]]
        assert item["bleu1"] == bleu_from_sums(bleu_sums(tokens, references))[0]
        assert item["references"] == REFERENCES[item["id"]]
        assert {"cider", "rouge_l", "hypothesis"} <= set(item)


def test_single_figures_can_be_asked_for(score, write):
    path = write("t.jsonl", jsonl(TEXTS))
    status, result, out, _ = score(path, "--metrics", "length, bleu4,bleu2 ,cider")
    assert status == 0
    assert list(figures(result)) == ["length", "bleu2", "bleu4", "cider"]
    assert figures(result)["bleu4"] == pytest.approx(expected_bleu()[3])
    assert "bleu1" not in out
    _, result, _, _ = score(path, "--metrics", "bleu4", "--compare", path, "--bootstrap", "9")
    assert [entry["metric"] for entry in result["comparison"]] == ["bleu4"]


def test_missing_tables_cost_meteors_row_alone(score, write, monkeypatch):
    load_tables.cache_clear()
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)
    path = write("t.jsonl", jsonl(TEXTS))
    status, result, out, _ = score(path, "--metrics", "meteor,bleu")
    assert status == 0
    assert figures(result)["meteor"] is None
    assert figures(result)["bleu1"] == pytest.approx(expected_bleu()[0])
    assert "METEOR needs the package pycocoevalcap" in out
    status, _, _, err = score(path, "--metrics", "meteor")
    assert status == 2
    assert "no figure could be computed; meteor: METEOR needs the package pycocoevalcap" in err


def test_m_rnn_preset_keeps_punctuation_and_reports_perplexities(score, write):
    path = write("t.jsonl", jsonl({**TEXTS, "b.jpg": "two cyclists on a road, racing."}))
    scored = "".join(f"P-{n}\t-1.0 -{n}.0\n" for n in range(1, 6))
    scores = write("scored.txt", scored)
    status, result, out, _ = score(path, "--preset", "m_rnn", "--reference-scores", scores)
    assert status == 0
    found = figures(result)
    # log2-probabilities: -(1 + n) over two tokens each
    assert found["perplexity"] == pytest.approx(2 ** (sum(1 + n for n in range(1, 6)) / 10))
    assert found["perplexity_sentence"] == pytest.approx(
        sum(2 ** ((1 + n) / 2) for n in range(1, 6)) / 5
    )
    entry = entry_of(result, "perplexity")
    assert (entry["scored"], entry["expected"]) == (5, 6)
    assert entry["note"] == "1 of 6 lines not scored, such as [0]"
    assert "eos:counted" in entry["signature"]
    # "," is a token of text and reference, the final "." of neither
    assert found["length"] == pytest.approx((6 + 7 + 6) / 3)
    assert "tok:m_rnn|case:lc|punct:yes" in entry_of(result, "bleu1")["signature"]
    assert "signature" not in out
    assert max(map(len, out.splitlines())) <= 80
    _, _, out, _ = score(path, "--preset", "m_rnn", "--signatures")
    assert "\nbleu1|refs:2|tok:m_rnn|case:lc|punct:yes|" in out


def test_intervals_are_the_same_for_the_same_seed_and_hold_the_figure(score, write):
    path = write("t.jsonl", jsonl(TEXTS))
    _, first, out, _ = score(path, "--bootstrap", 50)
    _, second, _, _ = score(path, "--bootstrap", 50)
    assert first["scores"] == second["scores"]
    for entry in first["scores"][:6]:
        low, high = entry["interval"]
        assert low <= entry["value"] <= high
        assert entry["signature"].endswith("|bootstrap:50|seed:1")
    assert "95% interval" in out


def test_comparison_is_over_common_items_and_paired(score, write):
    worse = {"a.jpg": "a cat", "b.jpg": "a cat"}
    paths = write("t.jsonl", jsonl(TEXTS)), write("worse.jsonl", jsonl(worse))
    status, result, out, _ = score(paths[0], "--compare", paths[1], "--bootstrap", 200)
    assert status == 0
    compared = {entry["metric"]: entry for entry in result["comparison"]}
    values = compared["bleu1"]["values"]
    assert values[0] == pytest.approx(expected_bleu(("a.jpg", "b.jpg"))[0])
    assert compared["bleu1"]["difference"] == values[0] - values[1] > 0
    assert compared["bleu1"]["interval"][0] > 0
    assert compared["bleu1"]["p"] == pytest.approx(2 / 201)
    assert "p" not in compared["distinct1"]
    assert "A - B" in out
    _, same, _, _ = score(paths[0], "--compare", paths[0], "--bootstrap", 20)
    assert {entry.get("p", 1.0) for entry in same["comparison"]} == {1.0}


@pytest.mark.parametrize(("value", "expected"), [(False, "no"), (True, "yes")])
def test_signatures_and_card_say_whether_unk_was_allowed(score, write, value, expected):
    log = (
        "2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'generation': {'beam': 3}, "
        f"'task': {{'allow_unk': {value}}}}}\n"
    )
    path = write("generate-valid.txt", log + generated(TEXTS).split("\n", 1)[1])
    entries = [
        {"id": key, "caption": text, "options": {"beam": 3, "allow_unk": value}}
        for key, text in TEXTS.items()
    ]
    lines = write("captions.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))
    for name in (path, lines):
        status, result, _, _ = score(name, "--metrics", "bleu,diversity")
        assert status == 0
        assert all(f"|unk:{expected}|" in entry["signature"] for entry in result["scores"])
        assert result["card"]["decoding"] == {"beam": 3, "allow_unk": value}
    _, result, _, _ = score(write("plain.jsonl", jsonl(TEXTS)), "--metrics", "bleu")
    assert "unk:" not in result["scores"][0]["signature"]


def test_card_holds_command_hashes_and_decode_settings(score, write, data):
    checkpoint = write("m.pt", "weights")
    log = (
        "2026-01-01 00:00:00 | INFO | fairseq_cli.generate | {'_name': None, 'common': {'seed': 7},"
        f" 'common_eval': {{'path': '{checkpoint}'}}, 'generation': {{'beam': 3, 'lenpen': 1.5, "
        "'sampling': False}}\n"
    )
    path = write("generate-valid.txt", log + generated(TEXTS).split("\n", 1)[1])
    status, result, _, _ = score(path)
    card = result["card"]
    assert status == 0
    assert card["decoding"] == {
        "path": checkpoint,
        "beam": 3,
        "lenpen": 1.5,
        "sampling": False,
        "seed": 7,
    }
    digest = hashlib.sha256(b"weights").hexdigest()
    assert card["checkpoints"] == [{"path": checkpoint, "bytes": 7, "sha256": digest}]
    assert set(card["files"]) == {"hypotheses", "references", "training_text", "dictionary"}
    dictionary = hashlib.sha256((data / "dict.txt").read_bytes()).hexdigest()
    assert card["files"]["dictionary"]["sha256"] == dictionary
    assert card["versions"]["python"]


def coco_example(score, folder, metrics):
    status, result, _, err = score(
        folder / "captions_val2014_fakecap_results.json",
        *("--references", folder / "captions_val2014_fakecap1000.json", "--metrics", metrics),
        folder=False,
    )
    assert (status, err) == (0, "")
    assert {(e["scored"], e["expected"]) for e in result["scores"]} == {(1000, 1000)}
    return figures(result)


def test_coco_example_scores_as_published(score, shared_data):
    found = coco_example(score, shared_data("coco_caption"), "bleu,rouge_l,cider")
    # coco-caption's own answers to its example
    assert [round(found[f"bleu{n}"], 4) for n in (1, 2, 3, 4)] == [0.5794, 0.4044, 0.2785, 0.1908]
    assert round(found["rouge_l"], 5) == 0.39625
    assert round(found["cider"], 5) == 0.59979


NUMBERED = {"COCO_val2014_000000000012.jpg": "a dog runs", "000000000007.jpg": "two men"}


def references_of(write, names):
    lines = [json.dumps({"id": name, "references": ["a dog"]}) + "\n" for name in names]
    return write("r.jsonl", "".join(lines))


def test_a_submission_has_the_captions_without_references_too(score, write, tmp_path):
    """The references of COCO's test images are the server's alone."""
    out = tmp_path / "captions_test2014_own_results.json"
    first, second = NUMBERED
    arguments = ("--references", references_of(write, [first]), "--metrics", "diversity")
    texts = write("t.jsonl", jsonl(NUMBERED))
    status, result, _, err = score(texts, *arguments, "--submission", out, folder=False)
    assert status == 0
    assert {entry["scored"] for entry in result["scores"]} == {1}
    assert f"1 texts without references (not scored): {second}" in err
    assert {entry["image_id"]: entry["caption"] for entry in json.loads(out.read_text())} == {
        12: "a dog runs",
        7: "two men",
    }


@pytest.mark.parametrize("layout", ["jsonl", "text", "caption"])
def test_a_submission_needs_no_references(write, tmp_path, capsys, layout):
    out = tmp_path / "captions_test2014_own_results.json"
    lines = jsonl(NUMBERED)
    if layout == "text":
        lines = "".join(f"{key}\t{text}\n" for key, text in NUMBERED.items())
    elif layout == "caption":
        lines = lines.replace("hypothesis", "caption")
    arguments = ["score", write("captions", lines), "--submission", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        f"wrote {out}: 2 captions; nothing to score them by\n",
    )
    assert [entry["image_id"] for entry in json.loads(out.read_text())] == [12, 7]
    # who asks for figures is told what they need
    assert main([*arguments, "--metrics", "bleu"]) == 2
    assert "references are needed: give --data" in capsys.readouterr().err


@pytest.mark.slow
def test_coco_example_has_the_published_meteor(score, shared_data):
    pytest.importorskip("pycocoevalcap")
    found = coco_example(score, shared_data("coco_caption"), "meteor")
    assert round(found["meteor"], 5) == 0.19525
