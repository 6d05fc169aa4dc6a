"""Stories of prompts by the engine: prompts, lengths, forbidden tokens, scores, batches."""

import math

import pytest
import torch
from numerics import assert_close
from toy_text_models import NUM_POSITIONS, SOURCE_WORDS, STORY_WORDS, save_text_model

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import load_models
from fairseq_mm.inference.generator import Generator, generate_prompts
from fairseq_mm.inference.processor import Example
from fairseq_mm.inference.prompt_processor import Prompt

SHORT = {"min_len": 4, "max_len_b": 9, "sampling": True, "sampling_topk": 6, "temperature": 0.8}
MODELS = {
    "story": ("conv_story_tiny", {}),
    "released": ("conv_story_tiny", {"compat": "released"}),
    "stories": ("gcnn_lm_tiny", {}),
    "prompts": ("gcnn_lm_tiny", {"words": SOURCE_WORDS}),
}
PROMPTS = ["You find a door.", "the old house", "[WP] in a house", "a old door", "You in", "find a"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: str(save_text_model(folder / f"{name}.pt", arch, **options))
        for name, (arch, options) in MODELS.items()
    }


@pytest.fixture(scope="module")
def load(files):
    return lambda name: fairseq_mm.from_pretrained(files[name], device="cpu")


@pytest.fixture(scope="module")
def model(files):
    return fairseq_mm.from_pretrained(files["story"], prompt_model=files["prompts"], device="cpu")


def generated(model, count=6, **options):
    if model.loaded.are_language_models:
        found = model.generate(n=count, **options)
    else:
        found = model.generate(PROMPTS[:count], **options)
    return [best for best, *_ in found]


def words_of(found):
    return [best.line.split() for best in found]


def test_prompts_are_read_as_people_write_them(model):
    prompt = model.processor.read_prompt("  [WP] You find a door.\n")
    assert prompt == Prompt(
        "[WP] You find a door.",
        ["[", "WP", "]", "You", "find", "a", "door", "."],
        [4, 5, 6, 7, 8, 9, 10, 15, 2],
    )
    assert model.processor.read_prompt("[ WP ] You find a door .").tokens == prompt.tokens
    assert model.generate(prompt, **SHORT)[0].source == prompt


def test_unknown_words_are_kept_for_the_message(model):
    prompt = model.processor.read_prompt("You don't find a <pad> door </s> <unk>")
    unk = 3
    assert prompt.tokens == [7, unk, unk, 8, 9, unk, unk, unk, 10, unk, unk, unk, unk, unk, unk, 2]
    assert prompt.unknown[:3] == ["do", "n't", "<"]
    spaced = model.processor.read_prompt("You <newline> find")  # is in no prompt of training
    assert spaced.tokens == [7, unk, 8, 2]


def test_prompts_that_cannot_be_read_are_refused(model, load):
    for text, message in (
        (" \n ", "^prompt 1: prompt '': none of its words is in"),
        ("zyzzy qqq", r"'zyzzy qqq': none of its words is in the vocabulary of .*story\.pt"),
        ("door " * 41, r"'door .*\.\.\.': has 41 words, but the model reads at most 40"),
    ):
        with pytest.raises(UserError, match=message):
            model.generate(["a door", text], **SHORT)
    prompt = model.processor.read_prompt("door " * 43, truncate=True)
    found = (len(prompt.words), prompt.num_truncated, len(prompt.tokens))
    assert found == (40, 3, NUM_POSITIONS - 2)
    assert len(model.generate(["door " * 43], reading={"truncate": True}, **SHORT)) == 1
    with pytest.raises(UserError, match=r"stories\.pt: is a language model, which takes no prompt"):
        load("stories").generate("a door")
    with pytest.raises(UserError, match=r"story\.pt: generates stories from prompts: give some\."):
        load("story").generate(n=3)


