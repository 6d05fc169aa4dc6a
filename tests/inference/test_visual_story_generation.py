"""Stories of image sequences by the engine: extractors, constraints, missing images, batches,
ensembles, refusals."""

import numpy as np
import pytest
from numerics import assert_close
from toy_captioner import save_images
from toy_data import run_fairseq
from toy_visual_stories import (
    STORY_WORDS,
    save_pixel_story_model,
    save_story_model,
    write_story_split,
)

import fairseq_mm
from fairseq_mm.errors import UserError

LENGTHS = {"max_words_per_sentence": 6}


@pytest.fixture(scope="module")
def pixel_model(tmp_path_factory):
    folder = save_pixel_story_model(tmp_path_factory.mktemp("pixels")).parent
    return fairseq_mm.from_pretrained(folder, device="cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [save_story_model(folder / f"{seed}.pt", rows=2, seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def model(checkpoints):
    return fairseq_mm.from_pretrained(checkpoints[0], device="cpu")


def random_sequences(count=5, rows=2, dim=5):
    generator = np.random.default_rng(3)
    return [list(generator.normal(size=(5, rows, dim)).astype(np.float32)) for _ in range(count)]


def generated(model, sequences, **options):
    return [best for best, *_ in model.generate(sequences, **{**LENGTHS, **options})]


def lines_of(found):
    return [best.line for best in found]


def test_images_are_read_by_the_extractor_of_the_training_features(pixel_model, tmp_path):
    images = save_images(tmp_path / "images")
    (story,) = pixel_model.generate(images, **LENGTHS)
    features = pixel_model.processor.reader.extractor.extract(images)
    (expected,) = generated(pixel_model, [[rows.reshape(1, -1) for rows in features]])
    assert story == expected
    assert (story.source, expected.source) == (images, None)
    with_missing = [*images[:2], None, *images[3:]]
    assert pixel_model.generate(with_missing, **LENGTHS)[0].source == with_missing
    assert story._repr_html_().count("<img src=") == 5
    assert story.text == " ".join(story.sentences)
    assert repr(pixel_model).endswith("checkpoint_best.pt': stories by glac_tiny, cpu)")
    contents = [open(path, "rb").read() for path in images]  # noqa: SIM115
    assert pixel_model.generate(contents, **LENGTHS) == [story]
    (backwards,) = pixel_model.generate(images[::-1], **LENGTHS)
    both = generated(pixel_model, [images, images[::-1]])
    for alone, beside in zip((story, backwards), both):
        assert beside.line == alone.line
        assert_close(beside.score, alone.score)


@pytest.mark.parametrize("preset", ["beam", "greedy", "paper", "sampling"])
def test_a_story_has_five_sentences_of_words_that_are_known(model, preset):
    for story in generated(model, random_sequences(), preset=preset, min_words_per_sentence=2):
        sentences = [part.split() for part in story.line.split(" <sent> ")]
        assert len(sentences) == len(story.sentences) == 5
        assert all(2 <= len(words) <= 6 for words in sentences)
        assert {word for words in sentences for word in words} <= set(STORY_WORDS)
        assert story.score < 0


@pytest.mark.parametrize("preset", ["beam", "sampling"])
def test_a_story_does_not_depend_on_the_stories_beside_it(model, preset):
    sequences, options = random_sequences(), {"preset": preset, "seed": 4}
    together = generated(model, sequences, **options)
    for batch_size in (1, 3):
        other = generated(model, sequences, batch_size=batch_size, **options)
        assert lines_of(other) == lines_of(together)
        expected = [best.score for best in together]
        assert_close([best.score for best in other], expected)
    (alone,) = generated(model, sequences[3:4], indices=[3], **options)
    assert alone.line == together[3].line


def test_a_missing_image_is_padding_in_its_place(model):
    (sequence,) = random_sequences(1)
    for place in (0, 2, 4):
        changed = [None if i == place else rows for i, rows in enumerate(sequence)]
        (example,) = model.processor.examples([changed])
        expected = np.concatenate([np.zeros((2, 5)) if rows is None else rows for rows in changed])
        np.testing.assert_array_equal(example.features, expected.astype(np.float32))
        assert example.missing.nonzero()[0].tolist() == [2 * place, 2 * place + 1]
        assert len(generated(model, [changed])[0].sentences) == 5


def test_models_with_few_positions_generate_short_sentences(checkpoints, monkeypatch):
    model = fairseq_mm.from_pretrained(checkpoints[0], device="cpu")
    # 40 tokens and the start: five sentences of 7 words with their ends
    monkeypatch.setattr(model.models[0], "max_decoder_positions", lambda: 41)
    assert generated(model, random_sequences(1), max_words_per_sentence=7)
    with pytest.raises(UserError, match="of up to 8 words have up to 45 tokens, but the"):
        generated(model, random_sequences(1), max_words_per_sentence=8)


def test_fairseqs_own_generation_gives_the_same(checkpoints, tmp_path, monkeypatch, capsys):
    data = write_story_split(tmp_path / "data", missing="p2_1")
    path = save_story_model(tmp_path / "model.pt")
    arguments = (
        f"{data} --task visual_storytelling --path {path} --gen-subset valid --unkpen inf --beam 1 "
        "--max-words-per-sentence 6 --sampling --sampling-topk 5 --seed 3 --cpu --num-workers 0 "
        "--batch-size 3"
    )
    run_fairseq(monkeypatch, "generate", *arguments.split())
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    expected = {int(x[0][2:]): x[2] for x in lines if x[0].startswith("H-")}
    from fairseq_mm.data.feature_store import open_features

    store = open_features([str(data / "features.h5")])
    sequences = [
        [None if key not in store else store.read(key) for key in (f"p{i}_{k}" for k in range(5))]
        for i in range(4)
    ]
    model = fairseq_mm.from_pretrained(path, device="cpu")
    options = {"sampling": True, "sampling_topk": 5, "seed": 3}
    stories = generated(model, sequences, indices=[0, 2, 4, 6], **options)
    assert lines_of(stories) == [expected[line] for line in (0, 2, 4, 6)]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["a.jpg"] * 4, "a story has 5 images, but there are 4"),
        (["a.jpg"] * 6, "a story has 5 images, but there are 6"),
        (["a.jpg"], "a story has 5 images, but there is 1"),
        ([None] * 5, "all 5 images are missing"),
        (["absent.jpg"] * 5, "absent.jpg: cannot be read .No such file"),
        ([b"no image"] * 5, "image sequence 0: image 1: is not an image, or its format"),
    ],
)
def test_what_is_no_image_sequence_is_refused(pixel_model, images, message):
    with pytest.raises(UserError, match=message):
        pixel_model.generate([images])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"preset": "best"},
            "`preset` must be one of beam, greedy, paper, sampling, but is 'best'",
        ),
        (
            {"min_words_per_sentence": 0},
            "`min_words_per_sentence` must be from 1 to 6, but is 0",
        ),
        ({"repetition_penalty": -1.0}, r"`repetition_penalty` must be 0 or more, but is -1\.0"),
        ({"max_len_b": 30}, "`max_len_b`: the length of stories is set sentence by sentence"),
    ],
)
def test_options_that_do_not_fit_are_refused(model, options, message):
    with pytest.raises(UserError, match=message):
        generated(model, random_sequences(1), **options)


def test_features_of_another_shape_are_refused(model):
    (sequence,) = random_sequences(1)
    for rows, message in (
        (
            np.zeros((3, 5)),
            r"image sequence 1: image 4: features must be \[2, 5\], but are \[3, 5\]",
        ),
        (np.zeros((2, 6)), r"but are \[2, 6\]"),
    ):
        with pytest.raises(UserError, match=message):
            generated(model, [sequence, [*sequence[:3], rows, sequence[4]]])
