"""`fairseq-mm inspect` on toy models: data against the model itself, the page, messages."""

import json
import re

import pytest
import torch
from numerics import assert_close
from toy_story_models import FUSION, STORY_TEXT, make_story_folder, train_stories

from fairseq_mm.cli.main import main
from fairseq_mm.data.story_text import tokenize_story_text
from fairseq_mm.inference.checkpoint import load_models
from fairseq_mm.models._conv_trunk import Trace


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    data = make_story_folder(folder / "data")
    story = train_stories(data, folder / "a", "conv_story_tiny")
    options = f"{FUSION} --pretrained-checkpoint {story}"
    return data, {
        "story": story,
        "fusion": train_stories(data, folder / "b", "conv_story_fusion", options),
    }


@pytest.fixture
def inspect(trained, tmp_path, capsys):
    """Runs the command; returns exit status, the entries, stdout, stderr."""
    data, checkpoints = trained

    def run(name, source, *options):
        path = ":".join(str(checkpoints.get(part, part)) for part in name.split(":"))
        file = tmp_path / "words.jsonl"
        file.unlink(missing_ok=True)
        arguments = [source or data, "--checkpoint", path, "--output", file, *options]
        status = main(["inspect", *map(str, arguments)])
        entries = []
        if file.exists():
            entries = [json.loads(line) for line in file.read_text().splitlines()]
        printed = capsys.readouterr()
        return status, entries, printed.out, printed.err

    return run


@torch.no_grad()
def forward(path, prompt, story):
    """Model, its logits and the traces of its trunks, for lines of text."""
    loaded = load_models(path, device="cpu")
    (model,) = loaded.models
    target = loaded.dictionary.encode_line(story, add_if_not_exist=False).long()
    source = loaded.source_dictionary.encode_line(prompt, add_if_not_exist=False).long()
    previous = torch.cat([target[-1:], target[:-1]]).unsqueeze(0)
    encoder_out = model.encoder(source.unsqueeze(0), src_lengths=torch.tensor([len(source)]))
    trace = Trace()
    features, _ = model.decoder.extract_features(previous, encoder_out, trace=trace)
    return model, previous, encoder_out, trace, model.decoder.output_layer(features)[0], target


def lines_of(data, line):
    return [
        (data / f"text/valid.{side}").read_text().splitlines()[line]
        for side in ("wp_source", "wp_target")
    ]


@torch.no_grad()
def test_every_word_has_what_the_model_computed_there(inspect, trained):
    data, checkpoints = trained
    status, entries, _, _ = inspect("fusion", None, "--line", 3, "--layers")
    assert status == 0
    prompt, story = lines_of(data, 3)
    model, previous, encoder_out, trace, logits, target = forward(
        checkpoints["fusion"], prompt, story
    )
    assert [entry["word"] for entry in entries] == [*story.split(), "</s>"]
    assert [entry["position"] for entry in entries] == list(range(len(target)))
    assert [entry["known"] for entry in entries] == (target != 3).tolist()
    log_probs = logits.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)
    assert_close([e["log_prob"] for e in entries], log_probs)

    gates = model.decoder.fusion.gates(*model.decoder.hidden_states(previous, encoder_out))
    for name, gate in zip(("trained", "pretrained"), gates):
        found = [entry["gates"][name] for entry in entries]
        assert_close(found, gate[0].mean(1))

    weights = torch.stack([x[0].mean(0) for x in trace.source])  # [L, T, S]
    for t, entry in enumerate(entries):
        words, found = zip(*entry["prompt_attention"])
        assert words == (*prompt.split(), "</s>")
        assert_close(found, weights[:, t].mean(0))
        assert sum(found) == pytest.approx(1, abs=1e-4)
        layers = entry["prompt_attention_layers"]
        assert [layer["layer"] for layer in layers] == list(range(len(weights)))
        assert_close([x["weights"] for x in layers], weights[:, t])


