"""fairseq's own tasks train and generate the same with the plugin and without it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from toy_data import PACKAGE

# soundfile is no dependency; fairseq's audio data set asks it for the samples of a file
STAND_IN = """
import numpy

def read(path, dtype):
    return numpy.load(path).astype(dtype), 100
"""


@pytest.fixture(scope="module")
def run(started_python, tmp_path_factory):
    """Results of tests/compat/host_training.py by state."""

    def train_and_generate(state):
        folder = tmp_path_factory.mktemp("host")
        (folder / "soundfile.py").write_text(STAND_IN)
        program = Path(__file__).with_name("host_training.py")
        path = os.pathsep.join([str(PACKAGE.parent), str(folder)])
        # without the plugin, fairseq reads no checkpoint with PyTorch 2.6 and newer otherwise
        variables = {"PYTHONPATH": path, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
        done = subprocess.run(
            [started_python, str(program), str(folder), state],
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return train_and_generate


@pytest.fixture(scope="module")
def plain(run):
    results = run("plain")
    assert not results.pop("modules")
    return results


def test_commands_with_the_plugin_compute_what_they_compute_without_it(run, plain):
    results = run("user-dir")
    assert results.pop("modules")
    assert results == plain
