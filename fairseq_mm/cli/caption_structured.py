"""Options and JSON records of ``fairseq-mm caption`` for models that read part-of-speech tags."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import NUMBER, Rows, flag
from fairseq_mm.cli.records import compute_digests
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.candidates import StructuredSearch
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.inference.structured_captioner import StructuredCaptioner

# fields of StructuredSearch and of CandidateWeights, and the options that are fields of neither
_SEARCH = ("candidates", "conditions", "num_nearest", "pos_sampling", "shortest", "longest", "top")
_WEIGHTS = ("translation_weight", "language_weight", "language_score", "repeat_penalty")
_OTHERS = ("data", "vectors", "language_model")
# options of generation that candidates have as well
_GENERATION = ("beam", "seed", "max_len_b")
_PARTS = ("score", "cosine", "log_prob", "penalty")

_FACTOR: dict[str, Any] = {"type": float, "metavar": "X"}
_ARGUMENTS: Rows = {
    "--data": (
        "Data folder with the training captions and their tags (default: the folder of --split).",
        {"metavar": "DIR"},
    ),
    "--vectors": (
        "Feature store with the vectors of the training captions, from fairseq-mm embed --split "
        "train --of sentences (default: embed the captions now).",
        {"metavar": "FILE"},
    ),
    "--language-model": (
        "ARPA file of the n-gram model (default: a Kneser-Ney trigram model of the training "
        "captions).",
        {"metavar": "FILE"},
    ),
    "--candidates": ("Number of samples for each image (default: 1000).", NUMBER),
    "--num-nearest": ("Number of words or captions of a mean (default: 5).", NUMBER),
    "--shortest": ("Minimum length of a part-of-speech sequence (default: 4).", NUMBER),
    "--longest": ("Maximum length of a part-of-speech sequence (default: 12).", NUMBER),
    "--translation-weight": ("Weight of the cosine (default: 1).", _FACTOR),
    "--language-weight": ("Weight of the log-probability (default: 0.2).", _FACTOR),
    "--repeat-penalty": (
        "Factor of the cosine for each content word that occurred before (default: 0.7).",
        _FACTOR,
    ),
    "--top": ("Number of captions of an image in --jsonl (default: 5).", NUMBER),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("candidates by part-of-speech sequences (sc_nlm)")
    arguments.add_rows(group, _ARGUMENTS)
    group.add_argument(
        "--conditions",
        nargs="+",
        choices=("image", "words", "sentences", "concepts"),
        metavar="CONDITION",
        help="Conditions of candidates: the image's vector (image), or the mean vector of the "
        "nearest words (words), of the nearest training captions (sentences) or of both as one bag "
        "(concepts) (default: image words sentences; in the paper: image concepts).",
    )
    group.add_argument(
        "--pos-sampling",
        choices=("frequency", "types"),
        help="Sample part-of-speech sequences by their frequency in training, or all types equally "
        "often, as in the paper (default: frequency).",
    )
    group.add_argument(
        "--language-score",
        choices=("word", "sentence"),
        help="Mean log-probability of the words, or log-probability of the sentence, which favours "
        "short captions (default: word).",
    )


def refuse_options(args: argparse.Namespace) -> None:
    """Raise UserError if an option about candidates is given, for a model that generates none."""
    for name in _get_given(args, (*_OTHERS, *_SEARCH, *_WEIGHTS)):
        raise UserError(
            f"{flag(name)} is of models that read part-of-speech sequences (sc_nlm), but "
            f"--checkpoint {args.checkpoint} is none."
        )


def load(
    args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]", options: Mapping[str, Any]
) -> "tuple[StructuredCaptioner, StructuredSearch]":
    """Load the captioner, and build the settings of its search for candidates.

    Args:
        args: Parsed command line. If ``data`` is None, it is set to the data folder of ``--split``.
        checkpoints: Opened checkpoints of the model.
        options: Options of generation that are on the command line, by name.
    """
    from fairseq_mm.inference.candidates import CandidateWeights, StructuredSearch
    from fairseq_mm.inference.structured_loading import load_structured_captioner

    # the folder of --split has the training captions, too
    if args.data is None and args.split is not None:
        args.data = args.inputs[0]
    missing = [name for name in ("embedding", "data") if getattr(args, name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(map(flag, missing))}: missing; {checkpoints[0].path} generates by "
            "part-of-speech sequences of training (--data DIR) and vectors of an embedding "
            "model (--embedding PATH)."
        )
    for name in options:
        if name not in _GENERATION:
            raise UserError(
                f"{flag(name)} is of models that read no part-of-speech sequences; --checkpoint "
                f"{args.checkpoint} ranks candidates."
            )
    if args.nearest:
        raise UserError("--nearest: records of candidates name the nearest caption (--jsonl).")
    weights = CandidateWeights(**_get_given(args, _WEIGHTS))
    search = StructuredSearch(**_get_given(args, _SEARCH), **options, weights=weights)
    if args.vectors is None:
        print(
            "embedding the training captions (30,000 in half a minute on a CPU; --vectors FILE "
            "takes them from a store)",
            file=sys.stderr,
        )
    names = ("embedding", "data", "vectors", "language_model", "weights", "device")
    captioner = load_structured_captioner(
        checkpoints, **{name: getattr(args, name) for name in names}
    )
    return captioner, search


def provenance_fields(args: argparse.Namespace, captioner: Any, search: Any) -> dict[str, Any]:
    """Return the fields about models and options, which the JSON records of all images have.

    ``captioner`` holds the models, ``search`` the settings of the search for candidates.
    """
    options = dataclasses.asdict(search)
    options.update(options.pop("weights"))
    trained_on = os.path.join(args.data, "text", "train.txt")
    return {
        "extractor": captioner.embedder.identity,
        "checkpoint": compute_digests(captioner.files),
        "embedding": compute_digests(captioner.embedder.files),
        "language_model": compute_digests([args.language_model or trained_on]),
        "options": options,
    }


def json_line(name: str, result: Any, facts: Mapping[str, Any]) -> str:
    """Return the JSON record of an image as a line of text.

    Args:
        name: Name of the image in the output.
        result: Result of the captioner for the image: its captions and nearest training caption.
        facts: Result of :func:`provenance_fields`.
    """
    records = [
        {
            "hypothesis": caption.text,
            **{part: round(getattr(caption, part), 4) for part in _PARTS},
            "condition": caption.condition,
            "structure": caption.structure,
        }
        for caption in result.captions
    ]
    best = {part: records[0][part] for part in ("hypothesis", "score")}
    nearest = {**result.nearest._asdict(), "cosine": round(result.nearest.cosine, 4)}
    record = {"id": name, **best, "hypotheses": records, "nearest": nearest}
    return json.dumps({**record, **facts}, ensure_ascii=False)


def _get_given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
