"""Checks the installation, a data folder, feature stores and a checkpoint, and names remedies.

  fairseq-mm doctor
  fairseq-mm doctor --data data/flickr8k
  fairseq-mm doctor --data data/flickr8k --checkpoint checkpoints/checkpoint_best.pt
  fairseq-mm doctor --checkpoint checkpoints/m_rnn --weights mobilenet_v2.pt
  fairseq-mm doctor --data data-bin/wp --checkpoint checkpoints/conv_story_gated

Folders of captions, of prompts with stories and of videos are told apart, as are captioners, models
of text and those that summarise videos. The weights of a checkpoint's extractor are looked for,
which commands that read image or video files need; nothing is downloaded.

One line a finding: "ok", "note" (something optional is missing) or "PROBLEM", each of the last two
with its remedy behind "->". The exit status is 0 if there is no problem, 2 otherwise. It runs where
fairseq, or any other package, is missing or broken.
"""

import argparse
import logging
import os
import warnings
from typing import Any, Optional

from fairseq_mm.cli import doctor_environment as environment
from fairseq_mm.cli.doctor_data import check_data, check_features, read_words
from fairseq_mm.cli.doctor_findings import Finding, note, ok, problem, reason_of
from fairseq_mm.cli.doctor_stories import check_stories, check_text_checkpoint, story_folder_of
from fairseq_mm.cli.doctor_videos import (
    check_video_checkpoint,
    check_videos,
    holds_videos,
)
from fairseq_mm.cli.doctor_weights import check_extractor_weights, check_features_fit
from fairseq_mm.errors import EXIT_STATUS, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="data folder made by prepare")
    parser.add_argument(
        "--features",
        metavar="STORE",
        help="feature store, or several separated by "
        f"{os.pathsep!r} (default: features.h5 in a data folder of images or videos)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="checkpoint, or folder with checkpoint_best.pt or checkpoint_last.pt",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="state dict file of the checkpoint's extractor (default: found by its content beside "
        "the checkpoint)",
    )


def run(args: argparse.Namespace) -> int:
    if args.weights and not args.checkpoint:
        raise UserError("--weights: needs --checkpoint, whose extractor it belongs to.")
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    report = _Report()
    report.show(environment.check_python())
    for name in ("numpy", "h5py", "torch", "torchvision"):
        report.show(environment.check_package(name))
    report.show(*environment.check_torchvision_fits())
    report.show(*environment.check_fairseq())
    report.show(environment.check_program("java", "METEOR", "apt install default-jre-headless"))
    report.show(environment.check_program("g++", "building fairseq", "apt install g++"))
    report.show(*(environment.check_extra(extra) for extra in environment.EXTRAS))
    report.show(environment.check_device())
    store = None
    stories = story_folder_of(args.data) if args.data else None
    videos = bool(args.data) and stories is None and holds_videos(args.data)
    beside = os.path.join(args.data or "", "features.h5")
    # models that read a transcript alone need no features
    is_expected = stories is None and (not videos or os.path.exists(beside))
    if args.features or (args.data and is_expected):
        paths = (args.features or beside).split(os.pathsep)
        store, findings = check_features(paths)
        report.show(*findings)
    if stories is not None:
        report.show(*check_stories(stories))
    elif videos:
        report.show(*check_videos(args.data, store))
    elif args.data:
        report.show(*check_data(args.data, store))
    if args.checkpoint:
        report.show(*check_checkpoint(args.checkpoint, args.data, store, args.weights))
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


def check_checkpoint(
    path: str, folder: Optional[str], store: Any, weights: Optional[str] = None
) -> list[Finding]:
    try:
        import torch

        from fairseq_mm.inference import checkpoints
        from fairseq_mm.inference.loading import load_models, task_class_of
        from fairseq_mm.models._provenance import fingerprint
    except Exception as error:
        return [note(path, f"not checked ({reason_of(error)})", "repair the installation first")]
    another = "name another checkpoint"
    try:
        file = checkpoints.checkpoint_file(path)
        state = checkpoints.load_checkpoint(file)
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
    reads = task_class_of(state).input_kind
    if reads == "videos":
        return [*findings, *check_video_checkpoint(file, state, folder, store, weights)]
    if reads == "prompts":
        return [*findings, *check_text_checkpoint(file, state, folder)]
    try:
        provenance = checkpoints.provenance_of(state, file)
        load_models(file, device="cpu", states={file: state})
    except UserError as error:
        return [*findings, problem("checkpoint", str(error), another)]
    ours = provenance["words"]
    findings.append(ok("checkpoint", f"dictionary of {len(ours)} words, {fingerprint(ours)}"))
    if folder and story_folder_of(folder) is not None:
        text = f"describes images, but {folder} is of prompts and stories"
        return [*findings, problem("checkpoint", text, "name a folder made by prepare captions")]
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
                "carries no extractor: images cannot be captioned",
                "train on a store that names its extractor",
            )
        )
    findings += check_extractor_weights(extractor, file, weights)
    return [*findings, *check_features_fit(provenance, store)]
