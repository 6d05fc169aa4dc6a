"""``fairseq-mm caption`` by models of structures: candidates, ranked (Kiros et al. 2014)."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from fairseq_mm.cli.image_inputs import Input, write_captions
from fairseq_mm.cli.records import hashes_of
from fairseq_mm.errors import UserError

# flag -> argument of the search, and of the weights; None where a flag was not given
_SEARCH = ("candidates", "conditions", "num_nearest", "shortest", "longest", "top")
_WEIGHTS = ("translation_weight", "language_weight", "language_score", "repeat_penalty")
_FILES = ("data", "vectors", "language_model")
_OTHERS = ("candidate_batch_size",)
# options of generation that candidates have as well
_GENERATION = ("beam", "seed", "max_len_b")


# flag -> what argparse needs to know
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "data": {
        "metavar": "DIR",
        "help": "Data folder with the training captions and their tags (default: that of --split).",
    },
    "vectors": {
        "metavar": "FILE",
        "help": "Feature store with the vectors of the training captions, made by fairseq-mm embed "
        "--split train --of sentences (default: they are embedded now).",
    },
    "language_model": {
        "metavar": "FILE",
        "help": "ARPA file of the n-gram model (default: a Kneser-Ney trigram model of the "
        "training captions).",
    },
    "candidates": {"type": int, "help": "Number of draws for each image (default: 1000)."},
    "conditions": {
        "nargs": "+",
        "choices": ("image", "words", "sentences"),
        "help": "Conditions of candidates: the image's vector, or the mean vector of the nearest "
        "words or training captions (default: all three).",
    },
    "num_nearest": {"type": int, "help": "Number of words or captions of a mean (default: 5)."},
    "shortest": {
        "type": int,
        "help": "Minimum length of a part-of-speech sequence (default: 4).",
    },
    "longest": {
        "type": int,
        "help": "Maximum length of a part-of-speech sequence (default: 12).",
    },
    "translation_weight": {"type": float, "help": "Weight of the cosine (default: 1)."},
    "language_weight": {"type": float, "help": "Weight of the log-probability (default: 0.2)."},
    "language_score": {
        "choices": ("word", "sentence"),
        "help": "Log-probability of a word on average, or of the sentence, which prefers short "
        "ones (default: word).",
    },
    "repeat_penalty": {
        "type": float,
        "help": "Factor of the cosine for each content word that occurred before (default: 0.7).",
    },
    "top": {"type": int, "help": "Number of captions of an image in --jsonl (default: 5)."},
    "candidate_batch_size": {
        "type": int,
        "help": "Number of candidates that are generated at a time (default: 1000).",
    },
}
_METAVARS = {int: "N", float: "X"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("candidates by part-of-speech sequences (sc_nlm)")
    for name, about in _ARGUMENTS.items():
        metavar = _METAVARS.get(about.get("type", str))
        group.add_argument(_flag(name), **({"metavar": metavar} if metavar else {}), **about)


def refuse_options(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if an option of candidates is given, where no model reads structures.
    """
    for name in (*_FILES, *_SEARCH, *_WEIGHTS, *_OTHERS):
        if getattr(args, name) is not None:
            raise UserError(
                f"{_flag(name)} is of models that read part-of-speech sequences (sc_nlm), but "
                f"--checkpoint {args.checkpoint} is none."
            )


def run(
    args: argparse.Namespace, states: dict[str, dict[str, Any]], options: dict[str, Any]
) -> int:
    """
    Args:
        args: of the command.
        states: the checkpoints of ``--checkpoint``.
        options: of generation, those that are given.

    Raises:
        UserError: if an option is missing or of other models, or files do not fit together.
    """
    if args.data is None and args.split is not None:
        args.data = args.images[0]
    missing = [name for name in ("embedding", "data") if getattr(args, name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(map(_flag, missing))}: missing; {next(iter(states))} generates by "
            "part-of-speech sequences of training (--data DIR) and vectors of an embedding "
            "model (--embedding PATH)."
        )
    for name in options:
        if name not in _GENERATION:
            raise UserError(
                f"{_flag(name)} is of models that read no part-of-speech sequences; --checkpoint "
                f"{args.checkpoint} ranks candidates."
            )
    if args.nearest:
        raise UserError("--nearest: records of candidates name the nearest caption (--jsonl).")
    from fairseq_mm.inference.candidate_scores import CandidateWeights
    from fairseq_mm.inference.structured_loading import load_structured_captioner
    from fairseq_mm.inference.structured_search import StructuredSearch

    search = StructuredSearch(
        **_given(args, _SEARCH),
        **options,
        weights=CandidateWeights(**_given(args, _WEIGHTS)),
        **({} if args.candidate_batch_size is None else {"batch_size": args.candidate_batch_size}),
    )
    if args.vectors is None:
        print(
            "embedding the training captions (30,000 in half a minute on a CPU; --vectors FILE "
            "takes them from a store)",
            file=sys.stderr,
        )
    captioner = load_structured_captioner(
        args.checkpoint,
        embedding=args.embedding,
        data=args.data,
        vectors=args.vectors,
        language_model=args.language_model,
        weights=args.weights,
        device=args.device,
        states=states,
    )
    facts = _facts(args, captioner, search) if args.jsonl else None

    def lines_of(inputs: list[Input], features: list[Any]) -> Iterator[str]:
        for item, found in zip(inputs, captioner.caption_features(features, search)):
            yield _line(item.name, found, facts)

    return write_captions(args, captioner.embedder, lines_of)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _facts(args: argparse.Namespace, captioner: Any, search: Any) -> dict[str, Any]:
    """What made the captions, the same in each line."""
    import dataclasses

    from fairseq_mm.extract.weights import sha256_of

    trained_on = os.path.join(args.data, "text", "train.txt")
    options = dataclasses.asdict(search)
    options.update(options.pop("weights"))
    return {
        "extractor": captioner.embedder.identity,
        "checkpoint": hashes_of(captioner.decoder.files),
        "embedding": sha256_of(captioner.embedder.files[0]),
        "language_model": sha256_of(args.language_model or trained_on),
        "options": options,
    }


def _line(name: str, found: Any, facts: Optional[dict[str, Any]]) -> str:
    best = found.captions[0]
    if facts is None:
        return f"{name}\t{best.text}"
    captions = [
        {
            "hypothesis": caption.text,
            **{
                part: round(getattr(caption, part), 4)
                for part in ("score", "cosine", "log_prob", "penalty")
            },
            "condition": caption.condition,
            "structure": caption.structure,
        }
        for caption in found.captions
    ]
    nearest = {**found.nearest._asdict(), "cosine": round(found.nearest.cosine, 4)}
    entry = {"id": name, "hypothesis": best.text, "score": round(best.score, 4)}
    return json.dumps(
        {**entry, "hypotheses": captions, "nearest": nearest, **facts}, ensure_ascii=False
    )
