"""`fairseq-mm score --preset how2`: published figures, plain references, what a folder of summaries
adds: transcripts, words of indexed OOV tokens."""

import json
import sys

import pytest

from fairseq_mm.cli.main import main
from fairseq_mm.metrics._meteor_tables import load_tables
from fairseq_mm.metrics.rouge import rouge_l_f1, rouge_n_f1

# the second and the fourth video share a transcript's words; c has no transcript
REFERENCES = {"b": "how to bake pie .", "c": "learn to sing .", "a": "how to fold paper ."}
TEXTS = {"b": "learn to bake rhubarb pie .", "c": "learn to sing", "a": "how to fold paper ."}
ROUGE = ("rouge1", "rouge2", "rouge_l")
BLEU = ("bleu1", "bleu2", "bleu3", "bleu4")
WITHOUT_METEOR = "bleu,rouge,cider"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    transcripts = {"b": "today we bake rhubarb pie", "c": "Transcript not available ."}
    transcripts["a"] = "fold the paper"
    unknowns = {"b": ["rhubarb", "x"], "c": [], "a": ["y"]}
    records = [
        {"id": key, "transcript": transcripts[key], "summary": text, "unknowns": unknowns[key]}
        for key, text in REFERENCES.items()
    ]
    (folder / "valid.jsonl").write_text("".join(json.dumps(x) + "\n" for x in records))
    (folder / "dict.desc.txt").write_text("a 3\n")
    (folder / "prepare.json").write_text('{"options": {"tokenizer": "none"}}')
    return folder


