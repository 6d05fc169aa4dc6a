"""Images -> captions from a checkpoint alone: the right extractor, searches, refusals."""

import copy
import io
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numerics import assert_close
from PIL import Image
from toy_captioner import DIM, change_checkpoint, save_images, train_captioner
from toy_data import WORDS, build_model, toy_task

import fairseq_mm
from fairseq_mm import from_pretrained
from fairseq_mm.errors import UserError
from fairseq_mm.extract.weights import compute_sha256
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.checkpoint_files import checkpoint_file
from fairseq_mm.models._provenance import STATE_KEY, decode_provenance


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with checkpoints, and the extractor's weights beside them."""
    folder = tmp_path_factory.mktemp("trained")
    train_captioner(folder, folder / "data")
    return folder


@pytest.fixture
def images(tmp_path):
    return save_images(tmp_path / "images")


@pytest.fixture
def changed(trained, tmp_path):
    """Saves the checkpoint with other content, see ``change_checkpoint``."""

    def save(name="checkpoint_best.pt", **changes):
        return change_checkpoint(trained / "checkpoint_best.pt", tmp_path / name, **changes)

    return save


@pytest.fixture(scope="module")
def captioner(trained):
    return fairseq_mm.from_pretrained(trained, device="cpu")


def texts_of(model, inputs, **options):
    return [best.text for best, *_ in model.generate(inputs, **options)]


def reader_of(model):
    return model.processor.reader


def test_images_are_captioned_by_the_extractor_of_the_training_features(trained, captioner, images):
    reader = reader_of(captioner)
    assert reader.identity["weights"] == compute_sha256(str(trained / "squeezenet.pth"))
    features = reader.extractor.extract(images)
    expected = texts_of(captioner, features)
    assert texts_of(captioner, images) == expected
    # features have no image to show
    assert [best.source for best, *_ in captioner.generate(features)] == [None] * len(images)
    found = captioner.generate(images, beam=2, nbest=2)
    assert [[text.source for text in texts] for texts in found] == [[path] * 2 for path in images]
    assert captioner.score("a", images[0]).source == images[0]
    assert "<img src=" in found[0][1]._repr_html_()
    assert all(set(text.split()) <= set(WORDS) for text in expected)


def test_an_image_alone_has_the_caption_that_it_has_in_a_batch(captioner, images):
    numbers = list(range(len(images)))
    for options in ({}, {"beam": 1}, {"sampling": True, "seed": 4}):
        together = texts_of(captioner, images, **options)
        alone = [
            texts_of(captioner, [path], indices=[i], **options)[0] for i, path in enumerate(images)
        ]
        assert together == alone
        assert texts_of(captioner, images, batch_size=2, **options) == alone
        reverse = texts_of(captioner, images[::-1], indices=numbers[::-1], **options)
        assert reverse == alone[::-1]


def test_a_single_image_of_any_kind_gives_its_hypotheses(captioner, images):
    ((expected,),) = captioner.generate(images[:1])
    with open(images[0], "rb") as file:
        content = file.read()
    pixels = np.asarray(Image.open(images[0]).convert("RGB"))
    for image in (images[0], Path(images[0]), content, io.BytesIO(content), pixels):
        assert captioner.generate(image)[0].tokens == expected.tokens
    best, second = captioner.generate(images[0], nbest=2)
    assert best.score > second.score
    assert len(best.tokens) == len(best.positional_scores)
    assert_close(best.score, np.mean(best.positional_scores))
    assert captioner.decode(best.tokens) == best.text == best.line


def test_given_texts_are_scored_as_they_are_generated(captioner, images):
    generated = captioner.generate(images, beam=2)
    scored = captioner.score([best.line for best, *_ in generated], images)
    for (best, *_), found in zip(generated, scored):
        assert (found.text, found.tokens) == (best.text, best.tokens)
        assert_close(found.score, best.score)
    (best,) = captioner.generate(images[0], beam=2)
    for inputs in (images[0], images[:1]):
        assert_close(captioner.score(best.line, inputs).score, best.score)
    with pytest.raises(UserError, match="`batch_size` must be 1 or more, but is 0"):
        captioner.score(best.line, images[0], batch_size=0)
    with pytest.raises(ValueError, match="is longer than argument 1"):
        captioner.score(["a dog"], images[:2])


def test_a_prefix_begins_every_caption(captioner, images):
    for options in ({"beam": 4}, {"sampling": True}):
        texts = texts_of(captioner, images, prefix=" the  big cat ", **options)
        assert all(text.startswith("the big cat") for text in texts)


