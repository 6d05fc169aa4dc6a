"""What the commands that score texts share: options, and models with their texts."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import torch

    from fairseq_mm.inference.text_models import TextModels
    from fairseq_mm.retrieval.story_likelihood import StoryLikelihood


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, but is {text!r}")
    return int(text)


def add_likelihood_arguments(parser: argparse.ArgumentParser, *, cuts: bool = True) -> None:
    """
    Args:
        parser: gets the options.
        cuts: with ``--words``.
    """
    parser.add_argument(
        "--path",
        required=True,
        help="checkpoint, or a folder with checkpoint_best.pt; several with : between them are an "
        "ensemble",
    )
    parser.add_argument("--split", default="valid", help="(default: valid)")
    if cuts:
        parser.add_argument(
            "--words",
            type=positive,
            metavar="N",
            help="only the first N words of each story (default: as many as the model has "
            "positions for); the end of a story that was cut is not scored",
        )
    parser.add_argument(
        "--batch-tokens",
        type=positive,
        metavar="N",
        help="words of stories in a batch (default: 4000 on a CPU, 32000 on a GPU)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the networks; bfloat16 rounds a word's log-probability in its third digit "
        "(default: float32)",
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="of a CPU")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")


def load_models(
    path: str,
    data: Optional[str],
    device: Optional[str],
    states: Optional[dict[str, dict[str, Any]]] = None,
) -> "TextModels":
    """Models with the dictionaries that they carry, or, of fairseq's own models, the data folder's.

    Args:
        path: checkpoints, separated by the system's path separator.
        data: the data folder.
        device: where they are to run.
        states: the checkpoints, if :func:`.load_states` has read them
            already.

    Raises:
        UserError: if they cannot be loaded, or do not fit together.
    """
    from fairseq_mm.inference.checkpoints import usable_device
    from fairseq_mm.inference.text_models import load_states, load_text_models
    from fairseq_mm.models._provenance import STATE_KEY

    place = usable_device(device)
    states = load_states(path) if states is None else states
    # fairseq's own models carry no dictionaries
    if data is not None and any(STATE_KEY not in state["model"] for state in states.values()):
        return _load_with_folder(list(states), data, place)
    return load_text_models(list(states), device=str(place), states=states)


def _load_with_folder(files: list[str], data: str, place: "torch.device") -> "TextModels":
    from fairseq import checkpoint_utils
    from fairseq.models import FairseqEncoderDecoderModel

    from fairseq_mm.inference.text_models import TextModels

    named = os.pathsep.join(files)
    try:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            files, arg_overrides={"data": data}
        )
    except (RuntimeError, AssertionError, AttributeError, OSError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise UserError(
            f"{named}: cannot be loaded with the dictionaries of {data}: "
            f"{lines[0][:200] if lines else type(error).__name__}"
        ) from None
    reads = isinstance(models[0], FairseqEncoderDecoderModel)
    if any(isinstance(model, FairseqEncoderDecoderModel) != reads for model in models):
        raise UserError(f"{named}: an ensemble is of language models or of others, not of both.")
    return TextModels(
        [model.eval().to(place) for model in models],
        files,
        [str(cfg.model._name)] * len(files),
        task.target_dictionary,
        task.source_dictionary if reads else None,
        place,
    )


def build_likelihood(models: "TextModels", args: argparse.Namespace) -> "StoryLikelihood":
    import torch

    from fairseq_mm.retrieval.story_likelihood import StoryLikelihood

    if args.threads:
        torch.set_num_threads(args.threads)
    return StoryLikelihood(
        models,
        precision=args.precision,
        batch_tokens=args.batch_tokens or (4000 if models.device.type == "cpu" else 32000),
    )


def words_to_score(likelihood: "StoryLikelihood", words: Optional[int]) -> int:
    """
    Raises:
        UserError: if ``--words`` is more than there are positions for.
    """
    most = likelihood.max_story_words
    if words is not None and words > most:
        raise UserError(f"--words {words}: the model has positions for {most} words.")
    return words or most


def encode_prompts(
    likelihood: "StoryLikelihood", prompts: Mapping[int, Sequence[str]], where: Any
) -> dict[int, Optional[list[int]]]:
    """Types of prompts by their line, from 0.

    Raises:
        UserError: naming the line of a prompt that is too long.
    """
    encoded = {}
    for line, words in prompts.items():
        try:
            encoded[line] = likelihood.encode_prompt(words)
        except UserError as error:
            raise UserError(f"{where}:{line + 1}: {error}") from None
    return encoded


def chosen_lines(total: int, wanted: Optional[int], seed: int) -> list[int]:
    """``wanted`` of ``total`` lines, drawn with ``seed``, in their order; all if there are fewer.

    More lines drawn with the same seed include those that fewer would give.
    """
    import numpy as np

    if wanted is None or wanted >= total:
        return list(range(total))
    return sorted(np.random.default_rng(seed).permutation(total)[:wanted].tolist())


def card_of(
    args: argparse.Namespace, files: Mapping[str, Any], options: Sequence[str], device: Any
) -> dict[str, Any]:
    """The result's card."""
    from fairseq_mm.metrics.result_card import result_card

    card = result_card(
        command=shlex.join(["fairseq-mm", *sys.argv[1:]]),
        files={role: None if path is None else str(path) for role, path in files.items()},
        generated=os.devnull,
    )
    card["options"] = {name: getattr(args, name) for name in options}
    card["options"]["device"] = str(device)
    return card
