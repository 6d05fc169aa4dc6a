"""The shell and Python blocks of each page of the documentation run, in their order, on small data.

What is made small: a training is two updates, stories are short, images and clips have 32 pixels a
side, and the weights of extractors are random. A block that needs more is marked above it, such as
<!-- needs: GPU -->.
"""

import pytest
from forked_shell import ForkedShell
from pages import DOCS, PAGES, README, ROOT, RUN, RUN_WHOLE, blocks_of, name_of
from small_data import (
    put_weights_beside_checkpoints,
    write_checkpoints,
    write_parallel_text,
    write_released_embeddings,
    write_small_data,
    write_videos_and_weights,
)
from toy_data import PACKAGE

UPDATES = ("--max-update", "2", "--num-workers", "0")
SMALL_IMAGES = ("--size", "32", "--resize-size", "32", "--workers", "0", "--batch-size", "8")
SHORT = {
    "hierarchical_story": ("--min-len", "12", "--max-len-b", "12"),
    "multimodal_captioning": ("--max-len-b", "8"),
    "video_summarization": ("--max-len-b", "8"),
    "visual_storytelling": ("--max-words-per-sentence", "5"),
}
# a page whose commands need the output of a block on another page, and words of that block
BEGINS_WITH = {DOCS / "training.md": (DOCS / "quickstart.md", "--output data-bin/flickr8k")}
PREPARED = {
    README: put_weights_beside_checkpoints,
    DOCS / "api.md": write_checkpoints,
    DOCS / "fairseq_preprocess.md": write_parallel_text,
    DOCS / "generation.md": write_checkpoints,
    DOCS / "sharing.md": write_checkpoints,
    DOCS / "quickstart.md": put_weights_beside_checkpoints,
    DOCS / "tasks/image_sentence_retrieval.md": write_released_embeddings,
    DOCS / "your_data.md": write_videos_and_weights,
}


def made_small(name, words):
    if "--user-dir" in words:  # the folder from which this process has imported the package
        words[words.index("--user-dir") + 1] = str(PACKAGE)
    words = [f"common.user_dir={PACKAGE}" if "common.user_dir=" in x else x for x in words]
    if name == "fairseq-train":
        return [*words, *UPDATES]
    if name == "fairseq-hydra-train":
        return [*words, "optimization.max_update=2", "dataset.num_workers=0"]
    if name == "fairseq-mm" and words[0] == "extract":
        random = "none" if "r3d_18" in words else "mobilenet_v2.pt"
        return [*words, *SMALL_IMAGES, "--weights", random]
    if name == "fairseq-generate":
        return [*words, *SHORT.get(words[words.index("--task") + 1], ())]
    return words


@pytest.fixture
def folder(tmp_path):
    """A checkout's folder as the commands see it."""
    for name in ("examples", "scripts", "fairseq_mm"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def runnable(page):
    blocks = () if page in RUN_WHOLE else blocks_of(page)
    return [block for block in blocks if block.language in RUN]


def run_blocks(page, folder):
    shell = ForkedShell(folder, made_small, write_small_data(folder))
    PREPARED.get(page, lambda folder: None)(folder)
    blocks = [block for block in runnable(page) if block.needs is None]
    if page in BEGINS_WITH:
        source, words = BEGINS_WITH[page]
        blocks.insert(0, next(block for block in runnable(source) if words in block.text))
    try:
        for block in blocks:
            text = block.text
            if block.language == "python":
                (folder / "block.py").write_text(text)
                text = "python block.py"
            done = shell.run(text)
            assert done.status == 0, f"{block.name}:\n{block.text}\n{done.output[-4000:]}"
    finally:
        shell.close()


WITH_BLOCKS = [page for page in PAGES if any(block.needs is None for block in runnable(page))]


# trainings of models that other pages and recipes of the suite train as well
LONG = {"docs/tasks/hierarchical_story", "docs/tasks/visual_storytelling"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (name_of(page) in LONG))
        for page in WITH_BLOCKS
    ],
)
def test_blocks_run_in_their_order(page, folder):
    run_blocks(page, folder)


def test_most_blocks_are_run():
    marked = [block.needs is not None for page in PAGES for block in runnable(page)]
    assert marked.count(False) > marked.count(True)
