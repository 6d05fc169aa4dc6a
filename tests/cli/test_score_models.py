"""`fairseq-mm score` with metrics of trained models: tiny ones, beside the papers' equations."""

import json
import math
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from toy_language_models import CLIP, save_bert, save_byte_level, save_clip

from fairseq_mm.errors import UserError
from fairseq_mm.extract import text_encoders
from fairseq_mm.extract.text_encoders import TextEncoder
from fairseq_mm.metrics.mauve_score import mauve_score

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
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def models(tmp_path_factory, transformers):
    folder = tmp_path_factory.mktemp("models")
    save_bert(folder / "bert", transformers)
    for name in ("Roberta", "GPT2"):
        save_byte_level(folder / name, transformers, name)
    return folder


@pytest.fixture(scope="module")
def open_clip():
    return pytest.importorskip("open_clip")


@pytest.fixture(scope="module")
def clip_weights(tmp_path_factory, open_clip):
    return save_clip(tmp_path_factory.mktemp("clip") / "model", open_clip)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, key in enumerate(REFERENCES):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels // (number + 1)).save(folder / key, quality=95)
    return folder


@torch.no_grad()
def naive_clip_scores(open_clip, weights, photos, texts):
    """CLIPScore and RefCLIPScore of each item by open_clip's own functions, one at a time."""
    model, _, preprocess = open_clip.create_model_and_transforms(CLIP)
    model.load_state_dict(torch.load(weights, weights_only=True))
    model.eval()
    tokenize = open_clip.get_tokenizer(CLIP)

    def embed(text):
        return model.encode_text(tokenize([f"A photo depicts {text}"]))[0]

    scores = {}
    for key, text in texts.items():
        image = model.encode_image(preprocess(Image.open(photos / key).convert("RGB"))[None])[0]
        cosine = torch.cosine_similarity(embed(text), image, dim=0).item()
        plain = 2.5 * max(cosine, 0)
        best = max(
            torch.cosine_similarity(embed(text), embed(r), dim=0).item() for r in REFERENCES[key]
        )
        best = max(best, 0)
        harmonic = 2 * plain * best / (plain + best) if plain + best else 0.0
        scores[key] = (plain, harmonic)
    return scores


def test_clip_scores_are_those_of_the_paper(score, open_clip, clip_weights, photos, tmp_path):
    model = f"open_clip:{CLIP}/{clip_weights}"
    per_item = tmp_path / "items.jsonl"
    status, rows, _, err = score(
        *("--metrics", "clipscore,refclipscore", "--clip-model", model, "--images", photos),
        *("--per-item", per_item),
    )
    assert status == 0, err
    expected = naive_clip_scores(open_clip, clip_weights, photos, TEXTS)
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    signs = set()
    for column, name in enumerate(("clipscore", "refclipscore")):
        values = [expected[key][column] for key in TEXTS]
        got = [items[key][name] for key in TEXTS]
        assert got == pytest.approx(values, rel=2e-3, abs=1e-4)
        # one caption has a cosine below 0 with its image
        signs.update(value > 0 for value in values)
        assert rows[name]["value"] == pytest.approx(sum(got) / 3)
        assert rows[name]["scored"] == 3
    assert signs == {True, False}
    sign = rows["refclipscore"]["signature"]
    assert sign.startswith("refclipscore|refs:2|w:2.5|prompt:A-photo-depicts|best:of-refs|model:")
    assert f"model:open_clip:{CLIP}|weights:" in sign
    assert f"|library:open_clip_torch-{open_clip.__version__}|" in sign


def test_the_clip_digest_depends_on_the_text_encoder(score, open_clip, clip_weights, photos):
    def sign(weights):
        arguments = ("--metrics", "clipscore", "--clip-model", f"{CLIP}/{weights}")
        return score(*arguments, "--images", photos)[1]["clipscore"]["signature"]

    state = torch.load(clip_weights, weights_only=True)
    state["text_projection"] = state["text_projection"] + 1
    torch.save(state, photos.parent / "other.pt")
    assert sign(clip_weights) != sign(photos.parent / "other.pt")


def test_clipscore_needs_no_references(score, clip_weights, photos, tmp_path):
    options = ("--clip-model", f"{CLIP}/{clip_weights}", "--images", photos)
    with_references = score("--metrics", "clipscore", *options)[1]["clipscore"]
    # as fairseq-mm caption writes them
    captions = tmp_path / "captions.txt"
    captions.write_text("".join(f"some/where/{key}\t{text}\n" for key, text in TEXTS.items()))
    status, rows, _, err = score(
        "--metrics", "clipscore", *options, hypotheses=captions, with_references=False
    )
    assert status == 0, err
    assert rows["clipscore"]["value"] == with_references["value"]
    assert rows["clipscore"]["signature"] == with_references["signature"]
    status, _, _, err = score(
        "--metrics", "refclipscore", *options, hypotheses=captions, with_references=False
    )
    assert status == 2
    assert "references are needed" in err


