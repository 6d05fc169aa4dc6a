"""Checkpoints made before: each still loads, and gives what it gave.

Outputs that are meant to change are made again by ``make_golden.py --outputs``; checkpoints stay.
"""

import importlib.util
import shutil

import pytest
import torch
from golden_files import DATA, OUTPUTS, read_outputs
from golden_records import differences, failures
from invocations import CHECKPOINT, OUTPUT_FILES, matrix, run
from systems import SYSTEMS

# the outputs were kept with PyTorch 2.14: others draw other numbers and decode images otherwise
OTHER_KERNELS = torch.__version__.split(".")[:2] != ["2", "14"]


@pytest.fixture(scope="session")
def kept():
    return {family: read_outputs(OUTPUTS, family) for family in OUTPUT_FILES}


def entries():
    for family in OUTPUT_FILES:
        for entry in matrix(family):
            marks = [] if entry.is_fast else [pytest.mark.slow]
            yield pytest.param(family, entry, id=f"{entry.system}, {entry.name}", marks=marks)


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_checkpoint_loads(root, system):
    from fairseq import checkpoint_utils

    import fairseq_mm

    fairseq_mm.register()
    path = root / SYSTEMS[system].family / system / CHECKPOINT
    data = root / DATA / SYSTEMS[system].data
    overrides = {"data": str(data)}
    if (data / "train.h5").exists():
        overrides["features"] = f"{data / 'train.h5'}:{data / 'valid.h5'}"
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides=overrides
    )
    assert sum(parameter.numel() for parameter in models[0].parameters()) > 0


@pytest.mark.parametrize(("family", "entry"), entries())
def test_an_output_is_the_one_that_is_kept(root, kept, family, entry):
    if OTHER_KERNELS and not entry.exact:
        pytest.skip(f"random numbers or images are others with PyTorch {torch.__version__}")
    if entry.needs and not (shutil.which(entry.needs) or importlib.util.find_spec(entry.needs)):
        pytest.skip(f"{entry.needs} is not installed")
    expected = kept[family].get(entry.system, {}).get(entry.name)
    assert "\n".join(failures(entry, expected, run(root, entry))) == ""


def test_every_output_that_is_kept_is_compared(kept):
    compared = {
        family: {(entry.system, entry.name) for entry in matrix(family)} for family in OUTPUT_FILES
    }
    for family, outputs in kept.items():
        found = {(system, name) for system, names in outputs.items() for name in names}
        assert found == compared[family]
    assert all(
        records
        for outputs in kept.values()
        for names in outputs.values()
        for records in names.values()
    )


def test_every_system_that_is_registered_has_a_checkpoint():
    """Sizes of a system need none of their own; what it is called without ``_tiny`` does."""
    import fairseq_mm

    fairseq_mm.register()
    from fairseq.models import ARCH_MODEL_REGISTRY

    ours = {
        model.__module__.rpartition(".")[2]
        for model in ARCH_MODEL_REGISTRY.values()
        if model.__module__.startswith("fairseq_mm.")
    }
    trained = {
        ARCH_MODEL_REGISTRY[arch].__module__.rpartition(".")[2]
        for system in SYSTEMS.values()
        for arch in [system.options.split("--arch ")[1].split()[0]]
    }
    assert ours <= trained


def test_differences_name_the_place():
    kept = {"text": "a dog", "score": -1.25, "nearest": {"lines": [1, 2]}}
    assert differences(kept, {**kept, "score": -1.25005}) is None
    assert differences(kept, {**kept, "score": -1.26}) == "score: expected -1.25, found -1.26"
    assert differences(kept, {**kept, "text": "dog"}) == "text: expected 'a dog', found 'dog'"
    other = {**kept, "nearest": {"lines": [1, 3]}}
    assert differences(kept, other) == "nearest: lines: 1: expected 2, found 3"
    assert differences(kept, {"text": "a dog", "score": -1.25}).startswith("nearest: only in what")
    assert differences({"x": [1]}, {"x": [1, 2]}) == "x: expected [1], found [1, 2]"
