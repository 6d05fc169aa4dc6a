"""``fairseq-mm caption`` by models of structures: candidates, ranked (Kiros et al. 2014)."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from fairseq_mm.cli.caption_images import Input, write_captions
from fairseq_mm.errors import UserError

# flag -> argument of the search, and of the weights; None where a flag was not given
_SEARCH = ("candidates", "conditions", "num_nearest", "shortest", "longest", "top")
_WEIGHTS = ("translation_weight", "language_weight", "language_score", "repeat_penalty")
_FILES = ("data", "vectors", "language_model")
_OTHERS = ("candidate_batch_size",)
# of searches for one caption, with the values that they have when they are not given
_REFUSED = {
    "sampling": False,
    "topk": 0,
    "temperature": 1.0,
    "prefix": None,
    "no_repeat_ngram": 0,
    "nearest": None,
    "allow_unk": False,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("candidates by structures (sc_nlm)")
    group.add_argument(
        "--data",
        metavar="DIR",
        help="data folder: training captions and their tags (default: that of --split)",
    )
    group.add_argument(
        "--vectors",
        metavar="FILE",
        help="their vectors, from fairseq-mm embed --split train --of sentences (default: embed "
        "them now)",
    )
    group.add_argument(
        "--language-model",
        metavar="FILE",
        help="ARPA file (default: a Kneser-Ney trigram model of the training captions)",
    )
    group.add_argument(
        "--candidates", type=int, metavar="N", help="draws for each image (default: 1000)"
    )
    group.add_argument(
        "--conditions",
        nargs="+",
        choices=("image", "words", "sentences"),
        help="what candidates are conditioned on: the image's vector, the mean of the nearest "
        "words' or of the nearest training captions' (default: all three)",
    )
    group.add_argument(
        "--num-nearest", type=int, metavar="N", help="words or captions of a mean (default: 5)"
    )
    group.add_argument(
        "--shortest", type=int, metavar="N", help="least number of tags of a structure (default: 4)"
    )
    group.add_argument("--longest", type=int, metavar="N", help="greatest number (default: 12)")
    group.add_argument(
        "--translation-weight", type=float, metavar="X", help="of the cosine (default: 1)"
    )
    group.add_argument(
        "--language-weight", type=float, metavar="X", help="of the log-probability (default: 0.2)"
    )
    group.add_argument(
        "--language-score",
        choices=("word", "sentence"),
        help="log-probability: mean of a word, or of the sentence, which prefers short ones "
        "(default: word)",
    )
    group.add_argument(
        "--repeat-penalty",
        type=float,
        metavar="X",
        help="factor of the cosine for each content word that occurred before; 1 for none "
        "(default: 0.7)",
    )
    group.add_argument(
        "--top", type=int, metavar="N", help="captions of an image in --jsonl (default: 5)"
    )
    group.add_argument(
        "--candidate-batch-size",
        type=int,
        metavar="N",
        help="candidates that are written at a time (default: 1000)",
    )


def refuse_options(args: argparse.Namespace) -> None:
    """
    Raises:
        UserError: if an option of candidates is given, where no model reads structures.
    """
    for name in (*_FILES, *_SEARCH, *_WEIGHTS, *_OTHERS):
        if getattr(args, name) is not None:
            raise UserError(
                f"{_flag(name)} is of models that read structures (sc_nlm), but --model "
                f"{args.model} is none."
            )


def run(args: argparse.Namespace, states: dict[str, dict[str, Any]]) -> int:
    """
    Args:
        args: of the command.
        states: the checkpoints of ``--model``.

    Raises:
        UserError: if an option is missing or of other models, or files do not fit together.
    """
    if args.data is None and args.split is not None:
        args.data = args.images[0]
    missing = [name for name in ("embedding", "data") if getattr(args, name) is None]
    if missing:
        raise UserError(
            f"{' and '.join(map(_flag, missing))}: missing; {next(iter(states))} writes by "
            "structures of training (--data DIR) and vectors of an embedding model (--embedding "
            "PATH)."
        )
    for name, default in _REFUSED.items():
        if getattr(args, name) != default:
            raise UserError(
                f"{_flag(name)} is of models that read no structures; --model {args.model} ranks "
                "candidates."
            )
    from fairseq_mm.inference.candidate_scores import CandidateWeights
    from fairseq_mm.inference.structured_loading import load_structured_captioner
    from fairseq_mm.inference.structured_search import StructuredSearch

    search = StructuredSearch(
        **_given(args, _SEARCH),
        **_given(args, ("beam", "seed")),
        max_words=args.max_words,
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
        args.model,
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

    checkpoints = [sha256_of(file) for file in captioner.decoder.files]
    trained_on = os.path.join(args.data, "text", "train.txt")
    options = dataclasses.asdict(search)
    options.update(options.pop("weights"))
    return {
        "extractor": captioner.embedder.identity,
        "checkpoint": checkpoints[0] if len(checkpoints) == 1 else checkpoints,
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
            "caption": caption.text,
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
    entry = {"id": name, "caption": best.text, "score": round(best.score, 4)}
    return json.dumps(
        {**entry, "captions": captions, "nearest": nearest, **facts}, ensure_ascii=False
    )