@pytest.mark.parametrize("name", ["story", "fusion"])
def test_self_attention_is_summed_up_by_layer_and_head(inspect, trained, name):
    data, checkpoints = trained
    prompt, story = lines_of(data, 1)
    _, entries, _, _ = inspect(name, None, "--line", 1)
    _, _, _, trace, _, _ = forward(checkpoints[name], prompt, story)
    assert "prompt_attention_layers" not in entries[0]  # without --layers
    assert len(entries[0]["self_attention"]) == 4 * len(trace.past)
    assert all(row["distance"] is None for row in entries[0]["self_attention"])
    for t, entry in enumerate(entries):
        for row in entry["self_attention"]:
            weights = trace.past[row["layer"]][0, row["head"], t].tolist()
            assert row["stride"] == row["head"] + 1
            assert_close(row["zero"], weights[0])
            # input s is word s - 1, which is t - s + 1 words before word t
            mass = sum(weights[1:])
            if mass == 0:  # the first word, or a head that is sure of the zero slot
                assert row["distance"] is None
                continue
            distance = sum(x * (t - s + 1) for s, x in enumerate(weights[1:])) / mass
            assert row["distance"] == pytest.approx(distance, abs=1e-3)
            assert 2 <= row["distance"] <= t + 1


def test_a_story_is_of_a_folder_or_of_tell(inspect, trained, tmp_path):
    data, _ = trained
    prompt, story = lines_of(data, 0)
    _, expected, _, _ = inspect("story", None)
    stories = tmp_path / "stories.jsonl"
    entry = {"id": 0, "prompt": prompt, "tokens": story, "prompt_tokens": prompt}
    stories.write_text("{}\n" + json.dumps(entry) + "\n")
    assert inspect("story", stories, "--line", 1)[1] == expected
    # the tokens take precedence over the text of the prompt
    entry.update(tokens=story.split(), prompt_tokens=prompt.split(), prompt="the door")
    stories.write_text(json.dumps(entry) + "\n")
    assert inspect("story", stories)[1] == expected
    cut = inspect("story", None, "--words", 4)[1]
    assert [entry["word"] for entry in cut] == story.split()[:4]
    for a, b in zip(cut, expected):
        assert a["log_prob"] == pytest.approx(b["log_prob"], abs=1e-4)


@pytest.mark.parametrize(("name", "has_gates"), [("story", False), ("fusion", True)])
def test_the_page_shows_every_word_and_loads_nothing(inspect, tmp_path, name, has_gates):
    page, told = tmp_path / "story.html", tmp_path / "told.jsonl"
    text = " ".join(tokenize_story_text(STORY_TEXT.replace("Who", "<b>Who</b>")))
    told.write_text(json.dumps({"prompt": "[ WP ] A <i> door", "tokens": text}))
    status, _, _, _ = inspect(name, told, "--html", page)
    assert status == 0
    html = page.read_text()
    assert ("Fusion gates" in html) == has_gates
    for heading in ("Likelihood", "Attention to the prompt", "Attention to the story so far"):
        assert f"<h2>{heading}</h2>" in html
    assert "↵ &lt;newline&gt;" in html
    assert "<i> door" not in html
    assert "<b>Who</b>" in html  # the word in its element
    assert "&lt;" in html
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", html)


@pytest.mark.parametrize(
    ("name", "source", "options", "message"),
    [
        ("story", None, ["--line", 13], r"--lines must be from 0 to 12 .*, but is 13 instead"),
        ("story", None, ["--line", -1], r"--lines must be from 0 to 12"),
        ("story:fusion", None, [], "no such checkpoint or folder"),
        ("story", None, ["--html", "/nowhere/a.html"], "there is no folder /nowhere"),
        ("story", "no.jsonl", [], "no.jsonl"),
        ("story", None, ["--images", "x", "--html", "y"], "--images: is no option of models of p"),
        (
            "story",
            None,
            ["--line", "1,2"],
            "--lines: one story is inspected, but 2 lines are given",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(inspect, name, source, options, message):
    status, _, _, err = inspect(name, source, *options)
    assert status == 2
    (line,) = [x for x in err.splitlines() if x.startswith("fairseq-mm inspect:")]
    assert re.search(message, line)


def test_a_line_that_tell_did_not_write_is_named(inspect, tmp_path):
    for content in ('{"id": 1}', "[]", "text", '{"tokens": 5}', '{"tokens": "a", "prompt": 3}'):
        (tmp_path / "stories.jsonl").write_text("\n" + content + "\n")
        status, _, _, err = inspect("story", tmp_path / "stories.jsonl")
        assert status == 2
        assert "stories.jsonl:2: must be a line of `fairseq-mm tell" in err
