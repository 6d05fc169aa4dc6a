"""The benchmark of smaller weights scores texts in steps, with the weights of generation."""

import json
import sys
from pathlib import Path

import pytest
from toy_story_models import make_story_folder, train_stories

from fairseq_mm.modules import packed_weights

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import small_weights

needs_int8 = pytest.mark.skipif(
    not packed_weights.can_pack("int8"), reason="the processor has neither VNNI nor AMX"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and checkpoints of a story model and a language model of prompts."""
    folder = tmp_path_factory.mktemp("small-weights")
    data = make_story_folder(folder / "data")
    return {
        "stories": (data, train_stories(data, folder / "a", "conv_story_tiny")),
        "prompts": (
            data / "prompts",
            train_stories(data / "prompts", folder / "b", "gcnn_lm_tiny"),
        ),
    }


@pytest.fixture
def measured(trained, monkeypatch):
    """Measures the perplexity of one of the models, whose matrices are all packed."""
    monkeypatch.setattr(packed_weights, "_MIN_ELEMENTS", 1)
    monkeypatch.setattr(packed_weights, "_registry", {})

    def measure(name, dtype):
        data, checkpoint = trained[name]
        return small_weights.measure_perplexity(str(data), str(checkpoint), "valid", dtype, 3)

    return measure


@pytest.mark.parametrize("name", ["stories", "prompts"])
def test_steps_have_the_perplexity_of_the_command(measured, trained, name, run_command, tmp_path):
    found = measured(name, "float32")
    data, checkpoint = trained[name]
    if name == "prompts":
        data = data.parent
    result = tmp_path / "result.json"
    status, _, _ = run_command("perplexity", data, "--checkpoint", checkpoint, "--json", result)
    assert status == 0
    expected = json.loads(result.read_text())["perplexities"]["all"]
    assert found["tokens"] == expected["tokens"]
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-4)
    assert found["matrices"] > 3


@needs_int8
def test_small_weights_round_a_little(measured):
    exact, rounded = (measured("stories", dtype) for dtype in ("float32", "int8"))
    assert exact["perplexity"] != rounded["perplexity"]
    assert rounded["perplexity"] == pytest.approx(exact["perplexity"], rel=0.05)
    assert rounded["matrices"] == exact["matrices"]
    assert 0.1 < rounded["share"] < 1
