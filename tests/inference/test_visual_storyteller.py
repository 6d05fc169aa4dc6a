"""Five images -> a story of five sentences from a checkpoint alone: order, rules, missing
images, batches, ensembles, refusals."""

import numpy as np
import pytest
import torch
from toy_album_teller import STORY_WORDS, save_pixel_teller, save_teller, write_told_split
from toy_captioner import save_images
from toy_data import run_fairseq
from toy_text_models import save_text_model

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference import captioner, visual_storyteller
from fairseq_mm.inference.visual_storyteller import image_telling

LENGTHS = {"max_words": 6}


@pytest.fixture(scope="module")
def pixel_teller(tmp_path_factory):
    folder = save_pixel_teller(tmp_path_factory.mktemp("pixels")).parent
    return fairseq_mm.from_pretrained(folder, device="cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tellers")
    return [save_teller(folder / f"{seed}.pt", rows=2, seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def teller(checkpoints):
    return fairseq_mm.from_pretrained(checkpoints[0], device="cpu")


def random_albums(count=5, rows=2, dim=5):
    generator = np.random.default_rng(3)
    return [list(generator.normal(size=(5, rows, dim)).astype(np.float32)) for _ in range(count)]


def told(teller, albums, items=None, batch_size=None, **options):
    telling = image_telling(**{**LENGTHS, **options})
    items = range(len(albums)) if items is None else items
    return list(teller.stories(items, albums, telling, batch_size=batch_size))


def test_images_are_told_of_by_the_extractor_of_the_training_features(pixel_teller, tmp_path):
    images = save_images(tmp_path / "images")
    story = pixel_teller.tell(images, **LENGTHS)
    features = pixel_teller.extractor.extract(images)
    (expected,) = told(pixel_teller, [[rows.reshape(1, -1) for rows in features]])
    assert story == expected
    assert story.text.count("\n") == 4
    assert repr(pixel_teller).endswith("checkpoint_best.pt': squeezenet1_1, cpu)")
    contents = [open(path, "rb").read() for path in images]  # noqa: SIM115
    assert pixel_teller.tell(contents, **LENGTHS) == story
    backwards = pixel_teller.tell(images[::-1], **LENGTHS)
    both = pixel_teller.tell_albums([images, images[::-1]], **LENGTHS)
    for told_alone, told_beside in zip((story, backwards), both):
        assert told_beside.words == told_alone.words
        assert told_beside.score == pytest.approx(told_alone.score, abs=1e-5)


@pytest.mark.parametrize("arch", ["transtory_decoder_tiny", "transtory_full_tiny"])
def test_a_checkpoint_from_before_an_option_writes_the_same_story(arch, tmp_path):
    path = save_teller(tmp_path / "new.pt", arch)
    state = torch.load(path)
    del state["cfg"]["model"]["attention_dropout"]
    torch.save(state, tmp_path / "old.pt")
    new, old = (
        fairseq_mm.from_pretrained(tmp_path / name, device="cpu") for name in ("new.pt", "old.pt")
    )
    albums = random_albums(rows=1)
    assert told(old, albums) == told(new, albums)


@pytest.mark.parametrize("preset", ["beam", "greedy", "paper", "sampling"])
def test_a_story_has_five_sentences_of_words_that_are_known(teller, preset):
    for story in told(teller, random_albums(), preset=preset, min_words=2):
        assert len(story.sentences) == len(story.words) == 5
        assert all(2 <= len(words) <= 6 for words in story.words)
        assert {word for words in story.words for word in words} <= set(STORY_WORDS)
        assert story.score < 0
        assert story.line.split(" <sent> ") == [" ".join(words) for words in story.words]


@pytest.mark.parametrize("preset", ["beam", "sampling"])
def test_a_story_does_not_depend_on_the_stories_beside_it(teller, preset):
    albums = random_albums()
    together = told(teller, albums, preset=preset, seed=4)
    for batch_size in (1, 3):
        for story, other in zip(told(teller, albums, batch_size=batch_size, preset=preset, seed=4),
                                together):  # fmt: skip
            assert story.words == other.words
            assert story.score == pytest.approx(other.score, abs=1e-5)
    alone = told(teller, albums[3:4], items=[3], preset=preset, seed=4)
    assert alone[0].words == together[3].words


def test_draws_depend_on_the_seed_and_the_number_of_the_story(teller):
    albums = random_albums(1) * 2
    first, second = told(teller, albums, topk=9)
    assert first.words != second.words
    assert told(teller, albums[:1], topk=9, seed=2)[0].words != first.words
    assert told(teller, albums[:1], items=[1], topk=9)[0].words == second.words
    assert told(teller, albums[:1], topk=1)[0].words == told(teller, albums, beam=1)[0].words


def test_a_missing_image_is_padding_in_its_place(teller):
    (album,) = random_albums(1)
    for place in (0, 2, 4):
        changed = [None if i == place else rows for i, rows in enumerate(album)]
        x, padding_mask = teller.collated(0, changed)
        expected = np.concatenate([np.zeros((2, 5)) if rows is None else rows for rows in changed])
        np.testing.assert_array_equal(x.numpy(), expected.astype(np.float32))
        assert padding_mask.nonzero().flatten().tolist() == [2 * place, 2 * place + 1]
        assert len(told(teller, [changed])[0].sentences) == 5


def test_sentences_are_joined_as_people_read_them(teller):
    for story in told(teller, random_albums(3), preset="sampling"):
        for words, sentence in zip(story.words, story.sentences):
            # nothing but white space goes
            assert sentence.replace(" ", "") == "".join(words)
            assert " ." not in sentence
            assert " n't" not in sentence


def test_models_with_few_positions_tell_short_sentences(checkpoints, monkeypatch):
    teller = fairseq_mm.from_pretrained(checkpoints[0], device="cpu")
    # 40 tokens and the start: five sentences of 7 words with their ends
    monkeypatch.setattr(teller.models[0], "max_decoder_positions", lambda: 41)
    assert told(teller, random_albums(1), max_words=7)
    with pytest.raises(UserError, match=r"`max_words` must be at most 7 a sentence, for which"):
        told(teller, random_albums(1), max_words=8)


def test_presets_have_defaults():
    telling = image_telling("paper", repetition_penalty=2)
    assert (telling.beam, telling.repetition_penalty, telling.end_after_punctuation) == (1, 2, True)
    assert image_telling().beam == 5
    assert image_telling(topk=3).draws
    assert image_telling(topp=0.5).topp == 0.5
    assert image_telling(temperature=0.5).beam == 5
    assert image_telling(min_words=60).max_words == 60


def test_an_ensemble_averages_probabilities(checkpoints, teller):
    albums = random_albums(2)
    both = fairseq_mm.from_pretrained(checkpoints, device="cpu")
    assert both.files == [str(path) for path in checkpoints]
    other = fairseq_mm.from_pretrained(checkpoints[1], device="cpu")
    stories = [told(x, albums, beam=1)[0].words for x in (teller, other, both)]
    assert len({str(words) for words in stories}) > 1
    joined = fairseq_mm.from_pretrained(f"{checkpoints[0]}:{checkpoints[1]}", device="cpu")
    assert told(joined, albums, beam=1)[0].words == stories[2]


def test_fairseqs_own_generation_tells_the_same(checkpoints, tmp_path, monkeypatch, capsys):
    data = write_told_split(tmp_path / "data", missing="p2_1")
    path = save_teller(tmp_path / "model.pt")
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
    albums = [
        [None if key not in store else store.read(key) for key in (f"p{i}_{k}" for k in range(5))]
        for i in range(4)
    ]
    teller = fairseq_mm.from_pretrained(path, device="cpu")
    stories = told(teller, albums, items=[0, 2, 4, 6], topk=5, seed=3)
    assert [story.line for story in stories] == [expected[line] for line in (0, 2, 4, 6)]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (["a.jpg"] * 4, "a story is told of 5 images, but there are 4"),
        (["a.jpg"] * 6, "a story is told of 5 images, but there are 6"),
        (["a.jpg"], "a story is told of 5 images, but there is 1"),
        ("a.jpg", "`images` must be a list, but is a str"),
        ([None] * 5, "all 5 images are missing: there is nothing to tell of"),
        (["absent.jpg"] * 5, "absent.jpg: No such file or directory"),
        ([b"no image"] * 5, "image 0: is no image, or of a format that Pillow cannot read"),
    ],
)
def test_what_is_no_album_is_refused(pixel_teller, images, message):
    with pytest.raises(UserError, match=message):
        pixel_teller.tell(images)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"preset": "best"},
            "`preset` must be one of beam, greedy, paper, sampling, but is 'best'",
        ),
        ({"words": 9}, "`words` is no option of telling; they are beam, topk, topp, temperature"),
        ({"min_words": 0}, r"`min_words` must be from 1 to `max_words` \(6\), but is 0 instead"),
        ({"repetition_penalty": -1.0}, r"`repetition_penalty` must be 0 or more, but is -1\.0"),
        ({"topk": 18}, "`topk` must be at most 17, so many words are in the dictionary, but is 18"),
        ({"beam": 18}, "`beam` must be at most 17, so many words are in the dictionary, but is 18"),
        ({"preset": "beam", "topk": 3}, r"`topk` is 3, but a beam \(5\) draws no words"),
        ({"batch_size": 0}, "`batch_size` must be 1 or more, but is 0 instead"),
    ],
)
def test_telling_that_cannot_be_is_refused(teller, options, message):
    with pytest.raises(UserError, match=message):
        told(teller, random_albums(1), **options)


