"""What is written: lengths, forbidden words, scores, equality of batches."""

import math

import pytest
import torch
from fairseq_mm.inference.text_models import load_text_models
from fairseq_mm.inference.text_writer import PRESETS, Telling, TextWriter, preset_with
from toy_text_models import NUM_POSITIONS, SOURCE_WORDS, STORY_WORDS, save_text_model

from fairseq_mm.errors import UserError

MODELS = {
    "story": ("conv_story_tiny", {}),
    "released": ("conv_story_tiny", {"compat": "released"}),
    "language model": ("gcnn_lm_tiny", {}),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: str(save_text_model(folder / f"{name}.pt", arch, **options))
        for name, (arch, options) in MODELS.items()
    }


@pytest.fixture
def writer(files):
    return TextWriter(load_text_models(files["story"], device="cpu"))


def sources_of(writer, count):
    """Prompts of 2 to 8 words, all different."""
    if writer.models.are_language_models:
        return None
    size = len(SOURCE_WORDS)
    return [[4 + (3 * i + j) % size for j in range(2 + i % 7)] + [2] for i in range(count)]


def write(writer, telling, count=7, **options):
    items = range(10, 10 + count)
    return list(writer.write(items, telling, sources=sources_of(writer, count), **options))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "telling",
    [
        Telling(topk=5, temperature=0.8, min_words=2, max_words=23, seed=3),
        Telling(topp=0.8, min_words=1, max_words=9, no_repeat_ngram=2),
        Telling(beam=3, min_words=2, max_words=12),
        Telling(beam=1, min_words=11, max_words=11),
    ],
)
def test_texts_do_not_depend_on_their_batch(files, name, telling):
    writer = TextWriter(load_text_models(files[name], device="cpu"))
    together = write(writer, telling)
    assert len({tuple(text.tokens) for text in together}) > 1 or not (
        telling.draws or name != "language model"
    )
    for size in (1, 3):
        other = write(writer, telling, batch_size=size)
        assert [text.tokens for text in other] == [text.tokens for text in together]
        assert [x.score for x in other] == pytest.approx([x.score for x in together], abs=1e-5)


def test_a_text_does_not_depend_on_what_is_told_beside_it(writer):
    telling = Telling(topk=6, min_words=20, max_words=20, seed=9)
    together = write(writer, telling)
    source = sources_of(writer, 7)[4]
    assert list(writer.write([14], telling, sources=[source])) == [
        (together[4].tokens, pytest.approx(together[4].score, abs=1e-5))
    ]
    (other,) = writer.write([15], telling, sources=[source])
    (seeded,) = writer.write(
        [14], Telling(topk=6, min_words=20, max_words=20, seed=8), sources=[source]
    )
    (prompt,) = writer.write([14], telling, sources=[source], stream="prompt")
    assert len({tuple(x.tokens) for x in (together[4], other, seeded, prompt)}) == 4


def test_lengths_are_kept(writer):
    for draw in ({"topk": 4}, {"beam": 1}, {"beam": 3}):
        exact = write(writer, Telling(min_words=17, max_words=17, **draw))
        assert {len(text.tokens) for text in exact} == {17}
    open_ended = write(writer, Telling(min_words=3, max_words=40, temperature=3.0), count=30)
    lengths = {len(text.tokens) for text in open_ended}
    assert min(lengths) >= 3
    assert len(lengths) > 5
    assert all(2 not in text.tokens for text in open_ended)
    longest = NUM_POSITIONS - 3  # two rows of the table are no positions, one is the start sign's
    (text,) = write(writer, Telling(topk=4, min_words=longest, max_words=longest), count=1)
    assert len(text.tokens) == longest


def test_special_symbols_are_never_written(tmp_path):
    words = [*STORY_WORDS, "madeupword0000", "madeupword0001"]
    file = save_text_model(tmp_path / "padded.pt", words=words)
    models = load_text_models(file, device="cpu")
    with torch.no_grad():  # all that must not be written is most probable
        models.models[0].decoder.output_proj.bias[[0, 1, 3, -1, -2]] = 9.0
    writer = TextWriter(models)
    for draw in ({"topk": 8}, {"topp": 0.9}, {}, {"beam": 1}, {"beam": 4}):
        for text in write(writer, Telling(min_words=12, max_words=12, **draw)):
            assert all(4 <= token < 4 + len(STORY_WORDS) for token in text.tokens)


def test_no_sequence_of_words_is_repeated(writer):
    for n in (1, 2, 3):
        for draw in ({"topk": 3}, {"beam": 2}):
            telling = Telling(min_words=14, max_words=14, no_repeat_ngram=n, **draw)
            for text in write(writer, telling):
                windows = list(zip(*(text.tokens[i:] for i in range(n))))
                assert len(set(windows)) == len(windows)