@pytest.mark.parametrize("name", ["story", "released", "stories"])
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True, "sampling_topk": 5, "min_len": 2, "max_len_b": 23, "seed": 3},
        {"sampling": True, "sampling_topp": 0.8, "max_len_b": 9, "no_repeat_ngram_size": 2},
        {"beam": 3, "nbest": 2, "min_len": 2, "max_len_b": 12},
        {"beam": 1, "min_len": 11, "max_len_b": 11},
    ],
)
def test_texts_do_not_depend_on_their_batch(load, name, options):
    model = load(name)
    together = generated(model, **options)
    draws_or_reads = "sampling" in options or name != "stories"
    assert len({best.text for best in together}) > 1 or not draws_or_reads
    for size in (1, 4):
        other = generated(model, batch_size=size, **options)
        assert [best.tokens for best in other] == [best.tokens for best in together]
        expected = [best.score for best in together]
        assert_close([best.score for best in other], expected)


def test_draws_depend_on_the_seed_the_index_and_the_stream(model):
    options = {"sampling": True, "sampling_topk": 6, "min_len": 20, "max_len_b": 20}
    together = generated(model, indices=range(10, 16), **options)
    assert [best.index for best in together] == list(range(10, 16))
    (alone,) = model.generate(PROMPTS[4], indices=[14], **options)
    assert alone.tokens == together[4].tokens
    (other,) = model.generate(PROMPTS[4], indices=[15], **options)
    (seeded,) = model.generate(PROMPTS[4], indices=[14], seed=8, **options)
    examples = list(model.processor.examples(PROMPTS[4:5]))
    ((prompt,),) = model.stream(examples, model.config(**options), indices=[14], stream="prompt")
    assert len({tuple(best.tokens) for best in (alone, other, seeded, prompt)}) == 4


def test_lengths_are_kept(model):
    for draw in ({"sampling": True, "sampling_topk": 4}, {"beam": 1}, {"beam": 3}):
        exact = words_of(generated(model, min_len=17, max_len_b=17, **draw))
        assert {len(words) for words in exact} == {17}
    drawn = {"sampling": True, "temperature": 3.0, "beam": 6, "nbest": 6}
    found = model.generate(PROMPTS, min_len=3, max_len_b=40, **drawn)
    lengths = {len(best.tokens) - 1 for several in found for best in several}
    assert min(lengths) >= 3
    assert len(lengths) > 5
    # two rows of the table are no positions, one is the start symbol's
    assert model.max_len == NUM_POSITIONS - 3
    (best,) = generated(model, 1, min_len=model.max_len, max_len_b=model.max_len)
    assert len(best.line.split()) == model.max_len


def test_special_symbols_are_never_generated(tmp_path):
    words = [*STORY_WORDS, "madeupword0000", "madeupword0001"]
    loaded = load_models(save_text_model(tmp_path / "padded.pt", words=words), device="cpu")
    with torch.no_grad():  # all that must not be generated is most probable
        loaded.models[0].decoder.output_proj.bias[[0, 1, 3, -1, -2]] = 9.0
    model = Generator(loaded)
    for draw in (
        {"sampling": True, "sampling_topk": 8},
        {"sampling": True, "sampling_topp": 0.9},
        {"beam": 4},
    ):
        for words in words_of(generated(model, min_len=12, max_len_b=12, **draw)):
            assert set(words) <= set(STORY_WORDS)


def test_no_sequence_of_words_is_repeated(model):
    for n in (1, 2, 3):
        for draw in ({"sampling": True, "sampling_topk": 3}, {"beam": 2}):
            options = {"min_len": 14, "max_len_b": 14, "no_repeat_ngram_size": n, **draw}
            for words in words_of(generated(model, **options)):
                windows = list(zip(*(words[i:] for i in range(n))))
                assert len(set(windows)) == len(windows)


@pytest.mark.parametrize("max_len", [6, 40])
def test_the_score_is_the_mean_log_probability_of_the_tokens(files, model, max_len):
    options = {"sampling": True, "sampling_topk": 7, "temperature": 0.7, "min_len": 2}
    (fresh,) = load_models(files["story"], device="cpu").models
    for best in generated(model, max_len_b=max_len, **options):
        with torch.no_grad():
            source, previous = torch.tensor([best.source.tokens]), [2, *best.tokens[:-1]]
            logits, _ = fresh(source, None, torch.tensor([previous]))
        lprobs = (logits[0] / 0.7).log_softmax(dim=1)
        expected = [lprobs[i, token].item() for i, token in enumerate(best.tokens)]
        assert_close(best.positional_scores, expected)
        assert_close(best.score, sum(expected) / len(expected))


