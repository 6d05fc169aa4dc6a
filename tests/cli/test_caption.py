"""``fairseq-mm caption``: lines, order, exit status, refusals before any work."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from toy_captioner import DIM, change_checkpoint, save_images, train_captioner
from toy_data import write_store

from fairseq_mm import from_pretrained
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore, FeatureStores
from fairseq_mm.extract.weights import compute_sha256
from fairseq_mm.inference.generator import Generator
from fairseq_mm.modules import packed_weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train_captioner(folder, folder / "data")
    return folder


@pytest.fixture
def images(tmp_path):
    return save_images(tmp_path / "images", count=4)


@pytest.fixture
def caption(trained, capsys):
    """Runs the command: exit status, lines of stdout, stderr."""

    def run(*arguments, model=trained):
        capsys.readouterr()
        status = main(
            ["caption", *map(str, arguments), "--checkpoint", str(model), "--device", "cpu"]
        )
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return run


needs_int8 = pytest.mark.skipif(
    not packed_weights.can_pack("int8"), reason="this processor multiplies no int8"
)


def write_training_text(folder, captions):
    (folder / "text").mkdir(parents=True)
    (folder / "text" / "train.txt").write_text("".join(f"{line}\n" for line in captions))
    (folder / "train.visual_ids").write_text("".join(f"p{i}.jpg\n" for i in range(len(captions))))


def test_a_line_an_image_in_the_order_of_the_inputs(caption, trained, images, tmp_path):
    found = from_pretrained(trained, device="cpu").generate(images)
    expected = [best.text for best, *_ in found]
    status, lines, errors = caption(*images[::-1])
    assert status == 0
    assert lines == [f"{p}\t{text}" for p, text in zip(images[::-1], expected[::-1])]
    assert errors == ""
    status, lines, _ = caption(tmp_path / "images")
    assert lines == [f"{p}\t{text}" for p, text in zip(images, expected)]


def test_an_object_a_line_says_what_made_the_caption(caption, trained, images):
    options = ["--jsonl", "--beam", "2", "--prefix", "a dog", "--max-len-b", "7"]
    status, lines, _ = caption(*images[:2], *options)
    assert status == 0
    entries = [json.loads(line) for line in lines]
    assert [entry["id"] for entry in entries] == images[:2]
    entry = entries[0]
    assert entry["hypothesis"].startswith("a dog")
    assert entry["score"] < 0
    assert entry["checkpoint"] == compute_sha256(str(trained / "checkpoint_best.pt"))
    assert entry["extractor"]["weights"] == compute_sha256(str(trained / "squeezenet.pth"))
    assert entry["options"] == {
        "beam": 2, "nbest": 1, "prefix": "a dog", "sampling": False, "sampling_topk": -1,
        "sampling_topp": -1.0, "typical_p": -1.0, "temperature": 1.0, "lenpen": 1.0, "unkpen": 0.0,
        "seed": 1,
        "min_len": 1, "max_len_a": 0, "max_len_b": 7, "no_repeat_ngram_size": 0,
        "allow_unk": False, "weights_dtype": "float32",
    }  # fmt: skip


def test_several_hypotheses_of_an_image(caption, images, tmp_path):
    status, lines, _ = caption(*images[:2], "--jsonl", "--nbest", 3)
    assert status == 0
    for line in lines:
        entry = json.loads(line)
        assert len(entry["hypotheses"]) == 3
        assert entry["hypotheses"][0] == {name: entry[name] for name in ("hypothesis", "score")}
        scores = [best["score"] for best in entry["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
    assert len(caption(images[0], "--nbest", 3)[1]) == 3
    output = tmp_path / "captions.jsonl"
    _, _, err = caption(*images[:2], "--nbest", 3, "--output", output)
    assert err == f"wrote {output}: 6 captions\n"


def test_captions_are_written_as_cocos_server_takes_them(caption, images, tmp_path):
    names = [tmp_path / f"COCO_test2014_{number:012}.jpg" for number in (581929, 16)]
    for image, name in zip(images, names):
        shutil.copy(image, name)
    out = tmp_path / "captions_test2014_m_rnn_results.json"
    status, lines, err = caption(*names, "--submission", out, "--nbest", 2)
    assert status == 0
    assert err == f"wrote {out}: 2 captions\n"
    best = [line.split("\t")[1] for line in lines[::2]]
    assert json.loads(out.read_text()) == [
        {"image_id": 581929, "caption": best[0]},
        {"image_id": 16, "caption": best[1]},
    ]


def test_images_that_are_not_cocos_are_refused_before_the_work(caption, images, tmp_path):
    out = tmp_path / "results.json"
    status, lines, err = caption(*images, "--submission", out)
    assert (status, lines, err.count("\n")) == (2, [], 1)
    assert "and an id of COCO such as COCO_val2014_000000391895.jpg or 391895, but " in err
    assert not out.exists()


def test_an_unreadable_image_is_named_and_the_others_are_captioned(caption, images, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG no more")
    absent = tmp_path / "absent.jpg"
    status, lines, errors = caption(images[0], broken, absent, images[1])
    assert status == 2
    assert lines == caption(*images[:2])[1]
    assert errors.splitlines() == [
        f"fairseq-mm caption: {broken}: is not an image, or its format is not supported.",
        f"fairseq-mm caption: {absent}: cannot be read (No such file or directory).",
        "2 of 4 images could not be read",
    ]
    status, lines, errors = caption(broken)
    assert (status, lines) == (2, [])
    assert len(errors.splitlines()) == 1


def test_items_of_a_store_are_captioned_without_images(caption, trained, tmp_path):
    identity = from_pretrained(trained).processor.reader.identity
    store = tmp_path / "some.h5"
    write_store(store, ["one.jpg", "two.jpg", "three.jpg"], dim=DIM, rows=2, attributes=identity)
    status, lines, _ = caption("--features", store)
    assert status == 0
    assert [line.split("\t")[0] for line in lines] == ["one.jpg", "two.jpg", "three.jpg"]
    assert caption("--features", store, "two.jpg")[1] == lines[1:2]
    status, lines, errors = caption("--features", store, "one.jpg", "four.jpg")
    assert (status, lines) == (2, [])
    assert "some.h5: no features for 'four.jpg' among 3 items" in errors


def test_the_nearest_training_caption_stands_beside(caption, images, tmp_path):
    written = [line.split("\t")[1] for line in caption(*images)[1]]
    data = tmp_path / "training"
    write_training_text(data, ["zebra zebra", *written])
    status, lines, _ = caption(*images, "--nearest", data)
    assert status == 0
    assert lines[0] == "image\tcaption\tnearest training caption"
    assert [line.split("\t")[1:] for line in lines[1:]] == [[text, text] for text in written]
    entry = json.loads(caption(images[0], "--nearest", data, "--jsonl")[1][0])
    assert entry["nearest"] == {
        "caption": written[0], "id": "p1.jpg", "cider_d": entry["nearest"]["cider_d"],
    }  # fmt: skip
    assert 0 < entry["nearest"]["cider_d"] <= 10


def test_the_output_file_appears_when_it_is_whole(caption, images, tmp_path, monkeypatch):
    output = tmp_path / "captions.tsv"
    expected = caption(*images)[1]
    status, lines, errors = caption(*images, "--output", output)
    assert (status, lines) == (0, [])
    assert output.read_text().splitlines() == expected
    assert f"wrote {output}: 4 captions" in errors
    monkeypatch.setattr(Generator, "stream", _fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        caption(images[0], "--output", output)
    assert output.read_text().splitlines() == expected
    assert [path.name for path in tmp_path.glob("captions*")] == ["captions.tsv"]
    status, _, errors = caption(images[0], "--output", tmp_path / "no" / "file.tsv")
    assert status == 2
    assert "there is no folder" in errors


def _fail(*_, **__):
    raise RuntimeError("in the middle")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--checkpoint: needs the inputs or --features beside it: it captions images."),
        (["p.jpg", "--nbest", "0"], "`nbest` must be 1 or more, but is 0"),
        (["p.jpg", "--nbest", "4", "--beam", "2"], "`nbest` must be at most `beam` (2)"),
        (
            ["--features", "f.h5", "--weights", "w.pt"],
            "--features and --weights: leave one of the",
        ),
        (["p.jpg", "--prefix", "a zebra"], "the word 'zebra' is not in"),
        (
            ["p.jpg", "--weights", "absent.pt"],
            "absent.pt: cannot be read (No such file",
        ),
        (["--features", "absent.h5"], "absent.h5"),
    ],
)
def test_mistakes_are_named_in_one_line(caption, arguments, message):
    status, lines, errors = caption(*arguments)
    assert (status, lines) == (2, [])
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_network_of_timm_is_built_from_the_checkpoint(
    caption, trained, images, tmp_path, monkeypatch
):
    timm = pytest.importorskip("timm")
    torch.manual_seed(3)
    file = tmp_path / "network.pth"
    torch.save(timm.create_model("resnet10t").state_dict(), file)
    store = tmp_path / "features.h5"
    model = ("--model", "timm:resnet10t", "--weights", file)
    command = ["extract", tmp_path / "images", *model, "--output", store]
    assert main([*map(str, command), "--dtype", "float32", "--workers", "1"]) == 0
    identity = FeatureStores([FeatureStore(store)]).extractor_attributes
    assert identity["library"].startswith("timm ")
    beside = tmp_path / "trained"
    beside.mkdir()
    source, target = trained / "checkpoint_last.pt", beside / "checkpoint_best.pt"
    change_checkpoint(source, target, provenance={"extractor": identity})
    file = shutil.move(file, beside / "network.pth")
    status, lines, errors = caption(*images, model=beside)
    assert (status, errors) == (0, "")
    ids = [Path(path).name for path in images]
    _, stored, _ = caption(*ids, "--features", store, model=beside)
    assert [x.split("\t")[1] for x in lines] == [x.split("\t")[1] for x in stored]
    monkeypatch.setitem(sys.modules, "timm", None)
    status, lines, errors = caption(images[0], model=beside)
    assert (status, lines) == (2, [])
    assert "needs the package timm" in errors
    file.write_bytes(b"other")
    assert "SHA-256" in caption(images[0], "--weights", file, model=beside)[2]


@needs_int8
def test_generators_of_one_model_keep_their_types_of_weights(trained, images, monkeypatch):
    monkeypatch.setattr(packed_weights, "_MIN_ELEMENTS", 1)
    model = from_pretrained(trained, device="cpu")
    examples = list(model.processor.examples(images))
    exact, rounded = (model.config(weights_dtype=dtype) for dtype in ("float32", "int8"))
    expected = [model.stream(examples, config, batch_size=1) for config in (exact, rounded)]
    expected = [[best.score for best, *_ in scores] for scores in expected]
    assert expected[0] != expected[1]
    # batch by batch in turn
    streams = [model.stream(examples, config, batch_size=1) for config in (exact, rounded)]
    found = [[first.score, second.score] for (first, *_), (second, *_) in zip(*streams)]
    assert list(map(list, zip(*found))) == expected
