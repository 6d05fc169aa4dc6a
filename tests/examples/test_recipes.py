"""The recipes of examples/multimodal_captioning run as a user runs them."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
import torchvision
from forked_shell import ForkedShell
from toy_captioner import save_images
from toy_data import PACKAGE, make_captions_folder
from toy_pos_sequences import write_text_and_tags

from fairseq_mm.cli.main import main
from fairseq_mm.data.feature_store import FeatureStore

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SOURCED = {"sizes.sh", "steps.sh", "systems.sh"}
RECIPES = sorted(path for path in EXAMPLES.glob("*/*.sh") if path.name not in SOURCED)
CAPTIONING = EXAMPLES / "multimodal_captioning"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_recipe_without_arguments_says_what_it_takes(recipe):
    done = subprocess.run(["bash", str(recipe)], capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(rf"# .+: {recipe.name}( [A-Z0-9_]+(/\w+)?)+( \[.*)?\n", done.stderr)


@pytest.fixture
def run_recipe(tmp_path):
    """Runs a recipe of captioning in bash."""

    def adapt(name, words):
        if "--user-dir" in words:  # the folder from which this process has imported the package
            words[words.index("--user-dir") + 1] = str(PACKAGE)
        return words

    shell = ForkedShell(tmp_path, adapt, {"MARGINAL_IMAGES": "5"})

    def call(name, *arguments):
        done = shell.run(shlex.join([str(CAPTIONING / f"{name}.sh"), *map(str, arguments)]))
        assert done.status == 0, done.output[-3000:]
        return done.output

    yield call
    shell.close()


def test_recipes_train_generate_score_and_rank(run_recipe, tmp_path):
    data = make_captions_folder(tmp_path / "data with a space")
    small = ["m_rnn_tiny", "--max-update", "2", "--batch-size", "8", "--num-workers", "0"]
    run_recipe("train_m_rnn", data.name, "saved", *small)
    saved = tmp_path / "saved"
    assert (saved / "checkpoint_best.pt").exists()

    printed = run_recipe(
        "generate_and_score", data.name, "saved", "valid", "--metrics", "bleu,cider,perplexity"
    )
    for decoding in ("greedy", "beam"):
        lines = (saved / f"{decoding}-valid.txt").read_text().splitlines()
        hypotheses = [line.split("\t")[0] for line in lines if line.startswith("H-")]
        assert sorted(hypotheses) == sorted(f"H-{3 * i}" for i in range(7))
        figures = json.loads((saved / f"{decoding}-valid.json").read_text())
        assert {"bleu4", "cider", "perplexity"} <= {score["metric"] for score in figures["scores"]}
    assert printed.index("greedy:") < printed.index("beam:")
    assert "images for a sentence" in printed
    scored = (saved / "reference-valid.txt").read_text().splitlines()
    assert sum(line.startswith("H-") for line in scored) == 21  # captions, not images
    assert (saved / "checkpoint_best.rank-valid" / "ranks.json").exists()


@pytest.mark.slow
def test_own_images_become_models_a_page_and_an_index(run_recipe, tmp_path):
    folder = tmp_path / "own images"
    paths = save_images(folder, 12)
    with open(folder / "captions.jsonl", "w") as file:
        for i, path in enumerate(paths):
            image = {"image": Path(path).name, "captions": [f"a dog number {i % 3} runs"] * 5}
            print(json.dumps(image), file=file)
        print(json.dumps({"image": "missing.jpg", "captions": ["a dog"]}), file=file)
    weights = tmp_path / "weights.pth"
    torch.save(torchvision.models.mobilenet_v2(weights=None).state_dict(), weights)
    program = f"env UPDATES=2 WEIGHTS={weights} {CAPTIONING}/own_images.sh"
    command = f"{program} 'own images/captions.jsonl' 'my models'"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "my models" / "page.html").exists()
    suggested = [line.split(":", 1)[1].strip() for line in done.stdout.splitlines()[-3:]]
    caption = suggested[0].replace("photo.jpg", shlex.quote(paths[0]))
    for line, words in ((caption, "image0.png\t"), (suggested[1], "1\t")):
        shown = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert words in shown.stdout
    again = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert again.stdout.count("done before") == 8


def test_recipes_embed_and_caption_by_pos_sequences(run_recipe, tmp_path):
    data = make_captions_folder(tmp_path / "data")
    for split in ("train", "valid"):
        write_text_and_tags(data, split)
    assert main(["prepare", "upgrade", str(data)]) == 0
    small = ["--max-update", "2", "--batch-size", "8"]
    run_recipe("train_vse", data.name, "vse", "vse_tiny", *small)
    run_recipe("train_sc_nlm", data.name, "sc nlm", "vse", "sc_nlm_tiny", *small)
    arguments = ["--features", data / "features.h5", "--checkpoint", tmp_path / "sc nlm"]
    arguments += ["--embedding", tmp_path / "vse", "--data", data, "--candidates", 9]
    arguments += ["--shortest", 1, "--output", tmp_path / "captions.txt"]
    assert main(["caption", *map(str, arguments)]) == 0
    captions = (tmp_path / "captions.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in captions] == FeatureStore(data / "features.h5").ids
    assert main(["score", str(tmp_path / "captions.txt"), "--data", str(data)]) == 0