def test_greedy_takes_the_most_probable_token_of_an_ensemble(tmp_path, files):
    other = str(save_text_model(tmp_path / "other.pt", seed=2))
    names = [files["story"], other]
    models = load_models(names, device="cpu").models
    ensemble = fairseq_mm.from_pretrained(":".join(names), device="cpu")
    for best in generated(ensemble, 3, beam=1, min_len=9, max_len_b=9):
        tokens = [2]
        for _ in range(9):
            with torch.no_grad():
                source, previous = torch.tensor([best.source.tokens]), torch.tensor([tokens])
                probabilities = sum(
                    model(source, None, previous)[0][0, -1].softmax(0) for model in models
                )
            probabilities[[0, 1, 2, 3]] = 0
            tokens.append(int(probabilities.argmax()))
        assert best.tokens == [*tokens[1:], 2]


def test_fusion_needs_its_checkpoint_alone(tmp_path):
    pretrained = save_text_model(tmp_path / "pretrained.pt", seed=4)
    options = {"pretrained": "True", "pretrained_checkpoint": str(pretrained)}
    fusion = save_text_model(tmp_path / "fusion.pt", **options)
    expected = generated(fairseq_mm.from_pretrained(fusion, device="cpu"), **SHORT)
    pretrained.unlink()
    (tmp_path / "moved").mkdir()
    fusion.rename(tmp_path / "moved" / "checkpoint_last.pt")
    moved = fairseq_mm.from_pretrained(tmp_path / "moved", device="cpu")
    assert moved.models[0].is_fusion
    assert generated(moved, **SHORT) == expected


def test_generated_prompts_are_read_as_if_they_were_given(model):
    def prompts_of(indices):
        return generate_prompts(model.prompt_generator, indices, seed=3, max_words=40)

    prompts = prompts_of(range(5))
    assert len({prompt.text for prompt in prompts}) > 1
    assert all(prompt.tokens[-1] == 2 and prompt.score < 0 for prompt in prompts)
    assert all(set(prompt.words) <= set(SOURCE_WORDS) for prompt in prompts)
    given = model.generate([" ".join(prompt.words) for prompt in prompts], seed=3, **SHORT)
    found = model.generate(n=5, seed=3, **SHORT)
    assert [best.text for best, *_ in found] == [best.text for best, *_ in given]
    (alone,) = prompts_of([2])
    assert alone.tokens == prompts[2].tokens


def test_a_prompt_model_must_fit(files):
    for name, prompts, message in (
        ("story", "story", r"story\.pt: --arch conv_story_tiny reads an input, but a prompt model"),
        ("stories", "prompts", r"`prompt_model` is no option of .*stories\.pt"),
        (
            "story",
            "stories",
            r"stories\.pt: has another vocabulary \(17 words\) than the .*story\.pt \(12 words\)",
        ),
    ):
        with pytest.raises(UserError, match=message):
            fairseq_mm.from_pretrained(files[name], prompt_model=files[prompts], device="cpu")


def test_a_story_reads_as_people_write(model):
    line = "<newline> `` Who ? '' . <newline> <newline> I did n't . <newline>"
    tokens = model.encode(line)
    assert model.decode(tokens.tolist()) == '"Who?".\n\nI didn\'t.'
    assert model.processor.decode(tokens, Example()).line == line


def test_a_diverged_model_is_named(files):
    loaded = load_models(files["story"], device="cpu")
    with torch.no_grad():
        loaded.models[0].decoder.output_proj.bias[5] = math.nan
    with pytest.raises(UserError, match=r"story\.pt: has weights that are not finite: .*diverged"):
        Generator(loaded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_len_b": 41}, r"at most 40, for which .*story\.pt has positions, but is 41\."),
        ({"sampling": True, "sampling_topk": 99}, r"`sampling_topk` must be at most 20, the size"),
        ({"beam": 22}, "`beam` must be at most 20"),
        ({"min_len": 18, "no_repeat_ngram_size": 1}, r"`min_len` must be at most 17, the tokens"),
        ({"preset": "x"}, "`preset` must be one of paper, greedy, beam, sampling, but is 'x'"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_text(model, options, message):
    options = {"max_len_b": 20, **options}
    with pytest.raises(UserError, match=message):
        model.generate(PROMPTS[:1], **options)
