"""`fairseq-mm score` with metrics of trained models: tiny ones, beside the papers' equations."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from toy_language_models import save_bert, save_clip

transformers = pytest.importorskip("transformers")
pytest.importorskip("torchmetrics")

REFERENCES = {
    "a.jpg": ["a brown dog runs on grass", "the dog runs"],
    "b.jpg": ["two men sit on a red bench", "the men with a bench and a cat"],
    "c.jpg": ["a blue cat", "cats on the grass"],
}
TEXTS = {"a.jpg": "a dog runs", "b.jpg": "two men and two dogs sit on a bench", "c.jpg": "red"}
OTHERS = {"a.jpg": "the bench", "b.jpg": "men on grass", "c.jpg": "a blue cat"}


def write_lines(path, field, values):
    lines = (json.dumps({"id": key, field: value}) for key, value in values.items())
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def score(tmp_path, run_for_json):
    """Runs the command with the texts above: exit status, rows by name, stdout, stderr."""
    texts = write_lines(tmp_path / "texts.jsonl", "hypothesis", TEXTS)
    references = write_lines(tmp_path / "references.jsonl", "references", REFERENCES)

    def run(*arguments, hypotheses=texts, with_references=True):
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        given = ["--references", references] if with_references else []
        arguments = ["score", hypotheses, *given, *arguments, "--json", out]
        status, result, printed, err = run_for_json(out, *map(str, arguments))
        return status, {row["metric"]: row for row in result.get("scores", ())}, printed, err

    return run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_bert(folder / "bert", transformers)
    save_clip(folder / "clip", transformers)
    return folder


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, key in enumerate(REFERENCES):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels // (number + 1)).save(folder / key, quality=95)
    return folder


@torch.no_grad()
def naive_clip_scores(folder, photos, texts):
    """CLIPScore and RefCLIPScore of each item by the paper's equations, one at a time."""
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
    processor = transformers.CLIPImageProcessor.from_pretrained(folder)

    def embed(text):
        ids = tokenizer(f"A photo depicts {text}", truncation=True, return_tensors="pt")
        return model.text_projection(model.text_model(**ids).pooler_output)[0]

    scores = {}
    for key, text in texts.items():
        pixels = np.array(Image.open(photos / key).convert("RGB"))
        inputs = processor(images=pixels, return_tensors="pt")
        image = model.visual_projection(model.vision_model(**inputs).pooler_output)[0]
        plain = 2.5 * max(torch.cosine_similarity(embed(text), image, dim=0).item(), 0)
        cosines = (torch.cosine_similarity(embed(text), embed(r), dim=0) for r in REFERENCES[key])
        best = max(0, *map(float, cosines))
        scores[key] = (plain, 2 * plain * best / (plain + best) if plain + best else 0.0)
    return scores


def test_clip_scores_are_those_of_the_paper(score, models, photos, tmp_path):
    per_item = tmp_path / "items.jsonl"
    arguments = ("--clip-model", models / "clip", "--images", photos, "--per-item", per_item)
    status, rows, _, err = score("--metrics", "clipscore,refclipscore", *arguments)
    assert status == 0, err
    expected = naive_clip_scores(models / "clip", photos, TEXTS)
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    signs = set()
    for column, name in enumerate(("clipscore", "refclipscore")):
        values = [expected[key][column] for key in TEXTS]
        got = [items[key][name] for key in TEXTS]
        assert got == pytest.approx(values, rel=1e-4, abs=1e-5)
        signs.update(value > 0 for value in values)
        assert rows[name]["value"] == pytest.approx(sum(got) / 3)
        assert rows[name]["scored"] == 3
    assert signs == {True, False}  # a caption has a cosine below 0 with its image
    sign = rows["refclipscore"]["signature"]
    assert sign.startswith("refclipscore|refs:2|w:2.5|prompt:A-photo-depicts|best:of-refs|")
    assert "|model:clip|weights:" in sign
    assert f"|library:transformers-{transformers.__version__}" in sign


def test_clipscore_needs_no_references(score, models, photos, tmp_path):
    options = ("--clip-model", models / "clip", "--images", photos)
    with_references = score("--metrics", "clipscore", *options)[1]["clipscore"]
    # as fairseq-mm caption writes them
    captions = tmp_path / "captions.txt"
    captions.write_text("".join(f"some/where/{key}\t{text}\n" for key, text in TEXTS.items()))
    files = {"hypotheses": captions, "with_references": False}
    status, rows, _, err = score("--metrics", "clipscore", *options, **files)
    assert status == 0, err
    assert rows["clipscore"]["value"] == with_references["value"]
    assert rows["clipscore"]["signature"] == with_references["signature"]
    status, _, _, err = score("--metrics", "refclipscore", *options, **files)
    assert (status, "references are needed" in err) == (2, True)


