"""``fairseq-mm tell``: what is printed, refusals before any work, the exit status."""

import functools
import hashlib
import json
import os

import pytest
from toy_text_models import SOURCE_WORDS, save_text_model

import fairseq_mm
from fairseq_mm.inference.generator import generate_prompts

LENGTH = ["--min-len", "3", "--max-len-b", "8"]
SHORT = {"min_len": 3, "max_len_b": 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "story": save_text_model(folder / "moved" / "checkpoint_best.pt").parent,
        "prompts": save_text_model(folder / "prompts.pt", "gcnn_lm_tiny", words=SOURCE_WORDS),
        "stories": save_text_model(folder / "stories.pt", "gcnn_lm_tiny"),
    }


@pytest.fixture
def tell(run_command):
    """Runs the command: exit status, stdout, stderr."""
    return functools.partial(run_command, "tell", "--device", "cpu")


@pytest.fixture
def model(files):
    return fairseq_mm.from_pretrained(files["story"], prompt_model=files["prompts"], device="cpu")


def texts(model, prompts, **options):
    return [best.text for best, *_ in model.generate(prompts, **options)]


def tokens_of(output):
    return [json.loads(line)["tokens"] for line in output.splitlines()]


def test_a_story_alone_is_printed_as_it_reads(tell, files, model):
    prompt = "[WP] You find a door."
    (expected,) = texts(model, [prompt], **SHORT)
    assert tell("--checkpoint", files["story"], "--prompt", prompt, *LENGTH) == (
        0,
        f"{expected}\n",
        "",
    )


def test_several_stories_have_headings(tell, files, model):
    prompts = ["the old house", "You find a door ."]
    expected = texts(model, prompts, seed=4, **SHORT)
    arguments = [x for prompt in prompts for x in ("--prompt", prompt)]
    status, output, errors = tell("--checkpoint", files["story"], *arguments, "--seed", 4, *LENGTH)
    blocks = [f"=== {i}: {prompts[i]} ===\n\n{expected[i]}\n\n" for i in range(2)]
    assert (status, output, errors) == (0, "".join(blocks), "")


