"""Checks the installation, a data folder, feature stores and a checkpoint, and names remedies.

  fairseq-mm doctor
  fairseq-mm doctor --data data/flickr8k
  fairseq-mm doctor --data data/flickr8k --checkpoint checkpoints/checkpoint_best.pt

One line a finding: "ok", "note" (something optional is missing) or "PROBLEM", each of the last two
with its remedy behind "->". The exit status is 0 if there is no problem, 2 otherwise. It runs where
fairseq, or any other package, is missing or broken.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import sys
import warnings
from collections import Counter
from typing import Any, Callable, NamedTuple, Optional

from fairseq_mm.errors import EXIT_STATUS, UserError

OLDEST_PYTHON, NEWEST_PYTHON = (3, 9), (3, 12)
SPLITS = ("train", "valid", "test")
# extra -> the module that it brings, what for
EXTRAS = {
    "eval": ("pycocoevalcap", "METEOR"),
    "clip": ("open_clip", "extract --model open_clip:NAME"),
    "heif": ("pillow_heif", "HEIC pictures"),
}
# compiled parts of fairseq without which it reads no data
FAIRSEQ_EXTENSIONS = ("fairseq.data.data_utils_fast", "fairseq.data.token_block_utils_fast")


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        level: ``ok``, ``note`` or ``PROBLEM``.
        subject: what was looked at.
        text: what was found.
        remedy: what to do.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="data folder made by prepare")
    parser.add_argument(
        "--features",
        metavar="STORE",
        help="feature store, or several separated by "
        f"{os.pathsep!r} (default: features.h5 in the data folder)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="checkpoint, or folder with checkpoint_best.pt or checkpoint_last.pt",
    )


def run(args: argparse.Namespace) -> int:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    report = _Report()
    report.show(check_python())
    for name in ("numpy", "h5py", "torch", "torchvision"):
        report.show(check_package(name))
    report.show(*check_torchvision_fits())
    report.show(*check_fairseq())
    report.show(check_program("java", "METEOR", "apt install default-jre-headless"))
    report.show(check_program("g++", "building fairseq", "apt install g++"))
    report.show(*(check_extra(extra) for extra in EXTRAS))
    report.show(check_device())
    store = None
    if args.features or args.data:
        paths = (args.features or os.path.join(args.data, "features.h5")).split(os.pathsep)
        store, findings = check_features(paths)
        report.show(*findings)
    if args.data:
        report.show(*check_data(args.data, store))
    if args.checkpoint:
        report.show(*check_checkpoint(args.checkpoint, args.data, store))
    return report.conclude()


class _Report:
    """Prints findings as they come, so that a crash shows what it came after."""

    def __init__(self) -> None:
        self.num_problems = 0

    def show(self, *findings: Finding) -> None:
        for finding in findings:
            self.num_problems += finding.level == "PROBLEM"
            remedy = f" -> {finding.remedy}" if finding.remedy else ""
            line = f"{finding.level:<8} {finding.subject}: {finding.text}{remedy}"
            print(" ".join(line.splitlines()), flush=True)

    def conclude(self) -> int:
        if self.num_problems == 0:
            print("no problem found")
            return 0
        plural = "" if self.num_problems == 1 else "s"
        print(f"{self.num_problems} problem{plural} found")
        return EXIT_STATUS


def _reason(error: BaseException) -> str:
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
        return problem(name, f"{error}", f"pip install {error.name or name}")
    except Exception as error:  # a package built for another Python, numpy or CUDA
        return problem(
            name, f"does not import ({_reason(error)})", f"pip install --force-reinstall {name}"
        )
    return ok(name, getattr(module, "__version__", "of unknown version"))


def torchvision_for(torch_version: str) -> Optional[str]:
    """The series of torchvision that was released with a torch: 0.13 for 1.12, 0.15 for 2.0."""
    try:
        major, minor = (int(number) for number in torch_version.split(".")[:2])
    except ValueError:
        return None
    return {1: f"0.{minor + 1}", 2: f"0.{minor + 15}"}.get(major)


def check_torchvision_fits() -> list[Finding]:
    try:
        import torch
        import torchvision
    except Exception:  # reported for each of them already
        return []
    findings = []
    wanted = torchvision_for(torch.__version__)
    found = ".".join(torchvision.__version__.split(".")[:2])
    both = f"torch {torch.__version__} and torchvision {torchvision.__version__}"
    if wanted is not None and wanted != found:
        findings.append(
            problem("torchvision", f"{both} do not match", f"pip install 'torchvision=={wanted}.*'")
        )
    builds = [version.partition("+")[2] for version in (torch.__version__, torchvision.__version__)]
    if all(builds) and builds[0] != builds[1]:
        findings.append(
            problem(
                "torchvision",
                f"{both} are builds for different devices",
                f"install both from the index https://download.pytorch.org/whl/{builds[0]}",
            )
        )
    try:
        torch.zeros(2).numpy()
    except RuntimeError as error:
        findings.append(
            problem("numpy", f"torch cannot use it ({_reason(error)})", "pip install 'numpy<2'")
        )
    return findings


def check_fairseq() -> list[Finding]:
    """Which build is installed, whether it imports and is whole, and whose names it knows."""
    installed = {}
    for name in ("fairseq", "fairseq-fixed"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    build = " and ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) == 2:
        keep = "fairseq-fixed" if sys.version_info >= (3, 11) else "fairseq"
        return [
            problem(
                "fairseq",
                f"{build} are both installed, in the same folder",
                f"pip uninstall -y fairseq fairseq-fixed, then pip install {keep}",
            )
        ]
    try:
        import fairseq_mm

        fairseq_mm.register()
    except ImportError as error:  # names the remedy
        return [problem("fairseq", build or "not installed", str(error))]
    except Exception as error:
        return [
            problem(
                "fairseq",
                f"{build or 'of unknown origin'} does not import ({_reason(error)})",
                "pip uninstall -y fairseq fairseq-fixed, then pip install 'fairseq-mm[fairseq]'",
            )
        ]
    findings = [ok("fairseq", f"{build or 'of unknown origin'} imports")]
    for name in FAIRSEQ_EXTENSIONS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            findings.append(
                problem(
                    "fairseq",
                    f"its compiled part {name} is missing ({error})",
                    "install g++, then pip install --force-reinstall --no-deps "
                    f"{next(iter(installed), 'fairseq')}",
                )
            )
    return findings


def check_program(name: str, purpose: str, remedy: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return note(name, f"not found; it is for {purpose} only", remedy)
    return ok(name, path)


def check_extra(extra: str) -> Finding:
    module, purpose = EXTRAS[extra]
    if importlib.util.find_spec(module) is None:
        return note(
            module, f"not installed; it is for {purpose}", f"pip install 'fairseq-mm[{extra}]'"
        )
    return ok(module, f"installed ({purpose})")


def check_device() -> Finding:
    try:
        import torch

        if torch.cuda.is_available():
            names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            return ok("device", ", ".join(names))
        if torch.version.cuda and shutil.which("nvidia-smi"):
            return problem(
                "device",
                f"there is an NVIDIA GPU, but torch (CUDA {torch.version.cuda}) cannot use it",
                "update the driver, or install a torch for its CUDA version",
            )
    except Exception as error:
        return note("device", f"unknown ({_reason(error)})", "repair torch first")
    return ok("device", f"CPU, {os.cpu_count()} cores")


def check_features(paths: list[str]) -> tuple[Any, list[Finding]]:
    """The stores, opened as one, and what was found; None where they cannot be."""
    subject = os.pathsep.join(paths)
    try:
        from fairseq_mm.data.feature_store import open_features
    except ImportError as error:
        return None, [note(subject, f"not checked ({error})", "repair h5py and numpy first")]
    try:
        store = open_features(paths)
        store.check_finite(reread=True)
    except UserError as error:
        return None, [problem("features", str(error), "make it anew with extract or store import")]
    findings = [ok(subject, f"{len(store)} items of {store.dim} channels, all finite")]
    name = store.attributes.get("extractor")
    if name:
        weights = str(store.attributes.get("weights", "unknown weights"))
        findings.append(ok("extractor", f"{name}, {weights[:40]}"))
    else:
        findings.append(
            note(
                "extractor",
                f"{subject} does not say which network made it: photographs cannot be captioned",
                "store import with --extractor, --weights, --layer and --preprocessing",
            )
        )
    return store, findings


def check_data(folder: str, store: Any) -> list[Finding]:
    if not os.path.isdir(folder):
        return [problem(folder, "no such folder", "make it with fairseq-mm prepare")]
    if importlib.util.find_spec("numpy") is None:
        return [note(folder, "not checked", "install numpy first")]
    path = os.path.join(folder, "dict.txt")
    words = read_words(path)
    if isinstance(words, Finding):
        return [words]
    findings = [ok(path, f"{len(words)} words")]
    for word, count in Counter(words).most_common(1):
        if count > 1:
            findings.append(problem(path, f"has {word!r} twice", "prepare the folder anew"))
    splits = [
        split
        for split in SPLITS
        if any(os.path.exists(os.path.join(folder, f"{split}.{end}")) for end in _SPLIT_FILES)
    ]
    if not splits:
        findings.append(
            problem(folder, f"has none of the splits {', '.join(SPLITS)}", "run fairseq-mm prepare")
        )
    for split in splits:
        findings += check_split(folder, split, len(words), store)
    return findings


_SPLIT_FILES = ("idx", "bin", "visual_ids", "references.jsonl")


def read_words(path: str) -> Any:
    """The words of a ``dict.txt`` in their order, or what is wrong with it."""
    words = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                fields = line.rstrip("\n").removesuffix(" #fairseq:overwrite").rsplit(" ", 1)
                if len(fields) != 2 or not fields[1].isdigit():
                    return problem(
                        path,
                        f"line {number} must be a word and its count, but is {line.strip()!r}",
                        "prepare the folder anew",
                    )
                words.append(fields[0])
    except OSError as error:
        return problem(path, f"{error.strerror}", "make the folder with fairseq-mm prepare")
    except UnicodeDecodeError:
        return problem(path, "is no UTF-8 text", "prepare the folder anew")
    return words


def check_split(folder: str, split: str, num_words: int, store: Any) -> list[Finding]:
    from fairseq_mm.data.references import read_references
    from fairseq_mm.data.visual_ids import read_visual_ids

    base = os.path.join(folder, split)
    anew = "prepare the folder anew"
    findings = []
    try:
        visual_ids = read_visual_ids(f"{base}.visual_ids")
    except UserError as error:
        return [problem(split, str(error), anew)]
    counts = {f"{base}.visual_ids": len(visual_ids)}
    text_path = os.path.join(folder, "text", f"{split}.txt")
    if os.path.exists(text_path):
        with open(text_path, "rb") as file:
            counts[text_path] = sum(1 for _ in file)
    findings += _checked(split, anew, lambda: _check_binarised(base, num_words, counts))
    (first, expected), *others = counts.items()
    for path, count in others:
        if count != expected:
            text = f"{first} has {expected} lines, but {path} has {count}"
            findings.append(problem(split, text, anew))
    items = list(dict.fromkeys(visual_ids))
    path = f"{base}.references.jsonl"
    if os.path.exists(path) or split != "train":
        findings += _checked(split, anew, lambda: _check_references(read_references(path), items))
    if store is not None:
        keys = dict.fromkeys(key for item in items for key in item.split("\t"))
        absent = [key for key in keys if key not in store]
        if absent:
            findings.append(
                problem(
                    split,
                    f"{len(absent)} of {len(keys)} ids have no features in {store.path}, the first "
                    f"{absent[0]!r}",
                    "extract them and join the stores with fairseq-mm store merge",
                )
            )
    if not findings:
        findings.append(ok(split, f"{len(visual_ids)} lines of {len(items)} items"))
    return findings


def _checked(subject: str, remedy: str, check: Callable[[], Optional[str]]) -> list[Finding]:
    """The finding of a check that returns or raises what is wrong."""
    try:
        text = check()
    except UserError as error:
        text = str(error)
    return [problem(subject, text, remedy)] if text else []


def _check_binarised(base: str, num_words: int, counts: dict[str, int]) -> Optional[str]:
    """Adds the number of binarised lines to ``counts``."""
    try:
        from fairseq.data import data_utils
    except Exception:  # fairseq's own line says why
        return None
    try:
        text = data_utils.load_indexed_dataset(base, None)
        if text is None:
            return f"{base}.idx: no such file"
        sizes = text.sizes
        counts[f"{base}.idx"] = len(text)
        if len(text) == 0:
            return f"{base}.idx: has no line"
        if sizes.min() <= 1:
            return f"{base}.idx: line {int(sizes.argmin()) + 1} is empty"
        greatest = max(int(line.max()) for line in text)
    except Exception as error:  # cut short, or of another program
        return f"{base}.bin and .idx cannot be read ({_reason(error)})"
    if greatest >= num_words + 4:  # fairseq's four special symbols
        return (
            f"{base}.bin has the word number {greatest}, but dict.txt has {num_words} words and 4 "
            "symbols: it was binarised with another dictionary"
        )
    return None


def _check_references(references: dict[str, list[str]], items: list[str]) -> Optional[str]:
    absent = [item for item in items if item not in references]
    if absent:
        return f"{len(absent)} of {len(items)} items have no references, the first {absent[0]!r}"
    return None


def check_checkpoint(path: str, folder: Optional[str], store: Any) -> list[Finding]:
    try:
        import torch

        from fairseq_mm import captioner
        from fairseq_mm.extract.identity import check_same_extractor
        from fairseq_mm.models._provenance import fingerprint
    except Exception as error:
        return [note(path, f"not checked ({_reason(error)})", "repair the installation first")]
    another = "name another checkpoint"
    try:
        file = captioner.checkpoint_file(path)
        state = captioner.load_checkpoint(file)
    except UserError as error:
        return [problem("checkpoint", str(error), another)]
    cfg = state["cfg"]
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", "unknown")
    epoch = state.get("extra_state", {}).get("train_iterator", {}).get("epoch", "unknown")
    findings = [
        ok(
            file,
            f"--arch {cfg['model']['_name']}, --task {cfg['task']['_name']}, {updates} updates, "
            f"epoch {epoch}",
        )
    ]
    broken = [
        name
        for name, weight in state["model"].items()
        if torch.is_tensor(weight) and not bool(torch.isfinite(weight).all())
    ]
    if broken:
        findings.append(problem(file, f"{broken[0]} has NaN or infinite values", another))
    try:
        provenance = captioner.provenance_of(state, file)
        captioner.from_pretrained(file, device="cpu")
    except UserError as error:
        return [*findings, problem("checkpoint", str(error), another)]
    ours = provenance["words"]
    findings.append(ok("checkpoint", f"dictionary of {len(ours)} words, {fingerprint(ours)}"))
    words = read_words(os.path.join(folder, "dict.txt")) if folder else None
    if isinstance(words, list) and words != ours:
        findings.append(
            problem(
                "checkpoint",
                f"its dictionary ({len(ours)} words, {fingerprint(ours)}) is not that of {folder} "
                f"({len(words)} words, {fingerprint(words)})",
                "use the folder that it was trained on, or prepare with --dictionary",
            )
        )
    extractor = provenance["extractor"]
    if not extractor.get("extractor"):
        findings.append(
            note(
                "checkpoint",
                "carries no extractor: photographs cannot be captioned",
                "train on a store that names its extractor",
            )
        )
    if store is not None:
        extract = "extract the features with the checkpoint's extractor"
        if store.dim != provenance["feature_dim"]:
            text = f"needs {provenance['feature_dim']} channels, but {store.path} has {store.dim}"
            findings.append(problem("checkpoint", text, extract))
        elif extractor.get("extractor") and store.attributes.get("extractor"):
            findings += _checked(
                "checkpoint",
                extract,
                lambda: check_same_extractor(
                    extractor,
                    store.attributes,
                    recorded_by="the checkpoint's features",
                    given_by=store.path,
                ),
            )
    return findings