@pytest.fixture
def score(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        arguments = list(map(str, arguments))
        status = main(["score", *arguments, "--preset", "how2", "--json", "out.json"])
        path = tmp_path / "out.json"
        result = json.loads(path.read_text()) if status == 0 else {}
        printed = capsys.readouterr()
        return status, result, printed.out, printed.err

    return run


@pytest.fixture
def without_tables(monkeypatch):
    load_tables.cache_clear()
    monkeypatch.setitem(sys.modules, "pycocoevalcap", None)


def figures(result):
    return {entry["metric"]: entry["value"] for entry in result["scores"]}


def generated(texts):
    lines = [
        f"H-{i}\t-0.5\tun@@ read able\nD-{i}\t-0.5\t{texts[key]}\n"
        for i, key in reversed(list(enumerate(REFERENCES)))
    ]
    return "".join(lines)


def check_rouge(found, texts=TEXTS):
    pairs = [(texts[key].split(), text.split()) for key, text in REFERENCES.items()]
    for name, rouge in (
        ("rouge1", lambda h, r: rouge_n_f1(h, r, 1)),
        ("rouge2", lambda h, r: rouge_n_f1(h, r, 2)),
        ("rouge_l", rouge_l_f1),
    ):
        assert found[name] == pytest.approx(sum(rouge(h, r) for h, r in pairs) / 3, abs=1e-12)


def test_preset_works_without_meteors_tables_and_says_so(score, data, without_tables, tmp_path):
    (tmp_path / "g.txt").write_text(generated({**TEXTS, "b": "learn to bake <unk-0> pie ."}))
    status, result, out, err = score("g.txt", "--data", data, "--card", "--per-item", "p.jsonl")
    assert (status, err.count("\n")) == (0, 1)
    assert "3 texts that were not compared with" in err
    found = figures(result)
    assert list(found) == [
        *("rouge1", "rouge2", "rouge_l", "bleu1", "bleu2", "bleu3", "bleu4", "meteor", "cider"),
        *("content_f1", "novel1", "novel2", "novel3", "novel4"),
    ]
    check_rouge(found)  # of restored text: <unk-0> of b is rhubarb
    assert found["meteor"] is found["content_f1"] is None
    assert out.count("METEOR needs the package pycocoevalcap") == 2
    # words of b that its transcript lacks: learn to . ; of a: how to .
    assert found["novel1"] == pytest.approx((3 + 3) / (6 + 5))
    entry = {e["metric"]: e for e in result["scores"]}["novel1"]
    # the references' own: of b how to . ; of a how to .
    assert entry["note"] == "references: 0.60000; 1 without a transcript left out"
    assert (entry["scored"], entry["expected"]) == (2, 3)
    sign = {e["metric"]: e["signature"] for e in result["scores"]}["rouge_l"]
    assert sign.startswith("rouge_l|refs:1|tok:none|case:mixed|punct:yes|beta:1|f1:mean|version:")
    card = json.loads((tmp_path / "g.txt.card.json").read_text())
    assert set(card["files"]) == {"hypotheses", "references", "dictionary"}
    items = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [item["hypothesis"] for item in items] == [TEXTS[key] for key in "abc"]
    assert items[2]["novel1"] is None


def test_plain_text_on_both_sides(score, data, tmp_path):
    (tmp_path / "ours.txt").write_text("".join(f"{TEXTS[key]}\n" for key in REFERENCES))
    (tmp_path / "test.tgt").write_text("".join(f"{text}\n" for text in REFERENCES.values()))
    (tmp_path / "g.txt").write_text(generated(TEXTS))
    plain = ("--references", "test.tgt", "--metrics", WITHOUT_METEOR)
    seen = []
    for arguments in (("ours.txt", *plain), ("ours.txt", *plain, "--data", data)):
        status, result, _, err = score(*arguments, "--per-item", "items.jsonl")
        assert (status, err) == (0, "")
        check_rouge(figures(result))
        lines = (tmp_path / "items.jsonl").read_text().splitlines()
        seen.append([json.loads(line)["id"] for line in lines])
    # numbered like fairseq-generate's lines; with a folder the videos' own ids
    assert seen == [["0", "1", "2"], ["a", "b", "c"]]
    status, result, _, _ = score("g.txt", *plain)
    assert status == 0
    check_rouge(figures(result))


def test_without_a_folder_there_are_no_rows_of_transcripts_unless_they_are_asked_for(
    score, tmp_path
):
    lines = [json.dumps({"id": x, "references": [y]}) + "\n" for x, y in REFERENCES.items()]
    (tmp_path / "r.jsonl").write_text("".join(lines))
    (tmp_path / "g.txt").write_text("".join(f"{x}\t{y}\n" for x, y in TEXTS.items()))
    metrics = WITHOUT_METEOR + ",novel_ngrams"
    _, result, _, _ = score("g.txt", "--references", "r.jsonl", "--metrics", metrics)
    notes = {e["metric"]: e.get("note") for e in result["scores"]}
    assert notes["novel4"] == "needs --data with transcripts"


def published(score, shared_data, name, *arguments):
    folder = shared_data("how2") / "outputs"
    references = folder / "test.tgt"
    status, result, _, err = score(folder / name, "--references", references, *arguments)
    assert (status, err) == (0, "")
    assert {(e["scored"], e["expected"]) for e in result["scores"]} == {(2127, 2127)}
    return figures(result)


def in_percent(found, digits, *names):
    return [round(100 * found[name], digits) for name in names]


def test_published_summaries_get_their_published_figures(score, shared_data):
    found = published(score, shared_data, "Bart_text_only.txt", "--metrics", WITHOUT_METEOR)
    assert in_percent(found, 2, *ROUGE) == [64.05, 46.39, 58.86]
    assert in_percent(found, 1, *BLEU) == [62.4, 52.6, 46.4, 42.0]
    assert round(found["cider"], 2) == 2.97


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Bart_text_only.txt", (64.05, 46.39, 58.86, 62.4, 52.6, 46.4, 42.0, 31.7, 2.97, 63.9110)),
        (
            "Bart_dot_product.txt",
            (66.12, 49.25, 61.25, 64.5, 55.1, 49.2, 44.8, 33.2, 3.18, 66.8554),
        ),
    ],
)
def test_published_summaries_get_all_their_figures(score, shared_data, name, expected):
    """Table 1 of Yu et al. 2021; Content F1 to the six digits of its authors' script."""
    pytest.importorskip("pycocoevalcap")
    found = published(score, shared_data, name)
    rounded = in_percent(found, 2, *ROUGE) + in_percent(found, 1, *BLEU, "meteor")
    rounded += [round(found["cider"], 2), *in_percent(found, 4, "content_f1")]
    assert tuple(rounded) == expected
