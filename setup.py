"""Packaging of fairseq_mm; tool settings are in pyproject.toml, versions in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (HERE / "fairseq_mm/__init__.py").read_text())[1]
REPOSITORY = "https://github.com/fairseq-mm/fairseq_mm"


def long_description() -> str:
    """README.md with links that hold outside the repository."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[(.+?)\]\((?!https?:)", rf"![\1]({REPOSITORY}/raw/main/", text)
    return re.sub(r"\]\((?!https?:|#)", f"]({REPOSITORY}/blob/main/", text)


EXTRAS = {
    # an existing set-up's fairseq is left alone unless this extra is asked for
    "fairseq": [
        "fairseq-fixed>=0.12.3.1; python_version >= '3.11'",
        "fairseq==0.12.2; python_version < '3.11'",
    ],
    "eval": ["pycocoevalcap>=1.2"],
    # networks of `extract`
    "timm": ["timm>=1.0.9"],
    # metrics of `score` with models
    "models": ["torchmetrics>=1.8", "transformers>=4.57"],
    "heif": ["pillow-heif>=0.10"],
    "video": ["av>=10"],
    # protobuf: transformers reads T5's sentencepiece model with it
    "convert": ["protobuf>=4", "safetensors>=0.4", "tokenizers>=0.15", "transformers>=4.40"],
    "tag": ["nltk>=3.8"],  # scripts/tag_pos.py; spaCy will do as well
    "lm": ["kenlm>=0.2"],  # binary files of KenLM
    "sharding": ["fairscale>=0.4.13"],  # --zero-sharding os
    "hub": ["huggingface_hub>=0.34", "safetensors>=0.4"],  # export, push, models by name
    "report": ["jinja2>=3.0", "matplotlib>=3.6"],  # HTML pages and figures
    "serve": ["gradio>=6"],  # page and API
    "bench": ["ctranslate2>=4", "pyyaml", "transformers>=4.40"],  # peers in benchmarks/run.py
    # fairseq's --tensorboard-logdir; tensorboard shows what tensorboardX writes
    "tensorboard": ["tensorboard>=2.10", "tensorboardX>=2.5"],
    "wandb": ["wandb>=0.15"],  # fairseq's --wandb-project
    "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.25"],
    "dev": [
        *("build>=1", "fairscale>=0.4.13", "hypothesis", "mypy", "pre-commit", "pytest>=7"),
        *("pytest-xdist>=3", "tensorboardX>=2.5"),
        *("ipykernel>=6", "nbclient>=0.8"),  # examples/quickstart.ipynb
        *("ruff", "twine>=5", "websockets>=13"),
    ],
}

setup(
    name="fairseq-mm",
    version=VERSION,
    description="Multimodal and long-form generation for fairseq",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The fairseq_mm developers",
    url=REPOSITORY,
    project_urls={
        "Documentation": "https://fairseq-mm.github.io/fairseq_mm/",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
    keywords=[
        *("fairseq", "image captioning", "image-text retrieval", "visual storytelling"),
        *("story generation", "video summarization", "multimodal", "text generation"),
    ],
    python_requires=">=3.10,<3.14",
    # for `pip install -e`: with it, setuptools puts the clone on sys.path. Otherwise, in the folder
    # that holds a clone named fairseq_mm, Python takes the clone itself for a namespace package
    package_dir={"": "."},
    packages=find_packages(include=["fairseq_mm", "fairseq_mm.*"]),
    package_data={
        "fairseq_mm": ["py.typed"],
        "fairseq_mm.report": ["templates/*"],
    },
    install_requires=[
        "h5py>=3.1",
        "numpy>=1.21",
        "pillow>=9.1",
        "sacrebleu>=2.0",
        "sentencepiece>=0.1.96",
        "torch>=2.6",
        "torchvision>=0.21",
        "tqdm>=4.60",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["fairseq-mm = fairseq_mm.cli.main:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
        "Typing :: Typed",
    ],
)