def test_items_without_an_image_are_left_out(score, models, photos, tmp_path):
    per_item = tmp_path / "items.jsonl"
    (photos / "a.jpg").unlink()
    (photos / "b.jpg").write_text("no image")
    options = ("--metrics", "clipscore", "--clip-model", models / "clip", "--images", photos)
    status, rows, _, err = score(*options, "--per-item", per_item)
    assert status == 0
    assert "1 image not in --images: a.jpg" in err
    assert "1 image unreadable: b.jpg: is not an image" in err
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    row = rows["clipscore"]
    assert (row["scored"], row["note"]) == (1, "2 without an image left out")
    assert row["value"] == items["c.jpg"]["clipscore"]
    assert items["a.jpg"]["clipscore"] is items["b.jpg"]["clipscore"] is None
    (photos / "c.jpg").unlink()
    status, _, _, err = score(*options)
    assert (status, "no figure could be computed" in err) == (2, True)


def test_an_empty_caption_counts_0(score, models, photos, tmp_path):
    # the models would give the words of the prompt and the special tokens a score above 0
    status, rows, _, _ = score(
        *("--metrics", "clipscore,refclipscore,bertscore", "--clip-model", models / "clip"),
        *("--images", photos, "--bert-model", models / "bert"),
        hypotheses=write_lines(tmp_path / "empty.jsonl", "caption", dict.fromkeys(TEXTS, " ")),
    )
    assert status == 0
    assert {row["value"] for row in rows.values()} == {0}
    assert rows["clipscore"]["note"] == "3 empty texts count 0"


def naive_bertscore(folder, layer, hypothesis, reference):
    """Precision, recall and F1 of a pair: every product of two tokens, and all hidden states."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def embed(text):
        ids = tokenizer(text, truncation=True, max_length=12)["input_ids"]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
        return states[1:-1].double()  # without the start and the end symbol

    ys, xs = embed(hypothesis), embed(reference)
    cosines = [[torch.cosine_similarity(x, y, dim=0).item() for y in ys] for x in xs]
    recall = np.mean([max(row) for row in cosines])
    precision = np.mean([max(row) for row in zip(*cosines)])
    return precision, recall, 2 * precision * recall / (precision + recall)


def test_bertscore_is_that_of_the_paper(score, models, tmp_path):
    per_item = tmp_path / "items.jsonl"
    arguments = ("--bert-model", models / "bert", "--per-item", per_item)
    status, rows, _, err = score("--metrics", "bertscore", *arguments)
    assert status == 0, err
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    names = ("bertscore_precision", "bertscore_recall", "bertscore_f1")
    for key, text in TEXTS.items():
        scores = [naive_bertscore(models / "bert", 3, text, r) for r in REFERENCES[key]]
        got = [items[key][name] for name in names]
        assert got == pytest.approx(np.max(scores, axis=0).tolist(), abs=1e-5)
    sign = rows["bertscore_f1"]["signature"]
    assert sign.startswith(
        "bertscore_f1|refs:2|best:of-refs|layer:3|idf:no|rescaled:no|model:bert|"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "clipscore", "--images", "no", "--clip-model", "x"], "no: cannot be read"),
        (
            ["--metrics", "bertscore", "--bert-model", "own/bert"],
            "--bert-model own/bert: cannot be loaded: ",
        ),
        (["--metrics", "bertscore", "--bert-model", "EMPTY"], "cannot be loaded: "),
        (["--metrics", "bertscore", "--bert-model", "LACKS"], "its weights lack encoder.layer.1."),
        (["--metrics", "clipscore", "--clip-model", "BERT", "--images", "PHOTOS"], "--clip-model "),
        (
            ["--metrics", "clipscore", "--clip-model", "CLIP", "--images", "OTHERS"],
            "3 without an image",
        ),
    ],
)
def test_mistakes_are_one_line(score, models, photos, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "others").mkdir()
    shutil.copy(photos / "a.jpg", tmp_path / "others" / "z.jpg")
    shutil.copytree(models / "bert", tmp_path / "lacks")
    bert = transformers.BertModel.from_pretrained(models / "bert")
    state = bert.state_dict()
    del state["encoder.layer.1.output.dense.weight"]
    bert.save_pretrained(tmp_path / "lacks", state_dict=state)
    places = {"EMPTY": tmp_path / "empty", "LACKS": tmp_path / "lacks", "BERT": models / "bert"}
    places.update(CLIP=models / "clip", PHOTOS=photos, OTHERS=tmp_path / "others")
    status, _, _, err = score(*(places.get(argument, argument) for argument in arguments))
    assert status == 2
    *_, line = err.splitlines()
    assert line.startswith("fairseq-mm score: ")
    assert message in line


@pytest.mark.parametrize("module", ["torchmetrics", "transformers"])
def test_without_a_library_the_extra_is_named(score, models, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    status, _, _, err = score("--metrics", "bertscore", "--bert-model", models / "bert")
    assert (status, err.count("\n")) == (2, 1)
    assert "pip install 'fairseq-mm[models]'" in err
