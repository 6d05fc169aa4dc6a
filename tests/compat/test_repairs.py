"""The table of repairs says what is replaced in fairseq, and nothing else is."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf
from toy_data import PACKAGE

from fairseq_mm.compat import activation
from fairseq_mm.compat.activation import Scope
from fairseq_mm.compat.repairs import REPAIRS


def measured(python, **variables):
    """State of a fresh process -> what differs from the state before, what the table says."""
    program = Path(__file__).with_name("host_state.py")
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables}
    done = subprocess.run(
        [python, str(program), str(PACKAGE)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def differences(started_python):
    return measured(started_python)


@pytest.mark.parametrize("state", ["imported", "activated"])
def test_the_table_names_what_is_replaced_and_nothing_else(differences, state):
    found, of_table = differences[state]
    assert found == of_table
    assert len(found) > 10  # the program does see differences


def test_importing_leaves_fairseqs_training_and_generation_as_they_are(differences):
    found = [name for name in differences["imported"][0] if not name.endswith((".eval", ".torch"))]
    kept = ("trainer", "checkpoint_utils", "search", "sequence_generator", "modules", "optim")
    kept = (
        *kept,
        "models",
        "tasks",
        "data.iterators",
        "ngram_repeat_block",
        "file_io",
        "criterions",
    )
    assert [name for name in found if name.startswith(tuple(f"fairseq.{x}." for x in kept))] == []


def test_one_variable_leaves_all_but_safe_loading_out(started_python):
    found = measured(started_python, FAIRSEQ_MM_NO_REPAIRS="1")
    safe = {name for x in REPAIRS if x.scope is Scope.SAFE_LOADING for name in x.replaces}
    assert found["imported"][0]
    assert set(found["imported"][0]) <= safe
    assert found["activated"][0] == []
    assert measured(started_python, FAIRSEQ_MM_NO_REPAIRS="0")["activated"][0]


def test_the_page_shows_the_table(started_python):
    script = PACKAGE.parent / "scripts" / "list_repairs.py"
    done = subprocess.run(
        [started_python, str(script), "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def configuration(**names):
    cfg = OmegaConf.structured(FairseqConfig())
    OmegaConf.set_struct(cfg, False)
    for group, name in names.items():
        cfg[group] = {"_name": name}
    return cfg


@pytest.mark.parametrize(
    ("names", "is_ours"),
    [
        ({"task": "translation", "model": "transformer", "criterion": "cross_entropy"}, False),
        ({}, False),
        ({"task": "no_such_task"}, False),
        ({"task": "multimodal_captioning"}, True),
        ({"task": "translation", "model": "conv_story_wp"}, True),
        ({"task": "language_modeling", "model": "gcnn_lm"}, True),
        ({"task": "translation", "criterion": "chunked_cross_entropy"}, True),
        ({"task": "translation", "optimizer": "adam_l2"}, True),
        ({"task": "translation", "lr_scheduler": "epoch_decay"}, True),
    ],
)
def test_configurations_that_name_something_of_the_package(names, is_ours):
    assert activation.names_ours(configuration(**names)) is is_ours


def test_a_class_of_another_package_that_derives_from_ours_is_ours():
    from fairseq.tasks.translation import TranslationTask

    from fairseq_mm.tasks.multimodal_captioning import MultimodalCaptioningTask

    derived = type("Derived", (MultimodalCaptioningTask,), {"__module__": "elsewhere"})
    assert activation.is_ours(derived)
    assert not activation.is_ours(TranslationTask)
