"""`fairseq-mm score --preset how2`: published figures, plain references, what a folder of summaries
adds: transcripts, words of indexed OOV tokens."""

import json

import pytest

from fairseq_mm.cli.main import main
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
