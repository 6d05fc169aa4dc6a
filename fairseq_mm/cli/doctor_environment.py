"""Checks Python, packages, programs and device for ``fairseq-mm doctor``, and defines findings."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import NamedTuple, Optional

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
EXTRAS = {
    "eval": ("pycocoevalcap", "METEOR and Content F1"),
    "timm": ("timm", "extract --model timm:NAME"),
    "hf": ("transformers", "extract --model hf:NAME"),
    "clip": ("open_clip", "extract --model open_clip:NAME"),
    "heif": ("pillow_heif", "HEIC images"),
    "video": ("av", "extract and summarize with videos"),
    "convert": ("safetensors", "convert of Hugging Face's BART and T5"),
    "hub": ("huggingface_hub", "export, push and models of the Hugging Face hub"),
    "sharding": ("fairscale", "--zero-sharding os"),
}
# compiled parts of fairseq without which it reads no data
FAIRSEQ_EXTENSIONS = ("fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast")


class Finding(NamedTuple):
    """One line of the report of ``fairseq-mm doctor``.

    Attributes:
        level: ``ok``, ``note`` or ``PROBLEM``.
        subject: Name of what was checked, such as a package or a path.
        text: Result of the check.
        remedy: What the user can do; empty for ``ok``.
    """

    level: str
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def note(subject: str, text: str, remedy: str) -> Finding:
    return Finding("note", subject, text, remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    return Finding("PROBLEM", subject, text, remedy)


def describe_error(error: BaseException) -> str:
    """Return the class name and the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def check_python() -> Finding:
    version = sys.version_info[:2]
    text = f"{platform.python_version()} at {sys.executable}"
    if OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return ok("Python", text)
    wanted = " to ".join(".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    return problem("Python", text, f"use Python {wanted}")


def check_package(name: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The missing package may be a dependency of this one; error.name says which.
        return problem(name, f"{error}", f"pip install {error.name or name}")
    except Exception as error:  # for example, a package built for another CUDA
        text = f"does not import ({describe_error(error)})"
        return problem(name, text, f"pip install --force-reinstall {name}")
    return ok(name, getattr(module, "__version__", "of unknown version"))


def torchvision_for(torch_version: str) -> Optional[str]:
    """Return the torchvision version for a torch version, such as 0.15 for 2.0.

    The result is None if the version of torch cannot be parsed.
    """
    try:
        major, minor = (int(number) for number in torch_version.split(".")[:2])
    except ValueError:
        return None
    return {1: f"0.{minor + 1}", 2: f"0.{minor + 15}"}.get(major)


def check_torchvision_fits() -> Iterator[Finding]:
    try:
        import torch
        import torchvision
    except Exception:  # check_package reports it
        return
    wanted = torchvision_for(torch.__version__)
    both = f"torch {torch.__version__} and torchvision {torchvision.__version__}"
    if wanted not in (None, ".".join(torchvision.__version__.split(".")[:2])):
        remedy = f"pip install 'torchvision=={wanted}.*'"
        yield problem("torchvision", f"{both} do not match", remedy)
    # The part after + names the CUDA version, as in 2.14.1+cu130; both must be for the same one.
    builds = [version.partition("+")[2] for version in (torch.__version__, torchvision.__version__)]
    if all(builds) and builds[0] != builds[1]:
        remedy = f"install both from the index https://download.pytorch.org/whl/{builds[0]}"
        yield problem("torchvision", f"{both} are builds for different devices", remedy)
    try:
        torch.zeros(2).numpy()
    except RuntimeError as error:  # a torch built for numpy 1, such as 1.12, beside numpy 2
        text = f"torch cannot use it ({describe_error(error)})"
        yield problem("numpy", text, "pip install 'numpy<2'")


def check_fairseq() -> Iterator[Finding]:
    """Yield a problem if fairseq is missing, broken, incomplete or installed twice."""
    installed = {}
    for name in ("fairseq", "fairseq-fixed"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    build = " and ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) == 2:
        # Stock fairseq's dataclasses have mutable defaults, which Python 3.11 refuses.
        keep = "fairseq-fixed" if sys.version_info >= (3, 11) else "fairseq"
        remedy = f"pip uninstall -y fairseq fairseq-fixed, then pip install {keep}"
        yield problem("fairseq", f"{build} are both installed, in the same folder", remedy)
        return
    try:
        import fairseq_mm

        fairseq_mm.register()
    except ImportError as error:  # its message names the remedy
        yield problem("fairseq", build or "not installed", str(error))
        return
    except Exception as error:
        text = f"{build or 'of unknown origin'} does not import ({describe_error(error)})"
        remedy = "pip uninstall -y fairseq fairseq-fixed, then pip install 'fairseq-mm[fairseq]'"
        yield problem("fairseq", text, remedy)
        return
    yield ok("fairseq", f"{build or 'of unknown origin'} imports")
    for name in FAIRSEQ_EXTENSIONS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            text = f"its compiled part {name} is missing ({error})"
            distribution = next(iter(installed), "fairseq")
            remedy = "install g++, then pip install --force-reinstall --no-deps"
            yield problem("fairseq", text, f"{remedy} {distribution}")


def check_program(name: str, purpose: str, remedy: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return note(name, f"not found; it is for {purpose} only", remedy)
    return ok(name, path)


def check_extra(extra: str) -> Finding:
    module, purpose = EXTRAS[extra]
    if importlib.util.find_spec(module) is None:  # an import can take seconds
        remedy = f"pip install 'fairseq-mm[{extra}]'"
        return note(module, f"not installed; it is for {purpose}", remedy)
    return ok(module, f"installed ({purpose})")


def check_device() -> Finding:
    try:
        import torch

        if torch.cuda.is_available():
            names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            return ok("device", ", ".join(names))
        if torch.version.cuda and shutil.which("nvidia-smi"):  # the driver installs it
            cuda = torch.version.cuda
            text = f"there is an NVIDIA GPU, but torch (CUDA {cuda}) cannot use it"
            remedy = "update the driver, or install a torch for its CUDA version"
            return problem("device", text, remedy)
    except Exception as error:
        return note("device", f"unknown ({describe_error(error)})", "repair torch first")
    return ok("device", f"CPU, {os.cpu_count()} cores")
