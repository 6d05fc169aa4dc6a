"""Importing the package changes nothing of other people's programs, and costs little."""

import json
import subprocess
import sys

import pytest

import fairseq_mm

PROBE = """
import json, sys, warnings
{before}
hook, showwarning, filters = sys.excepthook, warnings.showwarning, list(warnings.filters)
modules = set(sys.modules)
import fairseq_mm
imported = set(sys.modules) - modules
{after}
tasks = sys.modules.get("fairseq.tasks")
print(json.dumps({{
    "libraries": sorted({{"torch", "fairseq", "numpy", "h5py", "PIL"}} & imported),
    "registered": tasks is not None and "visual_storytelling" in tasks.TASK_REGISTRY,
    "hook": sys.excepthook is not hook,
    "filters": list(warnings.filters) != filters and not {before!r},
}}))
"""


def probe(python, before="", after=""):
    code = PROBE.format(before=before, after=after)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_alone_loads_no_library():
    assert not any(probe(sys.executable).values())


@pytest.mark.parametrize(
    ("before", "after", "hook"),
    [
        ("import fairseq", "", False),
        ("", "fairseq_mm.register()", False),
        (
            "import argparse, fairseq.utils\n"
            "fairseq.utils.import_user_module(argparse.Namespace(user_dir={package!r}))",
            "",
            False,
        ),
    ],
    ids=["with fairseq", "on request", "after --user-dir"],
)
def test_registers_where_fairseq_is_used(started_python, before, after, hook):
    import fairseq_mm

    package = fairseq_mm.__path__[0]
    found = probe(started_python, before.format(package=package), after)
    assert found["registered"]
    assert found["hook"] is hook


def test_mistakes_under_fairseqs_commands_are_one_line(started_python):
    import fairseq_mm

    code = (
        "import argparse, sys, fairseq.utils\n"
        "hook = sys.excepthook\n"
        f"path = {fairseq_mm.__path__[0]!r}\n"
        "fairseq.utils.import_user_module(argparse.Namespace(user_dir=path))\n"
        "assert sys.excepthook is not hook\n"
        "from fairseq_mm.errors import UserError\n"
        "raise UserError('x.txt:3: must be one.')"
    )
    done = subprocess.run([started_python, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: x.txt:3: must be one."


def test_a_clone_in_the_working_folder_does_not_hide_the_package(tmp_path):
    (tmp_path / "fairseq_mm").mkdir()
    code = "import fairseq_mm; print(fairseq_mm.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == (fairseq_mm.__version__, "")
