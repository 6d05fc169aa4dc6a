"""``fairseq-mm tell`` of images: sources, what is printed and written, refusals before any
work."""

import json
import os
import re
import shutil

import pytest
from toy_captioner import save_images
from toy_data import write_store
from toy_text_models import save_text_model
from toy_visual_stories import (
    save_pixel_story_model,
    save_story_model,
    write_story_split,
)

import fairseq_mm
from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import open_features
from fairseq_mm.extract.weights import compute_sha256
from fairseq_mm.inference.image_processor import ImageReader
from fairseq_mm.metrics.hypotheses import read_hypotheses

LENGTH = ["--max-words-per-sentence", "6"]
OPTIONS = {"max_words_per_sentence": 6}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_pixel_story_model(folder / "pixels")
    shutil.copy(save_pixel_story_model(folder / "moved", seed=9), folder / "pixels" / "other.pt")
    shutil.copytree(folder / "pixels", folder / "without")
    (folder / "without" / "squeezenet.pth").unlink()
    data = write_story_split(folder / "data", missing="p2_1")
    write_store(folder / "grid.h5", [f"p0_{k}" for k in range(5)], rows=4)
    write_store(folder / "wide.h5", [f"p0_{k}" for k in range(5)], dim=6)
    other = {"extractor": "drawn", "layer": "top"}
    write_store(folder / "other.h5", [f"p0_{k}" for k in range(5)], attributes=other)
    return {
        "pixels": folder / "pixels",
        "other": folder / "pixels" / "other.pt",
        "without": folder / "without",
        "stored": save_story_model(folder / "stored.pt"),
        "second": save_story_model(folder / "second.pt", "transtory_xl_tiny", seed=9),
        "data": data,
        "store": data / "features.h5",
        "grid": folder / "grid.h5",
        "wide": folder / "wide.h5",
        "other_store": folder / "other.h5",
        "text": save_text_model(folder / "text.pt"),
    }


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return save_images(tmp_path_factory.mktemp("album") / "images")