@pytest.mark.parametrize("max_words", [6, 40])
def test_the_score_is_the_mean_log_probability_of_the_tokens(files, writer, max_words):
    telling = Telling(topk=7, temperature=0.7, min_words=2, max_words=max_words)
    fresh = load_text_models(files["story"], device="cpu").models[0]
    for source, text in zip(sources_of(writer, 7), write(writer, telling)):
        previous = torch.tensor([[2, *text.tokens]])
        with torch.no_grad():
            logits, _ = fresh(torch.tensor([source]), None, previous)
        lprobs = (logits[0] / 0.7).log_softmax(dim=1)
        expected = [lprobs[i, token].item() for i, token in enumerate([*text.tokens, 2])]
        assert text.score == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_greedy_takes_the_most_probable_word_of_an_ensemble(tmp_path, files):
    other = str(save_text_model(tmp_path / "other.pt", seed=2))
    names = [files["story"], other]
    models = load_text_models(names, device="cpu").models
    writer = TextWriter(load_text_models(":".join(names), device="cpu"))
    telling = Telling(beam=1, min_words=9, max_words=9)
    for source, text in zip(sources_of(writer, 3), write(writer, telling, count=3)):
        tokens = [2]
        for _ in range(9):
            with torch.no_grad():
                probabilities = sum(
                    model(torch.tensor([source]), None, torch.tensor([tokens]))[0][0, -1].softmax(0)
                    for model in models
                )
            probabilities[[0, 1, 2, 3]] = 0
            tokens.append(int(probabilities.argmax()))
        assert text.tokens == tokens[1:]


def test_fusion_is_told_from_its_checkpoint_alone(tmp_path):
    pretrained = save_text_model(tmp_path / "pretrained.pt", seed=4)
    fusion = save_text_model(
        tmp_path / "fusion.pt",
        pretrained="True",
        pretrained_checkpoint=str(pretrained),
    )
    telling = Telling(topk=5, min_words=12, max_words=12)
    expected = write(TextWriter(load_text_models(fusion, device="cpu")), telling)
    pretrained.unlink()
    (tmp_path / "moved").mkdir()
    fusion.rename(tmp_path / "moved" / "checkpoint_last.pt")
    models = load_text_models(tmp_path / "moved", device="cpu")
    assert models.models[0].is_fusion
    writer = TextWriter(models)
    assert write(writer, telling) == expected
    assert [x.tokens for x in write(writer, telling, batch_size=1)] == [x.tokens for x in expected]


def test_a_diverged_model_is_named(files):
    models = load_text_models(files["story"], device="cpu")
    with torch.no_grad():
        models.models[0].decoder.output_proj.bias[5] = math.nan
    with pytest.raises(UserError, match=r"story\.pt: has weights that are no numbers: .*diverged"):
        TextWriter(models)


def test_texts_that_cannot_be_written_are_refused_before_any_is(writer):
    for options, message in (
        ({"max_words": 41}, r"at most 40, for which .*story\.pt has positions, but is 41 instead"),
        ({"topk": 99}, "`topk` must be below 21, the size of the dictionary, but is 99 instead"),
        ({"beam": 22}, "`beam` must be below 21"),
        (
            {"min_words": 18, "max_words": 18, "no_repeat_ngram": 1},
            "`min_words` must be at most 17, the words of the dictionary, where `no_repeat_ngram`",
        ),
    ):
        telling = Telling(**{"min_words": 1, "max_words": 9, **options})
        with pytest.raises(UserError, match=message):
            write(writer, telling)
    with pytest.raises(UserError, match=r"`batch_size` must be 1 or more, but is 0 instead\."):
        write(writer, Telling(min_words=1, max_words=9), batch_size=0)
    (text,) = write(writer, Telling(min_words=17, max_words=40, no_repeat_ngram=1), count=1)
    assert len(set(text.tokens)) == len(text.tokens) == 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topk": -1}, r"`topk` must be 0 or more, but is -1 instead\."),
        ({"seed": -4}, r"`seed` must be 0 or more, but is -4 instead\."),
        ({"topp": 0.0}, r"`topp` must be above 0 and at most 1, but is 0\.0 instead\."),
        ({"topp": math.nan}, r"`topp` must be above 0 and at most 1, but is nan instead\."),
        (
            {"temperature": 0},
            r"`temperature` must be 0\.001 or more, but is 0 instead; the preset",
        ),
        ({"min_words": 0}, r"`min_words` must be from 1 to `max_words` \(150\), but is 0"),
        ({"min_words": 9, "max_words": 8}, r"from 1 to `max_words` \(8\), but is 9 instead\."),
        ({"beam": 3}, r"`topk` is 10, but a beam \(3\) draws no words\."),
        ({"beam": 3, "topk": 0, "topp": 0.5}, r"`topp` is 0\.5, but a beam \(3\) draws no words\."),
        ({"words": 4}, r"`words` is no option of telling; they are beam, topk, topp, "),
    ],
)
def test_options_out_of_their_range_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        preset_with("paper", **options)


def test_presets_can_be_changed():
    assert PRESETS["paper"] == Telling(topk=10, temperature=0.8, min_words=150, max_words=150)
    assert preset_with("paper", min_words=1) == Telling(topk=10, temperature=0.8, min_words=1)
    longer = preset_with("beam", min_words=200)
    assert (longer.beam, longer.min_words, longer.max_words) == (5, 200, 200)
    shorter = preset_with("greedy", max_words=20)
    assert (shorter.beam, shorter.min_words, shorter.max_words) == (1, 20, 20)
    with pytest.raises(UserError, match="`preset` must be one of paper, greedy, beam, but is 'x'"):
        preset_with("x")
