"""`fairseq-mm score --baseline`: the paper's share from figures and files, resampling, mistakes."""

import json

import pytest

from fairseq_mm.cli.main import main

PAPER = ("68.0,51.4,63.3", "64.0,46.4,58.9", "62.3,46.1,58.2")
NAMES = ("rouge1", "rouge2", "rouge_l")


@pytest.fixture
def gain(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(system, text_only, baseline, *arguments):
        options = ("--system", system, "--text-only", text_only, "--baseline", baseline)
        status = main(["score", *options, *arguments, "--json", "gain.json"])
        path = tmp_path / "gain.json"
        printed = capsys.readouterr()
        return status, json.loads(path.read_text()) if status == 0 else {}, printed

    return run


@pytest.fixture
def by_item(tmp_path):
    """Writes a file as `score --per-item` does."""

    def write(name, items):
        lines = [
            json.dumps({"id": key, "hypothesis": "x", **dict(zip(NAMES, figures))}) + "\n"
            for key, figures in items.items()
        ]
        (tmp_path / name).write_text("".join(lines))
        return name

    return write


def test_the_papers_share_from_typed_figures(gain):
    status, result, printed = gain(*PAPER)
    assert status == 0
    assert round(100 * result["share"], 1) == 83.6
    assert result["gain"] == pytest.approx({"rouge1": 0.057, "rouge2": 0.053, "rouge_l": 0.051})
    assert "The video brings 83.6 % of the gain over the baseline.\n" in printed.out
    assert "share of video         70.2 %   94.3 %   86.3 %" in printed.out
    # figures between 0 and 1 are no percentages
    _, same, _ = gain("0.68,0.514,0.633", *PAPER[1:])
    assert same["share"] == pytest.approx(result["share"], abs=1e-12)


def test_scores_by_item_give_an_interval_over_common_items(gain, by_item):
    text_only = {f"v{i}": (0.5 + 0.01 * (i % 3), 0.3, 0.4 + 0.02 * (i % 2)) for i in range(13)}
    system = {
        key: tuple(figure + 0.02 + 0.002 * (i % 4) for figure in figures)
        for i, (key, figures) in enumerate(text_only.items())
    }
    system["only here"] = (0.0, 0.0, 0.0)
    arguments = (by_item("a.jsonl", system), by_item("b.jsonl", text_only))
    status, result, printed = gain(*arguments, "48,28,38", "--bootstrap", "40")
    assert status == 0
    assert result["items"] == 13
    low, high = result["interval"]
    assert 0 < low < result["share"] < high < 1
    assert result["bootstrap"] == {"samples": 40, "seed": 1, "baseline": "exact"}
    assert "Items that all files have: 13." in printed.out
    assert "% (40 resamples, seed 1, the baseline's figures taken as exact)." in printed.out
    baseline = {key: tuple(f - 0.02 for f in figures) for key, figures in text_only.items()}
    _, paired, printed = gain(*arguments, by_item("c.jsonl", baseline), "--bootstrap", "40")
    assert paired["bootstrap"]["baseline"] == "resampled"
    assert paired["interval"][1] - paired["interval"][0] < high - low
    assert "taken as exact" not in printed.out


def test_baseline_that_is_sometimes_as_good_leaves_no_interval(gain, by_item):
    system = {f"v{i}": (0.9 * (i % 2),) * 3 for i in range(7)}
    text_only = dict.fromkeys(system, (0.1,) * 3)
    arguments = (by_item("a.jsonl", system), by_item("b.jsonl", text_only), "38,38,38")
    _, result, printed = gain(*arguments)
    assert result["interval"] is None
    assert "No interval: in some of 1000 resamples, seed 1, the baseline's" in printed.out


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (
            ("50,40,45", "49,39,44", "51,39,45"),
            "The system is no better than the baseline in rouge1, rouge_l: there is no gain of ",
        ),
        (("50,40,45", "51,41,46", "48,38,43"), "the video takes away 50.0 % of the gain over"),
        (("50,40,45", "47,37,42", "48,38,43"), "The video brings 150.0 % of the gain over the "),
    ],
)
def test_shares_that_would_mislead_are_put_into_words(gain, figures, message):
    status, result, printed = gain(*figures)
    assert status == 0
    assert message in printed.out
    assert message in result["message"]
    assert (result["share"] is None) == ("no better" in message)


def test_hypotheses_are_scored_and_compared_in_one_run(gain, by_item, tmp_path, capsys):
    references = ["mix the flour and the milk", "cut the red onion", "tune the strings now"]
    texts = ["mix flour and milk", "cut the onion", "tune all the strings"]
    worse = ["mix flour", "the onion", "strings"]
    for name, lines in (("a.ref", references), ("a.txt", texts), ("b.txt", worse)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    options = ["--references", "a.ref", "--preset", "how2", "--metrics", "rouge"]
    for name in ("a", "b"):
        items = ["--per-item", f"{name}.jsonl"]
        assert main(["score", f"{name}.txt", *options, *items]) == 0
    capsys.readouterr()
    both = ("--text-only", "b.jsonl", "--baseline", "20,10,15")
    status, expected, printed = gain("a.jsonl", "b.jsonl", "20,10,15", "--bootstrap", "20")
    assert status == 0
    assert main(["score", "a.txt", *options, *both, "--bootstrap", "20", "--json", "o.json"]) == 0
    result = json.loads((tmp_path / "o.json").read_text())
    assert result["gain"].pop("systems")["system"].pop("source") == "a.txt"
    assert expected.pop("systems")["system"].pop("source") == "a.jsonl"
    assert result["gain"] == expected
    assert result["scores"][0]["metric"] == "rouge1"
    assert printed.out in capsys.readouterr().out