def test_features_of_another_shape_are_refused(teller):
    (album,) = random_albums(1)
    for rows, message in (
        (np.zeros((3, 5)), r"image 4 of story 8 must be \[2, 5\], as .*1.pt was trained on, but"),
        (np.zeros((2, 6)), r"but are \[2, 6\]"),
    ):
        with pytest.raises(UserError, match=message):
            told(teller, [[*album[:3], rows, album[4]]], items=[8])


def test_a_checkpoint_that_has_diverged_is_refused(checkpoints, tmp_path):
    state = torch.load(checkpoints[0])
    state["model"]["decoder.embedding.weight"][0, 0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(UserError, match=r"nan.pt: has weights that are no numbers"):
        fairseq_mm.from_pretrained(tmp_path / "nan.pt", device="cpu")


def test_models_that_tell_no_stories_of_images_are_refused(checkpoints, tmp_path):
    text = save_text_model(tmp_path / "text.pt")
    with pytest.raises(UserError, match=r"text.pt: was trained with --task translation, and tells"):
        visual_storyteller.from_pretrained(text)
    state = torch.load(text)
    state["cfg"]["task"]["_name"] = "multimodal_captioning"
    torch.save(state, tmp_path / "captioner.pt")
    with pytest.raises(UserError, match=r"and tells no visual stories: fairseq-mm caption"):
        visual_storyteller.from_pretrained(tmp_path / "captioner.pt")
    with pytest.raises(UserError, match=r"1.pt: tells stories of five images: fairseq-mm tell"):
        captioner.from_pretrained(checkpoints[0])
    with pytest.raises(UserError, match=r"for models that tell .* but `path` tells them of im"):
        fairseq_mm.from_pretrained(checkpoints[0], prompt_model=text)
    with pytest.raises(UserError, match=r"text.pt: was trained with --task translation, and tells"):
        fairseq_mm.from_pretrained([checkpoints[0], text])