def test_an_object_a_line_says_what_made_the_story(tell, files, model, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffthe old barn barn\r\nYou find a door .\n".encode())
    target = tmp_path / "stories.jsonl"
    options = "--jsonl --min-len 7 --max-len-b 7 --temperature 2 --n 2 --output"
    output = [*options.split(), target]
    status, printed, errors = tell("--checkpoint", files["story"], "--prompts", file, *output)
    assert (status, printed) == (0, "")
    assert errors == (
        "words that are not in the vocabulary, read as <unk>: "
        f"{file}:1 (barn), {file}:1 (barn)\n"
        f"wrote {target}: 4 stories\n"
    )
    entries = [json.loads(line) for line in target.read_text().splitlines()]
    assert [entry["id"] for entry in entries] == [0, 1, 2, 3]
    assert [entry["prompt"] for entry in entries] == ["the old barn barn"] * 2 + [
        "You find a door ."
    ] * 2
    lines = ["the old barn barn"] * 2 + ["You find a door ."] * 2
    expected = texts(model, lines, min_len=7, max_len_b=7, temperature=2.0)
    assert [entry["hypothesis"] for entry in entries] == expected
    entry = entries[0]
    checkpoint = (files["story"] / "checkpoint_best.pt").read_bytes()
    assert entry.pop("score") < 0
    assert len(entry.pop("tokens").split()) == 7
    assert entry == {
        "id": 0, "prompt": "the old barn barn", "hypothesis": expected[0], "words": 7,
        "prompt_tokens": "the old barn barn", "unknown_words": ["barn", "barn"],
        "prompt_words_cut": 0,
        "options": {
            "beam": 1, "nbest": 1, "sampling": True, "sampling_topk": 10, "sampling_topp": -1.0,
            "typical_p": -1.0, "temperature": 2.0, "lenpen": 1.0, "unkpen": 0.0, "min_len": 7,
            "max_len_a": 0, "max_len_b": 7, "no_repeat_ngram_size": 0, "allow_unk": False,
            "seed": 1, "weights_dtype": "float32",
        },
        "checkpoint": hashlib.sha256(checkpoint).hexdigest(),
    }  # fmt: skip


def test_prompts_alone_are_the_same_and_can_be_given(tell, files, model, tmp_path):
    prompts = generate_prompts(model.prompt_generator, range(3), seed=2, max_words=42)
    only = ["--prompt-model", files["prompts"], "--prompts-only", "--n", 3, "--seed", 2]
    _, output, _ = tell(*only)
    assert output.splitlines() == [prompt.text for prompt in prompts]
    _, objects, _ = tell(*only, "--jsonl")
    tokens = tokens_of(objects)
    assert tokens == [" ".join(prompt.words) for prompt in prompts]
    (tmp_path / "prompts").write_text("".join(f"{line}\n" for line in tokens))
    story = ["--checkpoint", files["story"], "--seed", 2, "--jsonl", *LENGTH]
    kept = os.dup(0)
    with open(tmp_path / "prompts") as stdin:
        os.dup2(stdin.fileno(), 0)
        _, stories, _ = tell(*story, "--prompts", "-")
    os.dup2(kept, 0)
    _, expected, _ = tell(*story, *only[:2], "--n", 3)
    assert tokens_of(stories) == tokens_of(expected)


def test_prompts_that_cannot_be_read_are_named_and_the_others_used(tell, files, model, tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("zyzzy\n\nthe old house\n" + "door " * 45 + "\n")
    arguments = ["--checkpoint", files["story"], "--prompts", file, *LENGTH]
    status, output, errors = tell(*arguments)
    assert status == 2
    ((story,),) = model.generate(["the old house"], indices=[2], **SHORT)
    assert output == f"=== 2: the old house ===\n\n{story.text}\n\n"
    lines = errors.splitlines()
    assert lines[0].startswith(f"fairseq-mm tell: {file}:1: prompt 'zyzzy': none of its words is")
    assert lines[1].startswith(f"fairseq-mm tell: {file}:2: prompt '': none of its words is in ")
    assert lines[2].startswith(f"fairseq-mm tell: {file}:4: prompt 'door")
    assert lines[3:] == ["3 of 4 prompts could not be read"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a"], "give --checkpoint or --compare."),
        (["--checkpoint", "{story}"], "generates stories from prompts: give some."),
        (["--checkpoint", "{story}", "--prompt", " "], "prompt 1: prompt '': none of its words is"),
        (["--checkpoint", "{story}", "--prompt", "x"], "prompt 'x': none of its words is in"),
        (["--checkpoint", "{stories}", "--prompt", "x"], "takes no input: give --n."),
        (
            ["--checkpoint", "{stories}", "--prompt-model", "{prompts}"],
            "`prompt_model` is no option of ",
        ),
        (
            ["--checkpoint", "{story}", "--prompt-model", "{stories}"],
            "train the prompt model on prompts",
        ),
        (
            ["--checkpoint", "{story}", "--prompt-model", "{prompts}", "--prompt", "x"],
            "--prompt-model and --prompt: leave one of the two out: it generates the prompts.",
        ),
        (["--prompts-only", "--n", "3"], "--prompts-only: needs --prompt-model beside it"),
        (
            ["--prompts-only", "--prompt-model", "{prompts}", "--sampling-topk", "4"],
            "--prompts-only and --sampling-topk: leave one of the two out: no story is gen",
        ),
        (
            ["--checkpoint", "{story}", "--prompt", "door", "--n", "2", "--preset", "greedy"],
            "--n: a search generates the same text each time",
        ),
        (["--checkpoint", "{story}", "--prompts", "/dev/null"], "from prompts: give some."),
    ],
)
def test_what_cannot_be_generated_is_one_line(tell, files, arguments, message):
    arguments = [argument.format(**files) for argument in arguments]
    if "--prompts-only" not in arguments:
        arguments += LENGTH
    status, output, errors = tell(*arguments)
    assert (status, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert message in errors


class TestBestOf:
    """The best of several stories that are drawn for a prompt."""

    PROMPTS = ("the old house", "You find a door .", "the house", "a door")
    N = 6

    @pytest.fixture
    def records(self, tell, files):
        def run(*options, prompts=self.PROMPTS):
            given = [x for prompt in prompts for x in ("--prompt", prompt)]
            options = ["--jsonl", "--seed", 3, "--best-of", self.N, *options, *LENGTH]
            status, printed, errors = tell("--checkpoint", files["story"], *given, *options)
            assert (status, errors) == (0, "")
            return [json.loads(line) for line in printed.splitlines()]

        return run

    def candidates(self, model, prompts=PROMPTS):
        drawn = {"preset": "paper", "beam": self.N, "nbest": self.N, "seed": 3}
        return model.generate(list(prompts), **drawn, **SHORT)

    def test_by_score_the_likeliest_are_written(self, records, model):
        found = records("--nbest", 2)
        spread = []
        for record, drawn in zip(found, self.candidates(model)):
            ordered = sorted(drawn, key=lambda x: -x.score)
            spread.append(ordered[0].score - ordered[-1].score)
            assert [x["hypothesis"] for x in record["hypotheses"]] == [x.text for x in ordered[:2]]
            assert [x["rank"] for x in record["hypotheses"]] == [1, 2]
            assert (record["rank"], record["candidates"], record["best_by"]) == (1, self.N, "score")
        assert max(spread) > 0.01

    def test_by_ranking_the_margin_over_other_prompts_decides(self, records, model):
        found = records("--best-by", "ranking", "--nbest", self.N)
        differs = False
        for place, (record, drawn) in enumerate(zip(found, self.candidates(model))):
            margins = {}
            for story in drawn:
                # four prompts: all three others are distractors
                under = model.score([story.line] * 4, list(self.PROMPTS))
                sums = [sum(x.positional_scores) for x in under]
                own = sums.pop(place)
                margins[story.text] = (own - max(sums)) / len(story.tokens)
                if story.text == record["hypothesis"]:
                    assert record["prompt_rank"] == 1 + sum(x > own for x in sums)
            hypotheses = record["hypotheses"]
            assert {x["hypothesis"] for x in hypotheses} == {*margins}
            for entry in hypotheses:
                assert entry["prompt_margin"] == pytest.approx(
                    margins[entry["hypothesis"]], abs=2e-4
                )
            values = [x["prompt_margin"] for x in hypotheses]
            assert values == sorted(values, reverse=True)
            assert values[0] == pytest.approx(max(margins.values()), abs=2e-4)
            differs |= hypotheses[0]["hypothesis"] != max(drawn, key=lambda x: x.score).text
        assert differs

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--best-of", 3, "--beam", 2], "--best-of and --beam: leave one of the two out"),
            (["--best-of", 3, "--preset", "greedy"], "--best-of: a search generates the same text"),
            (["--best-of", 3, "--nbest", 4], "`nbest` must be at most `beam` (3), but is 4"),
            (["--best-by", "score"], "--best-by: needs --best-of beside it"),
            (["--best-of", 3, "--best-by", "ranking"], "there are no others: give more"),
        ],
    )
    def test_bad_options_are_one_line(self, options, message, tell, files):
        prompt = ["--prompt", "the house", *LENGTH]
        status, printed, errors = tell("--checkpoint", files["story"], *prompt, *options)
        assert (status, printed) == (2, "")
        assert errors.count("\n") == 1
        assert message in errors