@pytest.fixture
def tell(capsys):
    """Runs the command: exit status, stdout, stderr."""

    def run(*arguments):
        capsys.readouterr()
        status = main(["tell", "--device", "cpu", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def model(files):
    return fairseq_mm.from_pretrained(files["pixels"], device="cpu")


def stories_of_split(files, numbers=(0, 1, 2, 3), model="stored", **options):
    """By line of the split."""
    store = open_features([str(files["store"])])
    albums = [
        [store.read(key) if key in store else None for key in (f"p{i}_{k}" for k in range(5))]
        for i in numbers
    ]
    generator = fairseq_mm.from_pretrained(files[model], device="cpu")
    indices = [2 * i for i in numbers]
    found = generator.generate(albums, indices=indices, **OPTIONS, **options)
    return [best for best, *_ in found]


def lines_of(output):
    return [json.loads(line)["hypothesis"] for line in output.splitlines()]


def story_of(model, images, index=0, **options):
    return model.generate([images], indices=[index], **OPTIONS, **options)[0][0]


def text_of(story):
    return "\n".join(story.sentences)


def test_a_story_of_images_is_five_lines(tell, files, model, images):
    expected = story_of(model, images)
    arguments = ["--checkpoint", files["pixels"], *images, *LENGTH]
    assert tell(*arguments) == (0, f"{text_of(expected)}\n", "")
    assert len(text_of(expected).splitlines()) == 5
    weights = ["--weights", files["pixels"] / "squeezenet.pth"]
    assert tell("--checkpoint", files["without"], *images, *LENGTH, *weights)[1].splitlines() == (
        expected.sentences
    )
    options = ["--sampling-topk", 4, "--temperature", 2, "--seed", 3]
    drawn = story_of(model, images, sampling=True, sampling_topk=4, temperature=2.0, seed=3)
    assert tell(*arguments, *options)[1] == f"{text_of(drawn)}\n"
    options = ["--preset", "paper", "--repetition-penalty", 3]
    ruled = story_of(model, images, preset="paper", repetition_penalty=3.0)
    assert tell(*arguments, *options)[1] == f"{text_of(ruled)}\n"
    ruled = story_of(model, images, end_after_punctuation=True, beam=2)
    assert tell(*arguments, "--end-after-punctuation", "--beam", 2)[1] == f"{text_of(ruled)}\n"


def test_a_dash_stands_for_a_missing_image(tell, files, model, images):
    given = [*images[:3], None, images[4]]
    expected = story_of(model, given)
    arguments = [path or "-" for path in given]
    assert tell(*arguments, "--checkpoint", files["pixels"], *LENGTH)[1] == f"{text_of(expected)}\n"


def test_the_record_of_images_says_what_made_it(tell, files, model, images, tmp_path):
    target = tmp_path / "stories.jsonl"
    arguments = [*images, "--checkpoint", files["pixels"], *LENGTH, "--output", target]
    assert tell(*arguments) == (0, "", f"wrote {target}: 1 story\n")
    expected = story_of(model, images)
    entry = json.loads(target.read_text())
    assert entry.pop("score") == pytest.approx(expected.score, abs=1e-4)
    assert entry.pop("words") == len(expected.line.split()) - 4
    assert entry.pop("options")["max_words_per_sentence"] == 6
    assert entry.pop("extractor")["extractor"] == "squeezenet1_1"
    assert entry == {
        "id": "\t".join(images), "item": 0, "images": images,
        "sentences": expected.sentences, "hypothesis": expected.line,
        "checkpoint": compute_sha256(str(files["pixels"] / "checkpoint_best.pt")),
    }  # fmt: skip
    (tmp_path / "broken.png").write_bytes(b"no image")
    arguments[4] = tmp_path / "broken.png"
    assert "broken.png: is not an image, or its format" in tell(*arguments)[2]


def test_a_split_is_generated_by_the_lines_of_its_sequences(tell, files, tmp_path):
    target = tmp_path / "stories.jsonl"
    arguments = [
        "--checkpoint",
        files["stored"],
        files["data"],
        "--split",
        "valid",
        *LENGTH,
    ]
    status, output, _ = tell(*arguments, "--jsonl", "--output", target, "--sampling-topk", 5)
    assert (status, output) == (0, "")
    expected = stories_of_split(files, sampling=True, sampling_topk=5)
    entries = [json.loads(line) for line in target.read_text().splitlines()]
    assert [entry["item"] for entry in entries] == [0, 2, 4, 6]
    assert [entry["hypothesis"] for entry in entries] == [story.line for story in expected]
    assert entries[2]["images"] == ["p2_0", "-", "p2_2", "p2_3", "p2_4"]
    ids = ["\t".join(f"p{i}_{k}" for k in range(5)) for i in range(4)]
    found = read_hypotheses(str(target), item_ids=ids)
    assert list(found.texts) == ids
    _, output, _ = tell(*arguments, "--jsonl", "--limit", 2, "--batch-size", 1)
    assert lines_of(output) == [story.line for story in stories_of_split(files, (0, 1))]
    _, output, _ = tell(*arguments, "--line", 6, "--line", 2)
    assert re.findall(r"=== (\d): p(\d)_0", output) == [("6", "3"), ("2", "1")]
    (story,) = stories_of_split(files, (3,))
    assert tell(*arguments, "--line", 6)[1] == f"{text_of(story)}\n"


def test_systems_are_compared_as_rows_below_what_people_wrote(tell, files):
    data = [files["data"], "--split", "valid", "--line", 2, *LENGTH]
    systems = ["--compare", files["stored"], f"attention={files['second']}"]
    status, output, errors = tell(*data, *systems)
    assert (status, errors) == (0, "")
    (first,) = stories_of_split(files, (1,))
    (second,) = stories_of_split(files, (1,), "second")
    rows = [re.sub(r"\s+", " ", row).strip() for row in re.split(r"\n-+\n", output)]
    people = ["we " * (1 + k) + "saw it" for k in range(5)]
    assert rows[:2] == [f"people {' '.join(x + mark for x in people)}" for mark in ".?"]
    assert {len(line) for line in output.splitlines() if line.startswith("---")} == {
        len("attention") + 5 * ((160 - 9) // 5)
    }
    # sentences are folded in their columns: words are found again, in another order
    for row, name, story in zip(rows[2:], ("glac_tiny", "attention"), (first, second)):
        assert sorted(row.split()) == sorted([name, *" ".join(story.sentences).split()])
    status, output, _ = tell(*data, *systems, "--jsonl")
    entries = [json.loads(line) for line in output.splitlines()]
    assert [x["system"] for x in entries] == ["people", "people", "glac_tiny", "attention"]
    assert entries[0]["sentences"] == [f"{sentence}." for sentence in people]
    assert [x["hypothesis"] for x in entries[2:]] == [first.line, second.line]
    assert entries[3]["checkpoint"] == compute_sha256(str(files["second"]))


def test_systems_with_one_extractor_read_the_images_once(tell, files, model, images, monkeypatch):
    other = fairseq_mm.from_pretrained(files["other"], device="cpu")
    stories = [story_of(x, images) for x in (model, other)]
    calls = []
    read = ImageReader.read_features
    monkeypatch.setattr(
        ImageReader, "read_features", lambda *args, **kwargs: calls.append(1) or read(*args)
    )
    systems = ["--compare", files["pixels"], f"b={files['other']}"]
    _, output, _ = tell(*images, *systems, "--jsonl", *LENGTH)
    assert lines_of(output) == [story.line for story in stories]
    assert len(calls) == 1


def test_the_page_shows_images_and_sentences(tell, files, model, images, tmp_path):
    page = tmp_path / "story.html"
    arguments = [*images, "--checkpoint", files["pixels"], *LENGTH, "--html", page]
    status, output, errors = tell(*arguments)
    assert (status, output) == (0, "")
    assert re.fullmatch(rf"wrote {page}: 1 story\n", errors)
    text = page.read_text()
    story = story_of(model, images)
    assert re.findall(r"<td>(.*?)</td>", text.split("</tbody>")[0]) == [
        sentence.replace("'", "&#x27;") for sentence in story.sentences
    ]
    assert len(re.findall(r'<img src="data:image/jpeg;base64,[^"]{99}', text)) == 5
    assert re.findall(r'alt="(.*?)"', text) == [os.path.basename(path) for path in images]
    assert "generated by glac_tiny" in text
    assert compute_sha256(str(files["pixels"] / "checkpoint_best.pt"))[:16] in text
    assert "http" not in text.replace("http-equiv", "")
    # what is printed is asked for
    assert lines_of(tell(*arguments, "--jsonl")[1]) == [story.line]


def test_the_page_of_a_split_shows_the_images_that_are_given(tell, files, images, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for k, path in enumerate(images[:3]):
        shutil.copy(path, folder / f"p0_{k}.png")
    page = tmp_path / "page.html"
    arguments = [files["data"], "--split", "valid", "--limit", 1, *LENGTH]
    systems = ["--compare", f"one={files['stored']}", f"two={files['second']}"]
    status, _, errors = tell(*arguments, *systems, "--html", page, "--images", folder)
    assert status == 0
    assert errors.endswith("; 2 images not found\n")
    text = page.read_text()
    assert re.findall(r'<th scope="row">(\w+)<', text)[:4] == ["people", "people", "one", "two"]
    assert text.count("<img ") == 3
    assert re.findall(r'class="absent quiet">(.*?)<', text) == ["p0_3", "p0_4"]


P5 = ["a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"]
IDS = [f"p0_{k}" for k in range(5)]
SPLIT = ["{data}", "--split", "valid"]
PIXELS, STORED = (["--checkpoint", name] for name in ("{pixels}", "{stored}"))
OF_SPLIT = [*STORED, *SPLIT]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PIXELS, *P5[:4]], "a story has 5 images, but there are 4."),
        ([*PIXELS, *P5], "a.jpg: cannot be read (No such file"),
        ([*PIXELS, *"-----"], "all 5 images are missing."),
        (["--checkpoint", "{text}", *P5], "a.jpg: this model reads JSON lines"),
        ([*PIXELS, "--prompt", "x", *P5], "--prompt: not for {pixels}/checkpoint_best.pt, a model"),
        ([*STORED, *P5], "no `preprocessing` is recorded, so the extractor"),
        ([*PIXELS, "--html", "x.html"], "generates stories from image sequences: give some."),
        (P5, "give --checkpoint or --compare."),
        ([*P5, "--compare", "{pixels}", "{other}"], "two systems are named glac_tiny; give names"),
        ([*STORED, "--features", "{store}", *IDS[:4], "p0_9"], "no features for 'p0_9' among 19"),
        ([*STORED, "--features", "{wide}", *IDS], "made with dim = "),
        ([*STORED, "--features", "{grid}", *IDS], "image 1: features must be [1, 5], but"),
        ([*STORED, "--features", "{other_store}", *IDS], "another extractor: the features that"),
        ([*STORED, "--split", "valid"], "--split valid: give its data folder as the only input."),
        ([*OF_SPLIT, "--line", "8"], "--line: valid has lines 0 to 7."),
        ([*OF_SPLIT, "--n", "2"], "--split and --n: leave one of the two out: each line of a"),
        ([*STORED, "{data}", "--split", "test"], ": has no split 'test', but valid."),
        ([*PIXELS, *P5, "--limit", "2"], "--limit: needs --split beside it."),
        ([*PIXELS, *P5, "--repetition-penalty", "-1"], "`repetition_penalty` must "),
        ([*PIXELS, *P5, "--max-len-b", "9"], "`max_len_b`: the length of stories is"),
    ],
)
def test_what_cannot_be_generated_is_one_line(tell, files, arguments, message):
    status, output, errors = tell(*(argument.format(**files) for argument in arguments))
    assert (status, output) == (2, "")
    assert len(errors.splitlines()) == 1
    assert message.format(**files) in errors


