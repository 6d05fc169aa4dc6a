"""Builds wheel and sdist, installs each in an empty environment and tries it; `make dist-check`.

    python scripts/check_dist.py [--keep DIR]

The environments get the package alone: its dependencies are lent by the one that runs this script
(a .pth file names its site-packages), because installing PyTorch twice takes many minutes. Missing
or wrong files of the packages are found, and missing requirements are not. ``twine check --strict``
says whether the long description renders.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# `fairseq_mm` must come from the environment, whose first entry the lent site-packages are not
SMOKE_TEST = """
import sys
from importlib.metadata import metadata
from pathlib import Path
import fairseq_mm
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
place = Path(fairseq_mm.__file__).parent
assert place.is_relative_to(sys.prefix), place
assert (place / "py.typed").is_file()
extras = set(metadata("fairseq-mm").get_all("Provides-Extra"))
assert {"eval", "fairseq", "hub", "serve", "tensorboard", "wandb"} <= extras, extras
fairseq_mm.register()
assert "multimodal_captioning" in TASK_REGISTRY
assert {"m_rnn", "conv_story", "glac", "vg_bart"} <= set(ARCH_MODEL_REGISTRY)
assert {"chunked_cross_entropy", "pairwise_ranking"} <= set(CRITERION_REGISTRY)
print(f"fairseq_mm {fairseq_mm.__version__} in {place}")
"""
# `--user-dir fairseq_mm` where no such folder is: fairseq looks beside its own package
USER_DIR_TEST = """
import sys
import fairseq
from fairseq import options
assert fairseq.__file__.startswith(sys.prefix), fairseq.__file__
sys.argv = ["fairseq-train", "--user-dir", "fairseq_mm", "--task", "multimodal_captioning"]
options.get_training_parser()
place = sys.modules["fairseq_mm"].__file__
assert place.startswith(sys.prefix), place
from fairseq.models import ARCH_MODEL_REGISTRY
assert "m_rnn" in ARCH_MODEL_REGISTRY
"""


def run(*command: object, cwd: Path) -> None:
    """
    Raises:
        SystemExit: if the command fails.
    """
    words = [str(word) for word in command]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if subprocess.run(words, cwd=cwd, env=environment).returncode:
        sys.exit(f"failed: {' '.join(words)}")


def files_of(package: Path) -> set[str]:
    """Names of all files of a package, compiled ones left out."""
    return {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def try_package(package: Path, folder: Path) -> None:
    """Installs a wheel or sdist in a new environment below ``folder`` and uses it there."""
    environment = folder / f"venv-{package.suffix[1:]}"
    venv.create(environment)
    python = environment / "bin" / "python"
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    lent = Path(paths["purelib"]) / "lent.pth"
    lent.write_text(f"{sysconfig.get_path('purelib')}\n")
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"),
        *("--no-build-isolation", "--ignore-installed", "--disable-pip-version-check", package),
        cwd=folder,
    )
    run(environment / "bin" / "fairseq-mm", "--version", cwd=folder)
    run(python, "-c", SMOKE_TEST, cwd=folder)
    run(python, "-m", "fairseq_mm", "--version", cwd=folder)
    # as if fairseq had been installed here, too; with a link it would look beside the target
    source = Path(str(importlib.util.find_spec("fairseq").origin)).parent  # type: ignore[union-attr]
    shutil.copytree(source, Path(paths["purelib"]) / "fairseq")
    run(python, "-c", USER_DIR_TEST, cwd=folder)
    missing = files_of(ROOT / "fairseq_mm") - files_of(Path(paths["purelib"]) / "fairseq_mm")
    if missing:
        sys.exit(f"{package.name} lacks {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="Folder for wheel and sdist.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = (args.keep or folder / "dist").resolve()
        run(
            *(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, ROOT),
            cwd=folder,
        )
        packages = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
        run(sys.executable, "-m", "twine", "check", "--strict", *packages, cwd=folder)
        for package in packages:
            try_package(package, folder)
    print(f"{' and '.join(package.name for package in packages)}: both install and run")


if __name__ == "__main__":
    main()
