"""Documented commands of fairseq's lose no example to a dropped last batch.

fairseq drops one whose size is no multiple of ``--required-batch-size-multiple``, 8 by default. The
plugin's own tasks keep it.
"""

import re
from pathlib import Path

from fairseq.tasks import TASK_REGISTRY

import fairseq_mm.tasks  # noqa: F401

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path
    for pattern in (
        "README.md",
        "docs/**/*.md",
        "examples/*/*.sh",
        "scripts/*",
        "fairseq_mm/cli/*",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.suffix in (".md", ".sh", ".py")
]
OPTION = "--required-batch-size-multiple 1"
# fairseq-interactive and fairseq-eval-lm make batches without the option
COMMAND = re.compile(r"^ *(?:[A-Z_]+=\S+ )*fairseq-(?:train|generate|validate) (.* --.*)$", re.M)
SHELL_LIST = re.compile(r'"\$\{(\w+)\[@\]\}"')


def commands(text, lists=""):
    """Arguments of the commands, with the shell's lists in the places where they are used."""
    known = dict(re.findall(r"(\w+)=\(([^()]*)\)", f"{lists}\n{text}"))
    for arguments in COMMAND.findall(text.replace("\\\n", " ")):
        yield SHELL_LIST.sub(lambda match: known.get(match[1], match[0]), arguments)


def is_safe(arguments):
    task = re.search(r"--task (\S+)", arguments)
    # data sets of the plugin's tasks keep the last batch, see tests/data/test_multimodal_dataset.py
    # docs/add_task.md's own task is not registered here; its data set is fairseq_mm's
    is_own = task is not None and (
        task[1] not in TASK_REGISTRY or TASK_REGISTRY[task[1]].__module__.startswith("fairseq_mm")
    )
    return OPTION in arguments or is_own


def test_documented_commands_use_every_example():
    found, unsafe = 0, []
    for path in DOCUMENTS:
        lists = "\n".join(file.read_text() for file in path.parent.glob("*.sh"))
        for arguments in commands(path.read_text(), lists):
            found += 1
            if not is_safe(arguments):
                unsafe.append(f"{path}: {arguments}")
    assert not unsafe, f"need {OPTION}: {unsafe}"
    assert found > 15
