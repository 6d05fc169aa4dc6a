"""``fairseq-mm tell``: what is printed, refusals before any work, the exit status."""

import hashlib
import io
import json
import sys

import pytest
from toy_story_models import make_story_folder, train_stories
from toy_text_models import SOURCE_WORDS, save_text_model

import fairseq_mm
from fairseq_mm.cli.main import main

LENGTH = ["--min-words", "3", "--max-words", "8"]
SHORT = {"min_words": 3, "max_words": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "story": save_text_model(folder / "moved" / "checkpoint_best.pt").parent,
        "prompts": save_text_model(folder / "prompts.pt", "gcnn_lm_tiny", words=SOURCE_WORDS),
        "stories": save_text_model(folder / "stories.pt", "gcnn_lm_tiny"),
    }


@pytest.fixture
def tell(capsys):
    """Runs the command: exit status, stdout, stderr."""

    def run(*arguments):
        capsys.readouterr()
        status = main(["tell", "--device", "cpu", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def teller(files):
    return fairseq_mm.from_pretrained(files["story"], prompt_model=files["prompts"], device="cpu")


def test_a_story_alone_is_printed_as_it_reads(tell, files, teller):
    prompt = "[WP] You find a door."
    (expected,) = teller.tell([prompt], **SHORT)
    assert tell("--model", files["story"], "--prompt", prompt, *LENGTH) == (0, f"{expected}\n", "")


def test_several_stories_have_headings(tell, files, teller):
    prompts = ["the old house", "You find a door ."]
    expected = teller.tell(prompts, seed=4, **SHORT)
    arguments = [x for prompt in prompts for x in ("--prompt", prompt)]
    status, output, errors = tell("--model", files["story"], *arguments, "--seed", 4, *LENGTH)
    blocks = [f"=== {i}: {prompts[i]} ===\n\n{expected[i]}\n\n" for i in range(2)]
    assert (status, output, errors) == (0, "".join(blocks), "")
    second = ["--prompt", prompts[1], "--first-id", 1, "--seed", 4]
    assert tell("--model", files["story"], *second, *LENGTH)[1] == f"{expected[1]}\n"


def test_an_object_a_line_says_what_made_the_story(tell, files, teller, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffthe old barn barn\r\nYou find a door .\n".encode())
    target = tmp_path / "told.jsonl"
    output = ["--jsonl", "--output", target, "--words", 7, "--temperature", 2, "--n", 2]
    status, printed, errors = tell("--model", files["story"], "--prompts", file, *output)
    assert (status, printed) == (0, "")
    assert errors == (
        f"fairseq-mm tell: {file}:1: the model does not know, and reads as unknown, 1 word: barn\n"
        f"wrote {target}: 4 stories\n"
    )
    entries = [json.loads(line) for line in target.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == [0, 1, 2, 3]
    assert [entry["prompt"] for entry in entries] == ["the old barn barn"] * 2 + [
        "You find a door ."
    ] * 2
    lines = ["the old barn barn"] * 2 + ["You find a door ."] * 2
    expected = teller.tell(lines, min_words=7, max_words=7, temperature=2.0)
    assert [entry["story"] for entry in entries] == expected
    entry = entries[0]
    checkpoint = (files["story"] / "checkpoint_best.pt").read_bytes()
    assert entry.pop("score") < 0
    assert len(entry.pop("tokens").split()) == 7
    assert entry == {
        "id": 0, "prompt": "the old barn barn", "story": expected[0], "words": 7,
        "prompt_tokens": "the old barn barn", "unknown_words": ["barn", "barn"],
        "prompt_words_cut": 0, "seed": 1,
        "options": {
            "beam": 0, "topk": 10, "topp": 1.0, "temperature": 2.0, "min_words": 7, "max_words": 7,
            "no_repeat_ngram": 0, "seed": 1, "allow_unk": False,
        },
        "checkpoint": hashlib.sha256(checkpoint).hexdigest(),
    }  # fmt: skip


def test_prompts_are_made_up_and_told(tell, files, teller):
    models = ["--model", files["story"], "--prompt-model", files["prompts"]]
    expected = teller.tell(n=3, seed=2, **SHORT)
    prompts = teller.make_up_prompts(range(3), seed=2)
    status, output, _ = tell(*models, "--n", 3, "--seed", 2, *LENGTH)
    assert status == 0
    assert output == "".join(
        f"=== {i}: {prompts[i].text} ===\n\n{expected[i]}\n\n" for i in range(3)
    )
    _, output, _ = tell(*models, "--n", 3, "--seed", 2, "--jsonl", *LENGTH)
    entries = [json.loads(line) for line in output.splitlines()]
    assert [entry["story"] for entry in entries] == expected
    assert [entry["prompt_score"] < 0 for entry in entries] == [True] * 3
    assert entries[0]["prompt_options"] == {"topk": 10, "temperature": 1.0, "seed": 2}
    expected_hash = hashlib.sha256(files["prompts"].read_bytes()).hexdigest()
    assert entries[0]["prompt_checkpoint"] == expected_hash


def test_prompts_alone_are_the_same_and_can_be_given(tell, files, teller, monkeypatch):
    prompts = teller.make_up_prompts(range(3), seed=2)
    only = ["--prompt-model", files["prompts"], "--prompts-only", "--n", 3, "--seed", 2]
    _, output, _ = tell(*only)
    assert output.splitlines() == [prompt.text for prompt in prompts]
    _, raw, _ = tell(*only, "--raw")
    assert raw.splitlines() == [" ".join(prompt.words) for prompt in prompts]
    _, objects, _ = tell(*only, "--jsonl")
    entry = json.loads(objects.splitlines()[1])
    assert (entry["id"], entry["tokens"]) == (1, " ".join(prompts[1].words))
    stdin = io.TextIOWrapper(io.BytesIO(raw.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    story = ["--model", files["story"], "--prompts", "-", "--raw", "--seed", 2]
    _, stories, _ = tell(*story, *LENGTH)
    _, expected, _ = tell(
        "--model", files["story"], *only[:2], "--n", 3, "--seed", 2, "--raw", *LENGTH
    )
    assert stories == expected


def test_a_language_model_tells_without_prompts(tell, files):
    status, raw, _ = tell("--model", files["stories"], "--n", 2, "--raw", *LENGTH)
    assert status == 0
    assert all(3 <= len(line.split()) <= 8 for line in raw.splitlines())
    _, text, _ = tell("--model", files["stories"], "--n", 2, *LENGTH)
    assert text.startswith("=== 0 ===\n\n")
    _, objects, _ = tell("--model", files["stories"], "--n", 2, "--jsonl", *LENGTH)
    entries = [json.loads(line) for line in objects.splitlines()]
    assert [entry["tokens"] for entry in entries] == raw.splitlines()
    assert "prompt" not in entries[0]


def test_prompts_that_cannot_be_read_are_named_and_the_others_told(tell, files, teller, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("zyzzy\n\nthe old house\n" + "door " * 45 + "\n")
    arguments = ["--model", files["story"], "--prompts", file, "--raw", *LENGTH]
    status, output, errors = tell(*arguments)
    assert status == 2
    prompt = teller.read_prompt("the old house")
    telling = fairseq_mm.inference.text_writer.preset_with("paper", **SHORT)
    (story,) = teller.stories([2], [prompt], telling)
    assert output == " ".join(story.words) + "\n"
    lines = errors.splitlines()
    assert lines[0].startswith(f"fairseq-mm tell: {file}:1: prompt 'zyzzy': none of its words is")
    assert lines[1] == f"fairseq-mm tell: {file}:2: the prompt is empty."
    assert lines[2].startswith(f"fairseq-mm tell: {file}:4: prompt 'door")
    assert lines[3:] == ["3 of 4 prompts could not be read"]
    status, output, errors = tell(*arguments, "--truncate-prompt")
    assert (status, len(output.splitlines())) == (2, 2)
    assert f"{file}:4: cut to 40 words, 5 are left out" in errors


def test_unknown_words_of_many_prompts_are_not_all_listed(tell, files, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("".join(f"door word{i}\n" for i in range(7)))
    status, _, errors = tell("--model", files["story"], "--prompts", file, *LENGTH)
    assert status == 0
    lines = errors.splitlines()
    assert len(lines) == 6
    assert lines[4].endswith("1 word: word4")
    assert lines[5].startswith("fairseq-mm tell: 2 further prompts with unknown words")


def test_searches_and_repeats(tell, files, teller):
    model = ["--model", files["story"], "--prompt", "the old house"]
    for arguments, options in (
        (["--beam", 3], {"preset": "beam", "beam": 3}),
        (
            ["--preset", "greedy", "--no-repeat-ngram", 2],
            {"preset": "greedy", "no_repeat_ngram": 2},
        ),
        (["--topk", 0, "--topp", 0.7], {"topk": 0, "topp": 0.7}),
    ):
        (expected,) = teller.tell(["the old house"], **options, **SHORT)
        assert tell(*model, *arguments, *LENGTH) == (0, f"{expected}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a"], "no model: give a checkpoint of a story model (--model)."),
        (
            ["--model", "{story}", *LENGTH],
            "tells stories of prompts: give some, or a language model",
        ),
        (["--model", "{story}", "--prompt", " ", *LENGTH], "tell: the prompt is empty."),
        (["--model", "{story}", "--prompt", "x", *LENGTH], "prompt 'x': none of its words is in"),
        (["--model", "{story}", "--prompt", "door"], "`max_words` must be at most 40, for which"),
        (["--model", "{stories}", "--prompt", "x", *LENGTH], "which takes no prompt: give --n."),
        (["--model", "{stories}", "--prompt-model", "{prompts}"], "which needs no prompt model"),
        (
            ["--model", "{story}", "--prompt-model", "{stories}"],
            "train the prompt model on prompts",
        ),
        (["--model", "{story}", "--prompt-model", "{prompts}", "--prompt", "x"], "leave one out"),
        (["--prompts-only", "--n", "3"], "--prompts-only: needs the model that makes them up"),
        (
            ["--prompts-only", "--prompt-model", "{prompts}", "--topk", "0"],
            "--topk: says how stori",
        ),
        (
            ["--prompts-only", "--prompt-model", "{story}"],
            "a prompt model must be a language model",
        ),
        (
            ["--model", "{story}", "--prompt", "a", "--prompt-topk", "3"],
            "no prompt is made up with",
        ),
        (["--model", "{story}", "--prompt", "a", "--n", "0"], "--n must be 1 or more, but is 0"),
        (["--model", "{story}", "--prompt", "a", "--seed", "-1"], "--seed must be 0 or more, but"),
        (["--model", "{story}", "--prompt", "a", "--beam", "0"], "--beam must be 1 or more, but"),
        (
            ["--model", "{story}", "--prompt", "a", "--first-id", "99999999999999999999"],
            "--first-id must be 9007199254740992 or less, but is 99999999999999999999 instead.",
        ),
        (["--model", "{story}", "--prompt", "a", "--n", "9007199254740993"], "--n must be 90071"),
        (
            ["--model", "{story}", "--prompt", "a", "--prompt", "door \udcff"],
            "--prompt 2: must be UTF-8 text, but is not (surrogates not allowed).",
        ),
        (
            ["--model", "{story}", "--prompt", "a", "--preset", "paper", "--beam", "2"],
            "`topk` is 10",
        ),
        (
            ["--model", "{story}", "--prompt", "door", "--n", "2", "--preset", "greedy", *LENGTH],
            "--n 2: a search finds the same story each time",
        ),
        (["--model", "{story}", "--prompts", "none.txt"], "--prompts none.txt: cannot be read (No"),
        (["--model", "{story}", "--prompts", "{prompts}"], "is no UTF-8 text ("),
        (["--model", "{story}", "--prompts", "/dev/null"], "must have prompts, but is empty."),
        (["--model", "none", "--prompt", "a"], "none: no such checkpoint or folder."),
        (["--model", "{story}", "--prompt", "a", "--output", "no/x"], "there is no folder no."),
    ],
)
def test_what_cannot_be_told_is_one_line(tell, files, arguments, message):
    status, output, errors = tell(*(argument.format(**files) for argument in arguments))
    assert (status, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert message in errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Checkpoints of fairseq-train, moved since, and the data folder, moved too."""
    folder = tmp_path_factory.mktemp("trained")
    data = make_story_folder(folder / "data")
    lstm = "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 6"
    train_stories(data, folder / "story", "conv_story_tiny")
    train_stories(data / "prompts", folder / "prompts", "gcnn_lm_tiny")
    train_stories(data, folder / "lstm", "lstm", lstm)
    return folder.rename(folder.with_name("elsewhere"))


def test_trained_models_tell_from_another_place(tell, trained):
    arguments = ["--model", trained / "story", "--prompt-model", trained / "prompts"]
    arguments += ["--n", 3, "--words", 50, "--jsonl"]
    status, output, errors = tell(*arguments)
    assert (status, errors) == (0, "")
    entries = [json.loads(line) for line in output.splitlines()]
    assert [entry["words"] for entry in entries] == [50] * 3
    assert tell(*arguments, "--batch-size", 1)[1] == output


def test_fairseqs_own_models_take_the_dictionaries_of_a_folder(tell, trained):
    texts = ["[WP] You find a door", "You find", "a door"]
    prompts = [x for text in texts for x in ("--prompt", text)]
    arguments = ["--model", trained / "lstm", *prompts, "--raw", *LENGTH]
    status, output, errors = tell(*arguments, "--data", trained / "data")
    assert (status, errors) == (0, "")
    assert len(output.splitlines()) == 3
    assert tell(*arguments, "--data", trained / "data", "--batch-size", 1)[1] == output
    status, _, errors = tell(*arguments)
    assert status == 2
    assert len(errors.splitlines()) == 1
    assert "checkpoint_last.pt: " in errors