def test_items_without_an_image_are_left_out(score, clip_weights, photos, tmp_path):
    options = ("--metrics", "clipscore", "--clip-model", f"{CLIP}/{clip_weights}")
    per_item = tmp_path / "items.jsonl"
    (photos / "a.jpg").unlink()
    (photos / "b.jpg").write_text("no image")
    status, rows, _, err = score(*options, "--images", photos, "--per-item", per_item)
    assert status == 0
    assert "1 image not in --images: a.jpg" in err
    assert "1 image unreadable: b.jpg: is not an image" in err
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    row = rows["clipscore"]
    assert (row["scored"], row["note"]) == (1, "2 without an image left out")
    assert row["value"] == items["c.jpg"]["clipscore"] > 0
    assert items["a.jpg"]["clipscore"] is items["b.jpg"]["clipscore"] is None


def test_an_empty_caption_counts_0(score, clip_weights, photos, tmp_path):
    # the model would give the words of the prompt a score above 0
    status, rows, _, _ = score(
        *("--metrics", "clipscore,refclipscore", "--clip-model", f"{CLIP}/{clip_weights}"),
        *("--images", photos, "--per-item", tmp_path / "items.jsonl"),
        hypotheses=write_lines(tmp_path / "empty.jsonl", "caption", dict.fromkeys(TEXTS, " ")),
    )
    assert status == 0
    assert rows["clipscore"]["value"] == rows["refclipscore"]["value"] == 0
    assert rows["clipscore"]["note"] == "3 empty texts count 0"


def test_systems_are_compared_by_item(score, clip_weights, photos, tmp_path):
    # both systems have the same caption of an image
    other = {**OTHERS, "c.jpg": TEXTS["c.jpg"]}
    other = write_lines(tmp_path / "others.jsonl", "caption", other)
    arguments = ("--metrics", "refclipscore", "--clip-model", f"{CLIP}/{clip_weights}")
    status, _, printed, _ = score(*arguments, "--images", photos, "--compare", other)
    assert status == 0
    assert printed.split("refclipscore")[-1].count("[") == 1  # an interval of the difference