def test_draws_are_repeated_by_the_seed_and_leave_other_random_numbers_alone(captioner, images):
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = texts_of(captioner, images, sampling=True, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert texts_of(captioner, images, sampling=True, seed=1) == first
    assert texts_of(captioner, images, sampling=True, seed=2) != first
    assert texts_of(captioner, images, sampling=True, sampling_topk=1) == texts_of(
        captioner, images, beam=1
    )


def test_models_of_an_ensemble_may_have_features_of_two_versions_of_a_library(trained, changed):
    extractor = Checkpoint.open(str(trained)).extractor
    files = [
        changed(f"{i}.pt", provenance={"extractor": {**extractor, "library": f"timm {i}"}})
        for i in (1, 2)
    ]
    assert len(from_pretrained(files, device="cpu").models) == 2


def test_weights_are_found_beside_the_checkpoint_by_their_content(trained, changed, tmp_path):
    path = changed("model.pt")
    with pytest.raises(UserError, match=r"squeezenet1_1 with weights from a file \(SHA"):
        _ = reader_of(from_pretrained(path)).extractor
    shutil.copy(trained / "squeezenet.pth", tmp_path / "any name.bin")
    assert reader_of(from_pretrained(path)).extractor.dim == DIM


def test_features_without_a_known_extractor_are_captioned_and_images_are_not(changed, images):
    captioner = from_pretrained(changed(provenance={"extractor": {}}))
    with pytest.raises(UserError, match=r"is not recorded.*store import --extractor NAME"):
        texts_of(captioner, images)
    assert len(captioner.generate([np.zeros((2, DIM), np.float16)])) == 1
    reader_of(captioner).check_features({"extractor": "any"}, DIM, "f.h5")


def test_features_of_another_extractor_or_width_are_refused(captioner):
    with pytest.raises(UserError, match=r"trained on were made with dim = 512, but \S*f.h5 with 7"):
        reader_of(captioner).check_features(reader_of(captioner).identity, 7, "f.h5")
    other = {**reader_of(captioner).identity, "layer": "features.3"}
    with pytest.raises(UserError, match=r"another extractor: .* layer = features, but f.h5 with"):
        reader_of(captioner).check_features(other, DIM, "f.h5")
    reader_of(captioner).check_features({}, DIM, "f.h5")
    with pytest.raises(UserError, match=r"image 1: features must be \[rows, 512\], but are \[3"):
        captioner.generate([np.zeros((1, DIM)), np.zeros((3, 4))])
    with pytest.raises(UserError, match=r"image 1: features must be .*, but are \[0, 512\]"):
        captioner.generate([np.zeros((1, DIM)), np.zeros((0, DIM))])


def test_an_unreadable_image_is_named(captioner, images, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken.jpg: is not an image, or its format"):
        texts_of(captioner, [images[0], str(broken), images[1]])
    with pytest.raises(UserError, match=r"absent.jpg: cannot be read .No such file"):
        texts_of(captioner, [tmp_path / "absent.jpg"])
    with pytest.raises(UserError, match=r"image 1: is not an image"):
        texts_of(captioner, [images[0], b"no image either"])
    found = list(
        reader_of(captioner).read_features([images[0], str(broken), images[1]], batch_size=2)
    )
    assert [isinstance(rows, UserError) for rows in found] == [False, True, False]


def test_pipes_and_devices_are_not_read(captioner, images, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", "/dev/zero"):
        with pytest.raises(UserError, match="is a folder, a device or a pipe"):
            captioner.generate([images[0], path])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "`beam` must be 1 or more, but is 0"),
        ({"nbest": 3, "beam": 2}, r"`nbest` must be at most `beam` \(2\), but is 3"),
        ({"sampling_topk": 0, "sampling": True}, "`sampling_topk` must be 1 or more, or -1"),
        ({"sampling_topk": 5}, "`sampling_topk` must be left out in a search, but is 5"),
        ({"sampling_topk": 21, "sampling": True}, "`sampling_topk` must be at most 19, .* is 21"),
        ({"sampling_topp": 1.5, "sampling": True}, "`sampling_topp` must be above 0 and at most 1"),
        ({"typical_p": 1.5, "sampling": True}, "`typical_p` must be above 0 and at most 1"),
        ({"typical_p": 0.5}, "`typical_p` must be left out in a search, but is 0.5"),
        ({"temperature": 0.0}, "`temperature` must be 0.001 or more, but is 0.0"),
        ({"lenpen": 400}, "`lenpen` must be from 0 to 10, but is 400"),
        ({"lenpen": 10**30}, "`lenpen` must be from 0 to 10, but is 1000"),
        ({"lenpen": np.inf}, "`lenpen` must be from 0 to 10, but is inf"),
        (
            {"indices": [10**30, 3, 4, 5, 6]},
            r"`indices` must be integers from 0 to 2\*\*63 - 1",
        ),
        (
            {"weights_dtype": "int4"},
            "`weights_dtype` must be one of float32, bfloat16, int8, but is",
        ),
        ({"weights_dtype": 8}, "`weights_dtype` must be a string, but is 8"),
        ({"seed": 2**64}, "`seed` must be an integer of 64 bits, but is 18446744073709551616"),
        ({"max_len_b": 0}, "`max_len_b` must be 1 or more"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` must be 0 or more"),
        ({"prefix": "a zebra"}, "the word 'zebra' is not in the dictionary of"),
        (
            {"prefix": "a <unk>"},
            "'a <unk>': must have fewer tokens .* and no control symbols",
        ),
        (
            {"prefix": "a dog", "max_len_b": 2},
            "must have fewer tokens than a text, .* at most 2",
        ),
        ({"beem": 2}, "`beem` is no option of generation by .*; did you mean `beam`?"),
        ({"num_beams": 2}, "`num_beams` is no option of generation by .*; did you mean `beam`?"),
        ({"repetition_penalty": 2.0}, "`repetition_penalty` is no option of generation"),
        ({"preset": "paper"}, "`preset` must be left out, but is 'paper'"),
    ],
)
def test_options_that_cannot_be_are_refused(captioner, images, options, message):
    with pytest.raises(UserError, match=message):
        texts_of(captioner, images, **options)


WRONG_TYPES = [
    *(("beam", value) for value in (2.5, True, "3", None)),
    *(("sampling_topk", True), ("typical_p", "0.5"), ("temperature", np.nan), ("lenpen", "1")),
    *(("allow_unk", 1), ("prefix", ["a"]), ("batch_size", 1.0), ("n", "1"), ("preset", ["paper"])),
    ("indices", ["0"]),
]


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES, ids=str)
def test_values_of_a_wrong_type_are_refused(captioner, images, name, value):
    inputs = None if name == "n" else images[:1]
    with pytest.raises(UserError, match=r"^`\w+` must (be|have) ") as refused:
        captioner.generate(inputs, **{"sampling": name.startswith("sampling"), name: value})
    assert len(str(refused.value)) < 200


def test_numbers_of_numpy_are_numbers(captioner, images):
    options = {"beam": 3, "nbest": 2, "max_len_b": 7, "lenpen": 0.5, "seed": 2}
    expected = captioner.generate(images[0], **options)
    of_numpy = {name: np.array(value)[()] for name, value in options.items()}
    assert captioner.generate(images[0], batch_size=np.int32(2), **of_numpy) == expected
    assert captioner.config(allow_unk=np.True_).allow_unk is True


def test_inputs_may_be_any_iterable(captioner, images):
    expected = captioner.generate(images)
    for inputs in (tuple(images), iter(images), (Path(path) for path in images)):
        assert captioner.generate(inputs) == expected
    texts = [best.line for best, *_ in expected]
    assert captioner.score(iter(texts), iter(images)) == captioner.score(texts, images)
    options = {"sampling": True}
    drawn = captioner.generate(images[:2], indices=[4, 1], **options)
    for indices in (np.array([4, 1]), torch.tensor([4, 1]), iter([4, 1])):
        assert captioner.generate(images[:2], indices=indices, **options) == drawn
    with pytest.raises(UserError, match="generates captions from images: give some"):
        captioner.generate(None)


def test_a_generator_can_be_copied_and_pickled(trained, images, tmp_path, started_python):
    model = from_pretrained(trained, device="cpu")
    expected = model.generate(images, nbest=2)
    unused = from_pretrained(trained, device="cpu")
    for original in (model, unused):
        for copied in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            assert copied.generate(images, nbest=2) == expected
            with pytest.raises(RuntimeError, match="cannot train"):
                copied.models[0].train()
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    program = (
        "import pickle; model = pickle.load(open('model.pickle', 'rb')); import sys;"
        "print(*(best.text for best, *_ in model.generate(sys.argv[1:])), sep=chr(10))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(fairseq_mm.__file__).parents[1])}
    done = subprocess.run(
        [started_python, "-c", program, *images],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.stdout.splitlines() == [best.text for best, *_ in expected], done.stderr


def test_the_last_checkpoint_stands_in_for_the_best(tmp_path):
    with pytest.raises(UserError, match=r"has neither checkpoint_best.pt nor checkpoint_last.pt"):
        checkpoint_file(str(tmp_path))
    with pytest.raises(UserError, match="absent: no such checkpoint or folder"):
        checkpoint_file(str(tmp_path / "absent"))
    (tmp_path / "checkpoint_last.pt").touch()
    assert checkpoint_file(str(tmp_path)) == str(tmp_path / "checkpoint_last.pt")
    (tmp_path / "checkpoint_best.pt").touch()
    assert checkpoint_file(str(tmp_path)) == str(tmp_path / "checkpoint_best.pt")


def test_the_dictionary_is_rebuilt_with_the_same_numbers():
    from fairseq_mm.models._provenance import list_words
    from fairseq_mm.tasks.multimodal_captioning import MultimodalCaptioningTask

    words = ["dog", "<unk>", "a"]  # a dictionary may have the text <unk> as a word
    task = MultimodalCaptioningTask.from_provenance(words, {"extractor": "drawn"}, 5)
    assert list_words(task.target_dictionary) == words
    assert [task.target_dictionary[i] for i in (4, 6)] == ["dog", "a"]
    model = build_model("m_rnn_tiny", task)
    assert decode_provenance(model.state_dict()[STATE_KEY])["extractor"] == {"extractor": "drawn"}
    assert toy_task().feature_dim == task.feature_dim == 5
