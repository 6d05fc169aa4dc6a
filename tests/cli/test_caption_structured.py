"""``fairseq-mm caption`` by models of structures and of an embedding's vectors: files, refusals."""

import json
import shutil

import pytest
from toy_captioner import save_images
from toy_data import write_store
from toy_pos_sequences import make_trained, train

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import EXTRACTOR_ATTRIBUTES, FeatureStore
from fairseq_mm.extract.weights import compute_sha256
from fairseq_mm.inference.candidates import StructuredSearch
from fairseq_mm.inference.checkpoint import Checkpoint
from fairseq_mm.inference.structured_captioner import load_structured_captioner
from fairseq_mm.ngrams.arpa import write_arpa
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney

FEW = ("--candidates", 40, "--shortest", 2, "--longest", 5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return make_trained(tmp_path_factory.mktemp("structures"))


@pytest.fixture
def run(capsys):
    """Runs the command: exit status, lines of stdout, stderr."""

    def run_command(*arguments):
        capsys.readouterr()
        status = main([*map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return run_command


@pytest.fixture
def caption(run, trained):
    """The same of ``caption`` with all that it needs."""

    def run_caption(*arguments, **files):
        given = {
            "checkpoint": trained.decoder,
            "embedding": trained.embedding,
            "data": trained.data,
            "vectors": trained.vectors,
            **files,
        }
        options = [x for k, v in given.items() if v is not None for x in (f"--{k}", v)]
        return run("caption", *arguments, *options, "--device", "cpu")

    return run_caption


def made_by(store):
    """Attributes that say how the features were made."""
    return {key: store.attributes[key] for key in EXTRACTOR_ATTRIBUTES if key in store.attributes}


@pytest.fixture
def valid(trained, tmp_path):
    """A feature store of the validation images alone."""
    store = FeatureStore(trained.data / "features.h5")
    keys = [key for key in store.ids if key.startswith("valid")]
    write_store(tmp_path / "valid.h5", keys, dim=store.dim, attributes=made_by(store))
    return tmp_path / "valid.h5"


def test_a_line_an_image_and_an_object_with_all_parts(caption, trained, valid):
    captioner = load_structured_captioner(
        Checkpoint.open_all(trained.decoder),
        embedding=trained.embedding,
        data=trained.data,
        device="cpu",
    )
    store = FeatureStore(valid)
    search = StructuredSearch(candidates=40, shortest=2, longest=5, top=3)
    expected = list(captioner.caption_features([store.read(key) for key in store.ids], search))
    status, lines, errors = caption("--features", valid, *FEW)
    assert (status, errors) == (0, "")
    assert lines == [f"{key}\t{found.captions[0].text}" for key, found in zip(store.ids, expected)]
    status, lines, _ = caption("--features", valid, *FEW, "--jsonl", "--top", 3)
    assert status == 0
    for key, line, found in zip(store.ids, lines, expected):
        entry = json.loads(line)
        assert (entry["id"], entry["hypothesis"]) == (key, found.captions[0].text)
        assert entry["score"] == entry["hypotheses"][0]["score"]
        assert [given["hypothesis"] for given in entry["hypotheses"]] == [
            caption.text for caption in found.captions
        ]
        for given, caption_found in zip(entry["hypotheses"], found.captions):
            assert given.pop("hypothesis")
            for part, value in given.items():
                wanted = getattr(caption_found, part)
                same = wanted if isinstance(wanted, str) else pytest.approx(wanted, abs=1e-4)
                assert value == same
        assert list(entry["nearest"]) == ["caption", "id", "line", "cosine"]
        assert entry["nearest"]["caption"] == found.nearest.caption
    assert entry["checkpoint"] == compute_sha256(str(trained.decoder / "checkpoint_last.pt"))
    assert entry["embedding"] == compute_sha256(str(trained.embedding / "checkpoint_last.pt"))
    assert entry["extractor"]["extractor"] == "squeezenet1_1"
    assert entry["options"] == {
        "candidates": 40, "conditions": ["image", "words", "sentences"], "num_nearest": 5,
        "pos_sampling": "frequency", "shortest": 2, "longest": 5, "seed": 0, "beam": 1,
        "max_len_b": 30, "top": 3, "batch_size": 1000,
        "translation_weight": 1.0, "language_weight": 0.2,
        "language_score": "word", "repeat_penalty": 0.7,
    }  # fmt: skip


def test_nothing_but_the_training_captions_is_read(caption, trained, valid, tmp_path):
    """A split's own tags would tell what its references are like."""
    expected = caption("--features", valid, *FEW)[1]
    alone = tmp_path / "alone"
    (alone / "text").mkdir(parents=True)
    for name in ("text/train.txt", "train.visual_ids", "train.tags"):
        shutil.copy(trained.data / name, alone / name)
    assert caption("--features", valid, *FEW, data=alone)[1] == expected
    (alone / "valid.tags").write_text("unheard-of\n")
    assert caption("--features", valid, *FEW, data=alone)[1] == expected


def test_vectors_of_a_store_are_those_that_are_made_without(caption, trained, valid):
    expected = caption("--features", valid, *FEW)[1]
    status, lines, errors = caption("--features", valid, *FEW, vectors=None)
    assert (status, lines, errors) == (0, expected, "")


def test_the_language_model_of_a_file_takes_the_place_of_the_estimated(
    caption, trained, valid, tmp_path
):
    options = ("--features", valid, *FEW, "--language-weight", 5)
    expected = caption(*options)[1]
    lines = (trained.data / "text" / "train.txt").read_text().splitlines()
    path = tmp_path / "train.arpa"
    write_arpa(estimate_kneser_ney([line.split() for line in lines]), str(path))
    assert caption(*options, "--language-model", path)[1] == expected
    write_arpa(estimate_kneser_ney([["snow", "red"]] * 20, order=1), str(path))
    assert caption(*options, "--language-model", path)[1] != expected


@pytest.mark.parametrize(
    ("arguments", "files", "message"),
    [
        ([], {"embedding": None}, "fairseq-mm caption --embedding PATH --data DATA"),
        (["--sampling"], {}, "`sampling` is no option of captions by structure"),
        (["--candidates", 0], {}, "`candidates` must be 1 or more, but is 0"),
        (["--shortest", 9, "--longest", 12], {}, "no structures of 9 to 12 tags to draw from"),
        (["--language-model", "absent.arpa"], {}, "absent.arpa: "),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(caption, valid, arguments, files, message):
    status, lines, errors = caption("--features", valid, *arguments, **files)
    assert (status, lines) == (2, [])
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_vectors_of_other_models_or_lines_are_refused(caption, trained, valid, tmp_path):
    status, _, errors = caption("--features", valid, *FEW, vectors=valid)
    assert status == 2
    assert "valid.h5: must have vectors that fairseq-mm embed made with" in errors
    attributes = made_by(FeatureStore(trained.vectors))
    write_store(tmp_path / "few.h5", ["train:0", "train:1"], dim=8, attributes=attributes)
    status, _, errors = caption("--features", valid, *FEW, vectors=tmp_path / "few.h5")
    assert status == 2
    assert "few.h5: must have one row for each of 36 training captions, but has 2 of 2" in errors
    other = {**attributes, "weights": "0123456789ab"}
    write_store(tmp_path / "other.h5", ["train:0"], dim=8, attributes=other)
    status, _, errors = caption("--features", valid, *FEW, vectors=tmp_path / "other.h5")
    assert status == 2
    assert "other.h5: must have vectors that fairseq-mm embed made with" in errors


def test_a_log_bilinear_model_of_vectors_needs_the_embedding(run, trained, valid, tmp_path):
    model = train(trained.vector_data, tmp_path / "vectors", "--arch", "mlbl_b_tiny")
    command = ("caption", "--checkpoint", model, "--device", "cpu")
    images = save_images(tmp_path / "photos", count=2)
    status, lines, errors = run(*command, *images)
    assert (status, lines) == (2, [])
    assert "was trained on vectors of an embedding model (checkpoint" in errors
    assert "(--embedding PATH" in errors
    assert len(errors.splitlines()) == 1
    status, lines, errors = run(*command, *images, "--embedding", trained.embedding, "--jsonl")
    assert (status, errors) == (0, "")
    assert json.loads(lines[0])["extractor"]["extractor"] == "squeezenet1_1"
    # the same by way of a store of their vectors
    embedded = tmp_path / "embedded.h5"
    arguments = [trained.data, "--checkpoint", trained.embedding, "--of", "images"]
    assert main(["embed", *map(str, arguments), "--output", str(embedded)]) in (0, None)
    keys = [f"valid{i}.jpg" for i in range(7)]
    by_vectors = run(*command, "--features", embedded)
    by_features = run(
        *(*command, "--features", trained.data / "features.h5", *keys),
        *("--embedding", trained.embedding),
    )
    assert by_vectors == by_features
    assert len(by_vectors[1]) == 7