def naive_bertscore(transformers, folder, layer, hypothesis, reference, *, space=""):
    """Precision, recall and F1 of a pair: every product of two tokens, and all hidden states."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def embed(text):
        ids = tokenizer(space + text, truncation=True, max_length=12)["input_ids"]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
        edges = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        return states.double(), [token not in edges for token in ids]

    (ys, is_y), (xs, is_x) = embed(hypothesis), embed(reference)
    cosines = [[torch.cosine_similarity(x, y, dim=0).item() for y in ys] for x in xs]
    recall = np.mean([max(row) for row, is_word in zip(cosines, is_x) if is_word])
    precision = np.mean([max(row) for row, is_word in zip(zip(*cosines), is_y) if is_word])
    return precision, recall, 2 * precision * recall / (precision + recall)


BERTSCORE = ("bertscore_precision", "bertscore_recall", "bertscore_f1")


@pytest.mark.parametrize(("name", "layer"), [("bert", 2), ("bert", 3), ("Roberta", 1)])
def test_bertscore_is_that_of_the_paper(score, models, transformers, tmp_path, name, layer):
    per_item = tmp_path / "items.jsonl"
    status, rows, _, err = score(
        *("--metrics", "bertscore", "--bert-model", models / name, "--bert-layer", layer),
        *("--per-item", per_item),
    )
    assert status == 0, err
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    space = " " if name == "Roberta" else ""
    for key, text in TEXTS.items():
        pairs = [
            naive_bertscore(transformers, models / name, layer, text, reference, space=space)
            for reference in REFERENCES[key]
        ]
        expected = np.max(pairs, axis=0)
        assert [items[key][figure] for figure in BERTSCORE] == pytest.approx(expected, abs=1e-5)
    value = np.mean([items[key]["bertscore_f1"] for key in TEXTS])
    assert rows["bertscore_f1"]["value"] == pytest.approx(value)
    sign = rows["bertscore_f1"]["signature"]
    assert sign.startswith(f"bertscore_f1|refs:2|best:of-refs|layer:{layer}|idf:no|rescaled:no|")
    assert ("space:before" in sign) == (name == "Roberta")
    assert f"library:transformers-{transformers.__version__}" in sign


def test_bertscore_is_that_of_the_library(score, models):
    library = pytest.importorskip("bert_score")
    scorer = library.BERTScorer(model_type=str(models / "bert"), num_layers=2, device="cpu")
    scorer._tokenizer.model_max_length = 12  # the library fails without a limit
    keys = list(TEXTS)
    columns = scorer.score([TEXTS[key] for key in keys], [REFERENCES[key] for key in keys])
    _, rows, _, _ = score(
        "--metrics", "bertscore", "--bert-model", models / "bert", "--bert-layer", 2
    )
    for name, column in zip(BERTSCORE, columns):
        assert rows[name]["value"] == pytest.approx(column.mean().item(), abs=1e-6)


def test_bertscore_f1_alone_and_an_empty_text(score, models, tmp_path):
    texts = write_lines(tmp_path / "empty.jsonl", "hypothesis", {**TEXTS, "a.jpg": " "})
    per_item = tmp_path / "items.jsonl"
    status, rows, _, _ = score(
        *("--metrics", "bertscore_f1", "--bert-model", models / "bert", "--per-item", per_item),
        hypotheses=texts,
    )
    assert status == 0
    assert list(rows) == ["bertscore_f1"]
    assert rows["bertscore_f1"]["note"] == "1 empty text counts 0"
    items = {item["id"]: item for item in map(json.loads, per_item.read_text().splitlines())}
    assert items["a.jpg"]["bertscore_f1"] == 0
    assert items["b.jpg"]["bertscore_f1"] > 0


def test_texts_are_encoded_in_batches_of_few_tokens(models, monkeypatch):
    encoder = TextEncoder(str(models / "bert"), option="--bert-model", kind="masked")
    texts = ["a dog", "a", "two men sit on a bench", "a blue cat", " ", "dog"]
    whole = dict(encoder.encode(texts))
    sizes = []
    forward = encoder._network.forward

    def note(*, input_ids, **rest):
        sizes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **rest)

    monkeypatch.setattr(encoder._network, "forward", note)
    monkeypatch.setattr(text_encoders, "_TOKENS_PER_BATCH", 7)
    parts = dict(encoder.encode(texts))
    # with start and end: 2, 3, 3, 4, 5 and 8 tokens
    assert sizes == [(2, 3), (1, 3), (1, 4), (1, 5), (1, 8)]
    assert parts.keys() == whole.keys() == set(range(6))
    for i, (hidden, tokens) in parts.items():
        assert tokens.tolist() == whole[i].tokens.tolist()
        assert hidden == pytest.approx(whole[i].hidden, abs=1e-5)


def test_the_layer_of_known_models_is_chosen(transformers, tmp_path):
    folder = save_bert(tmp_path / "bert12", transformers, layers=12)
    encoder = TextEncoder(str(folder), option="--bert-model", kind="masked", layer=0)
    assert encoder.layer == 9
    assert TextEncoder(str(folder), option="--bert-model", kind="masked").layer == 12


def many_texts(count):
    rng = np.random.default_rng(3)
    words = ["a", "the", "dog", "cat", "runs", "sits", "on", "red", "blue", "bench", "grass"]

    def write(likely):
        sizes = rng.integers(3, 8, count)
        odds = np.ones(len(words)) + 9 * np.isin(words, likely)
        return [" ".join(rng.choice(words, size, p=odds / odds.sum())) for size in sizes]

    return write(["dog", "runs"]), write(["cat", "sits"])


def test_mauve_is_that_of_the_library_and_of_the_equation(score, models, tmp_path, transformers):
    mauve = pytest.importorskip("mauve")
    people, system = many_texts(60)
    (tmp_path / "people.txt").write_text("\n".join(people) + "\n")
    (tmp_path / "system.txt").write_text("\n".join(system) + "\n")
    status, rows, _, err = score(
        *("--metrics", "mauve", "--mauve-model", models / "GPT2"),
        *("--references", tmp_path / "people.txt"),
        hypotheses=tmp_path / "system.txt",
        with_references=False,
    )
    assert status == 0, err
    model = transformers.AutoModel.from_pretrained(models / "GPT2").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "GPT2")
    with torch.no_grad():
        vectors = [
            torch.stack(
                [
                    model(
                        torch.tensor([tokenizer(t, truncation=True, max_length=12)["input_ids"]])
                    ).last_hidden_state[0, -1]
                    for t in texts
                ]
            ).numpy()
            for texts in (people, system)
        ]
    result = mauve.compute_mauve(p_features=vectors[0], q_features=vectors[1])
    row = rows["mauve"]
    assert row["value"] == pytest.approx(result.mauve, abs=1e-6)
    assert row["value"] == pytest.approx(naive_mauve(result.p_hist, result.q_hist), abs=1e-6)
    assert 0 < row["value"] < 0.99
    assert row["signature"].startswith("mauve|of:60-and-60-texts|buckets:6|scaling:5|seed:25|")
    assert "|by:mauve-text-" in row["signature"]


def naive_mauve(p, q):
    """Area below the divergence curve of two histograms (equations 1 and 2), by trapezoids."""

    def kl(a, b):
        return sum(x * math.log(x / y) for x, y in zip(a, b) if x > 0)

    points = [(1.0, 0.0), (0.0, 1.0)]
    for weight in np.linspace(1e-6, 1 - 1e-6, 25):
        r = [weight * x + (1 - weight) * y for x, y in zip(p, q)]
        points.append((math.exp(-5 * kl(q, r)), math.exp(-5 * kl(p, r))))

    def area(pairs):
        pairs = sorted(pairs, key=lambda pair: pair[0])
        return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in zip(pairs, pairs[1:]))

    return (area(points) + area([(y, x) for x, y in points])) / 2


def test_mauve_of_too_few_texts_has_no_value(score, models):
    pytest.importorskip("mauve")
    status, rows, _, err = score("--metrics", "mauve", "--mauve-model", models / "GPT2")
    assert status == 2
    assert "mauve: needs 20 texts of people and of the system, but there are 3 and 3" in err
    assert rows["mauve"]["value"] is None
    with pytest.raises(UserError, match="but there are 20 and 19"):
        mauve_score(np.eye(20), np.eye(20)[:19])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "clipscore"], "--metrics clipscore: needs --images."),
        (["--metrics", "refclipscore", "--images", "."], "refclipscore: needs --clip-model."),
        (["--metrics", "bertscore"], "--metrics bertscore: needs --bert-model."),
        (["--metrics", "mauve"], "--metrics mauve: needs --mauve-model."),
        (["--metrics", "bleu", "--bert-layer", "3"], "--bert-layer: needs --metrics bertscore."),
        (["--metrics", "bleu", "--images", "."], "needs --metrics clipscore or refclipscore."),
        (
            ["--metrics", "clipscore", "--images", "none", "--clip-model", "x"],
            "--images none: no such folder or file.",
        ),
    ],
)
def test_options_and_metrics_need_each_other(score, arguments, message):
    status, _, _, err = score(*arguments)
    assert status == 2
    assert err.startswith("fairseq-mm score: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing", "open_clip:nothing: open_clip has no such model"),
        (CLIP, f"open_clip:{CLIP}: has no default weights"),
        (f"{CLIP}/none.pt", "'none.pt' is neither a file nor weights of tiny-clip"),
    ],
)
def test_wrong_clip_models_are_one_line(score, clip_weights, photos, model, message):
    status, _, _, err = score("--metrics", "clipscore", "--clip-model", model, "--images", photos)
    assert status == 2
    assert err.startswith(f"fairseq-mm score: --clip-model open_clip:{model.split('/')[0]}")
    assert message in err
    assert err.count("\n") == 1
    assert "--weights" not in err  # an option of extract


def test_clip_weights_without_texts_and_folders_without_the_images(
    score, clip_weights, photos, tmp_path
):
    state = torch.load(clip_weights, weights_only=True)
    visual = {name: value for name, value in state.items() if name.startswith("visual.")}
    torch.save(visual, tmp_path / "visual.pt")
    options = ("--metrics", "clipscore", "--images", photos)
    status, _, _, err = score(*options, "--clip-model", f"{CLIP}/{tmp_path / 'visual.pt'}")
    assert (status, err.count("\n")) == (2, 1)
    assert "visual.pt: does not fit the model: it lacks" in err
    for key in TEXTS:
        (photos / key).rename(photos / f"z{key}")
    status, _, _, err = score(*options, "--clip-model", f"{CLIP}/{clip_weights}")
    assert (status, err.count("\n")) == (2, 1)
    assert "has none of the 3 images, such as 'a.jpg'" in err


def test_wrong_text_models_are_one_line(score, models, tmp_path):
    def fail(metric, model, *more):
        option = {"bertscore": "--bert-model", "mauve": "--mauve-model"}[metric]
        status, _, _, err = score("--metrics", metric, option, model, *more)
        assert (status, err.count("\n")) == (2, 1)
        assert err.startswith(f"fairseq-mm score: {option} {model}: ")
        return err

    assert "must be a masked language model, such as BERT" in fail("bertscore", models / "GPT2")
    assert "has the layers 1 to 3, but not 4" in fail(
        "bertscore", models / "bert", "--bert-layer", 4
    )
    (tmp_path / "empty").mkdir()
    assert "the folder has no config.json" in fail("mauve", tmp_path / "empty")
    assert "is neither a folder nor the name of a model" in fail("bertscore", "a/b/c")
    config = (models / "bert" / "config.json").read_text()
    (tmp_path / "empty" / "config.json").write_text(config)
    assert "the weights are missing" in fail("bertscore", tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"")
    assert "but is of the type vit" in fail("mauve", tmp_path / "empty")
    (tmp_path / "empty" / "config.json").write_text(config)
    assert "cannot be loaded: " in fail("bertscore", tmp_path / "empty")


def test_damaged_tokenizers_and_configs_are_one_line(score, models, tmp_path):
    def fail(name, content, kind="bertscore"):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(models / "bert", folder)
        for path in folder.iterdir() if name == "tokenizer" else [folder / name]:
            if content is None and path.name not in ("config.json", "model.safetensors"):
                path.unlink()
            elif content is not None:
                values = {} if isinstance(content, str) else json.loads(path.read_text())
                path.write_text(json.dumps({**values, **content}) if values else content)
        option = {"bertscore": "--bert-model", "mauve": "--mauve-model"}[kind]
        status, _, _, err = score("--metrics", kind, option, folder)
        assert (status, err.count("\n")) == (2, 1)
        return err

    # transformers itself makes a tokenizer of five special symbols: a score of 0.999
    assert "the tokenizer finds no word in the texts" in fail("tokenizer", None)
    assert "damaged/tokenizer.json: not JSON (" in fail("tokenizer.json", "")
    assert "damaged/config.json: not JSON (" in fail("config.json", "{")
    assert "config.json: must be a JSON object." in fail("config.json", "null")
    vocabulary = json.loads((models / "bert" / "tokenizer.json").read_text())["model"]
    vocabulary["vocab"]["dog"] = 500
    err = fail("tokenizer.json", {"model": vocabulary})
    assert "it has the token 500, but the model has 22 tokens." in err
    err = fail("tokenizer_config.json", {"model_max_length": -1})
    assert "model_max_length must be 1 or more, but is -1." in err
    assert "num_hidden_layers must be 1 or more" in fail("config.json", {"num_hidden_layers": 0})
    err = fail("config.json", {"hidden_size": 32})
    assert "the weights have other sizes than config.json says." in err
    assert "save_pretrained" not in err
    # BERT can be either kind
    assert "but is of the type bert with is_decoder." in fail("config.json", {"is_decoder": True})
    assert "must be a language model, such as GPT-2, but" in fail("config.json", {}, kind="mauve")


def test_lacking_weights_are_not_random(score, models, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    shutil.copytree(models / "bert", tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    state = safetensors.load_file(path)
    del state["encoder.layer.1.output.dense.weight"]
    safetensors.save_file(state, path, metadata={"format": "pt"})
    status, _, _, err = score("--metrics", "bertscore", "--bert-model", tmp_path / "bert")
    assert (status, err.count("\n")) == (2, 1)
    assert "they lack encoder.layer.1.output.dense.weight" in err
    # a layer before the lacking one does not depend on it
    options = ("--bert-model", tmp_path / "bert", "--bert-layer", 1)
    assert score("--metrics", "bertscore", *options)[0] == 0


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("open_clip", ["clipscore", "--images", ".", "--clip-model", "ViT-B-32/openai"], "clip"),
        ("transformers", ["bertscore", "--bert-model", "x/y"], "hf"),
        ("transformers", ["mauve", "--mauve-model", "x/y"], "hf"),
    ],
)
def test_without_a_library_the_extra_is_named(score, photos, monkeypatch, module, arguments, extra):
    monkeypatch.setitem(sys.modules, module, None)
    arguments = [photos if argument == "." else argument for argument in arguments]
    status, _, _, err = score("--metrics", *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert f"pip install 'fairseq-mm[{extra}]'" in err


def test_without_mauve_text_the_row_names_the_extra(score, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "mauve", None)
    status, _, _, err = score("--metrics", "mauve", "--mauve-model", models / "GPT2")
    assert status == 2
    assert "fairseq-mm[mauve]" in err
