"""`fairseq-mm inspect` of visual stories: whose story, data, page, messages."""

import json
import re

import pytest
from numerics import assert_close
from toy_captioner import save_images
from toy_data import write_store
from toy_visual_stories import save_pixel_story_model, save_story_model, write_story_split

from fairseq_mm import from_pretrained
from fairseq_mm.analysis.visual_story_inspection import inspect_visual_story
from fairseq_mm.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints by architecture, a data folder with a store of grids beside, images."""
    folder = tmp_path_factory.mktemp("inspect_images")
    for arch in ("transtory_full_tiny", "glac_tiny", "transtory_xl_tiny"):
        save_story_model(folder / f"{arch}.pt", arch)
    save_story_model(folder / "grid.pt", rows=9, options={"non_local": True, "slices": 3})
    data = write_story_split(folder / "data", missing="p1_2")
    keys = [f"p{i}_{k}" for i in range(4) for k in range(5) if (i, k) != (1, 2)]
    write_store(data / "grids.h5", keys, rows=9)
    save_pixel_story_model(folder / "pixel", arch="transtory_full_tiny")
    save_images(folder / "images")
    return folder


@pytest.fixture
def inspect(folder, tmp_path, capsys):
    """Runs the command; returns exit status, the entries, stderr."""

    def run(*arguments, model="transtory_full_tiny.pt"):
        file = tmp_path / "stories.jsonl"
        file.unlink(missing_ok=True)
        command = ["inspect", *arguments, "--checkpoint", folder / model, "--output", file]
        command += ["--device", "cpu"]  # as what is compared
        status = main([*map(str, command)])
        entries = []
        if file.exists():
            entries = [json.loads(line) for line in file.read_text().splitlines()]
        return status, entries, capsys.readouterr().err

    return run


def of_line(folder, line, model, *, store="features.h5"):
    """What the model itself sees in a line of the data folder."""
    from fairseq_mm.data.feature_store import open_features

    generator = from_pretrained(folder / model, device="cpu")
    features = open_features([str(folder / "data" / store)])
    keys = (folder / "data/valid.visual_ids").read_text().splitlines()[line].split("\t")
    rows = [None if key == "p1_2" else features.read(key) for key in keys]
    story = (folder / "data/text/valid.txt").read_text().splitlines()[line]
    sentences = [part.split() for part in story.split("<sent>")]
    (example,) = generator.processor.examples([rows])
    return inspect_visual_story(generator, example, sentences), keys, generator


def test_lines_of_a_split_are_inspected_as_they_stand(inspect, folder):
    status, entries, _ = inspect(folder / "data", "--lines", "5,2")
    assert status == 0
    for entry, line in zip(entries, (5, 2)):
        found, keys, _ = of_line(folder, line, "transtory_full_tiny.pt")
        assert entry["id"] == "\t".join(keys)
        assert entry["item"] == line
        assert entry["images"] == ["-" if key == "p1_2" else key for key in keys]
        assert entry["generated"] is False
        assert [word["word"] for word in entry["words"]] == found.words
        assert [word["sentence"] - 1 for word in entry["words"]] == found.sentences
        assert " <sent> ".join(entry["sentences"]).split() == found.words[:-1]
        weights = [word["image_weights"] for word in entry["words"]]
        assert_close(weights, found.image_weights)
        assert_close([word["log_prob"] for word in entry["words"]], found.log_probs)
        assert all(word["known"] for word in entry["words"])
        assert "positions" not in entry
        assert "slice_weights" not in entry["words"][0]
    masked = [word["image_weights"][2] for word in entries[1]["words"]]
    assert masked == [0] * len(masked)
    # the first line of valid, by default, and a data folder by its option
    assert inspect("--data", folder / "data")[1] == inspect(folder / "data", "--line", 0)[1]


def test_slices_and_positions_are_shown_where_the_model_has_them(inspect, folder):
    grids = ("--features", folder / "data/grids.h5", "--line", 0)
    status, (entry,), _ = inspect(folder / "data", *grids, model="grid.pt")
    assert status == 0
    found, _, _ = of_line(folder, 0, "grid.pt", store="grids.h5")
    weights = [word["slice_weights"] for word in entry["words"]]
    assert_close(weights, found.slice_weights)
    assert "image_weights" not in entry["words"][0]
    assert [x["image"] for x in entry["positions"]] == [1, 2, 3, 4, 5]
    for x, similarities in zip(entry["positions"], found.similarities):
        assert x["grid"] == [3, 3]
        row, column = x["position"]
        start = row * 3 + column
        assert similarities.var(1).argmax() == start
        order = sorted(range(9), key=lambda j: -similarities[start][j])[:5]
        assert [t["position"] for t in x["top"]] == [[j // 3, j % 3] for j in order]
        for t, j in zip(x["top"], order):
            assert_close(t["similarity"], similarities[start, j])
    # a missing image has no grid
    _, (entry,), _ = inspect(folder / "data", *grids[:2], "--line", 2, model="grid.pt")
    assert [x["image"] for x in entry["positions"]] == [1, 2, 4, 5]


def test_chosen_lines_of_told_stories_are_inspected(inspect, folder, tmp_path):
    keys = (folder / "data/valid.visual_ids").read_text().splitlines()
    texts = (folder / "data/text/valid.txt").read_text().splitlines()
    told = [
        json.dumps({"id": x, "images": keys[x].split("\t"), "hypothesis": texts[x]}) for x in (4, 0)
    ]
    stories = tmp_path / "hypotheses.jsonl"
    stories.write_text(f"{told[0]}\n  \n{told[1]}\n")
    store = ("--features", folder / "data/features.h5")
    status, entries, _ = inspect(stories, *store, "--lines", "1,0,1")
    assert status == 0
    assert [(entry["item"], entry["id"]) for entry in entries] == [(1, "0"), (0, "4")]
    (expected,) = inspect(folder / "data", "--line", 0)[1]
    assert entries[0]["words"] == expected["words"]


def test_the_page_shows_images_words_and_arrows(inspect, folder, tmp_path):
    for i in range(5):
        (tmp_path / "images").mkdir(exist_ok=True)
        source = folder / f"images/image{i}.png"
        (tmp_path / f"images/p0_{i}.png").write_bytes(source.read_bytes())
    page = tmp_path / "page.html"
    options = ("--features", folder / "data/grids.h5", "--html", page)
    data = ("--data", folder / "data", "--line", "0,1,2")
    images = ("--images", tmp_path / "images")
    status, _, _ = inspect(*data, *options, *images, model="grid.pt")
    assert status == 0
    html = page.read_text()
    for number in (0, 1, 2):
        assert f"<h2>Line {number} of valid</h2>" in html
    assert html.count("What the non-local block relates") == 3
    assert html.count("Attention to the slices of an image&#39;s vector") == 3
    assert "Attention to the images" not in html
    assert html.count("data:image/jpeg") == 2 * 10  # in the strip and as a named image
    assert html.count("<svg") == 14  # an image of the third line is missing
    assert html.count('class="photo boxed"') == 4
    assert "glac_tiny, " in html
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|@import""", html)
    # without images
    assert inspect(*data, *options, model="grid.pt")[0] == 0
    assert "data:image" not in page.read_text()


DATA, STORE = "data", "data/features.h5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DATA, "--words", 3], r"--words: is no option of models of images, such as"),
        ([DATA, "--images", DATA], r"--images: needs --html beside it"),
        (
            [DATA, "--weights", STORE],
            r"--weights and --data: leave one of the two out",
        ),
        ([DATA, "--line", "8"], r"--lines must be from 0 to 7 \(.*valid.*\), but is 8"),
        (["--data", STORE], r"--data|features.h5"),
        (["a.jpg"], r"a.jpg.*[Nn]o such file"),
        (
            [DATA, "--features", "data/grids.h5"],
            r"features must be \[1, 5\], but are \[9, 5\]",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(inspect, folder, arguments, message):
    names = {DATA, STORE, "data/grids.h5"}
    status, _, err = inspect(*[folder / x if x in names else x for x in arguments])
    assert status == 2
    (line,) = [x for x in err.splitlines() if x.startswith("fairseq-mm inspect:")]
    assert re.search(message, line)