def test_by_ranking_the_margin_over_other_images_decides(tell, files):
    given = [files["data"], "--split", "valid", "--checkpoint", files["stored"], *LENGTH]
    options = ["--best-of", 4, "--sampling", "--seed", 3, "--jsonl", "--best-by", "ranking"]
    status, printed, errors = tell(*given, *options, "--nbest", 4)
    assert (status, errors) == (0, "")
    found = [json.loads(line) for line in printed.splitlines()]
    store = open_features([str(files["store"])])
    generator = fairseq_mm.from_pretrained(files["stored"], device="cpu")
    sequences = [
        [store.read(key) if key in store else None for key in record["id"].split("\t")]
        for record in found
    ]
    examples = generator.processor.examples(sequences)
    assert len(found) == 4
    for place, record in enumerate(found):
        margins = []
        for entry in record["hypotheses"]:
            tokens = generator.encode(entry["hypothesis"])
            scored = generator.score_tokens([tokens] * len(found), examples)
            sums = [sum(x.positional_scores) for x in scored]
            own = sums.pop(place)
            margins.append((own - max(sums)) / len(tokens))
            assert entry["images_margin"] == pytest.approx(margins[-1], abs=2e-4)
            assert entry["images_rank"] == 1 + sum(x >= own for x in sums)
        assert margins == sorted(margins, reverse=True)
        assert (record["best_by"], record["candidates"]) == ("ranking", 4)
    status, _, errors = tell(*given, *options, "--limit", 1)
    assert status == 2
    assert "there are no others: give more" in errors
