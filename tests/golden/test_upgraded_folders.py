"""Data folders of version 0.2 give what they gave when they have become records."""

import shutil

import pytest
from golden_commands import generate
from golden_files import DATA
from invocations import CHECKPOINT
from systems import SYSTEMS, TASKS, VISUAL_STORY

from fairseq_mm.prepare.upgrade import upgrade_folder

CHOSEN = ("m_rnn", "glac", "conv_story_gated", "mffg_rnn", "pointer_generator")


@pytest.mark.parametrize("name", CHOSEN)
def test_generation_is_the_same(root, tmp_path, name):
    system, folder = SYSTEMS[name], tmp_path / "data"
    shutil.copytree(root / DATA / system.data, folder)
    options = ("--beam", 1, "--sampling", "--sampling-topk", 10, "--seed", 5, "--cpu")
    options += ("--gen-subset", "valid")
    length = "--max-words-per-sentence" if system.kind == VISUAL_STORY else "--max-len-b"
    path = root / system.family / name / CHECKPOINT
    arguments = (
        *TASKS[system.kind].split()[:2],
        "--path",
        path,
        "--gen-subset",
        "valid",
        *options,
        length,
        9,
    )

    def sampled():
        lines = generate(folder, *arguments)
        return sorted(line for line in lines if line[:2] in ("S-", "T-", "H-", "D-", "P-"))

    before = sampled()
    assert upgrade_folder(folder)
    assert sampled() == before
    assert len(before) > 10
