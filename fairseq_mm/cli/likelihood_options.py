"""What the commands that score given stories share: options, models, stories, images, the card."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import torch

    from fairseq_mm.data.visual_story_split import VisualStorySplit
    from fairseq_mm.inference.loading import LoadedModels, States
    from fairseq_mm.retrieval.story_likelihood import StoryLikelihood
    from fairseq_mm.retrieval.visual_story_likelihood import VisualStoryLikelihood


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, but is {text!r}")
    return int(text)


def add_likelihood_arguments(
    parser: argparse.ArgumentParser, *, texts: bool = True, images: bool = True
) -> None:
    """
    Args:
        parser: gets the options.
        texts: with those of models of prompts and of language models.
        images: with those of models of visual stories.
    """
    arguments.add(
        parser,
        *("checkpoint", "split", "device"),
        split={"default": "valid", "help": "Split of the data folder (default: valid)."},
    )
    if texts:
        parser.add_argument(
            "--words",
            type=positive,
            metavar="N",
            help="Score only the first N words of each story (default: as many as the model has "
            "positions for); the end of a truncated story is not scored.",
        )
    if images:
        arguments.add(
            parser,
            "features",
            features={
                "help": "Feature store of the images, or several, separated by the system's path "
                "separator (default: features.h5 in DATA)."
            },
        )
    parser.add_argument(
        "--batch-tokens",
        type=positive,
        metavar="N",
        help="Maximum number of tokens of stories in a batch (default: 4000 on a CPU, 32000 on a "
        "GPU).",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="Precision of the networks; bfloat16 rounds a token's log-probability in its third "
        "digit (default: float32).",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="Number of threads of the CPU."
    )


def check_seed(seed: int) -> None:
    """
    Raises:
        UserError: if NumPy takes no such seed.
    """
    if seed < 0:
        raise UserError(f"--seed: must be 0 or more, but is {seed}.")


def _batch_tokens(args: argparse.Namespace, device: "torch.device") -> int:
    return args.batch_tokens or (4000 if device.type == "cpu" else 32000)


def build_likelihood(models: "LoadedModels", args: argparse.Namespace) -> "StoryLikelihood":
    import torch

    from fairseq_mm.retrieval.story_likelihood import StoryLikelihood

    if args.threads:
        torch.set_num_threads(args.threads)
    return StoryLikelihood(
        models, precision=args.precision, batch_tokens=_batch_tokens(args, models.device)
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
    """Token indices of prompts by their line, from 0.

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


class VisualStories(NamedTuple):
    """Visual stories that are scored, and what scores them.

    Attributes:
        likelihood: of the models, reading the feature stores.
        split: its stories, images and albums.
        files: the checkpoints.
        stores: the feature stores.
        device: of the models.
    """

    likelihood: "VisualStoryLikelihood"
    split: "VisualStorySplit"
    files: list[str]
    stores: list[str]
    device: "torch.device"

    def card_files(self, data: str, split: str) -> dict[str, str]:
        """Files of the result's card, by what they are."""
        from fairseq_mm.data.visual_story_split import story_text_path

        files = {f"checkpoint_{i}": file for i, file in enumerate(self.files)}
        files["stories"] = str(story_text_path(data, split))
        files["visual_ids"] = str(Path(data) / f"{split}.visual_ids")
        files.update({f"features_{i}": file for i, file in enumerate(self.stores)})
        return files


def generates_visual_stories(state: Mapping[str, Any]) -> bool:
    from fairseq_mm.inference.loading import command_of, task_class_of

    return command_of(state) == "tell" and task_class_of(state).input_kind == "images"


def open_visual_stories(args: argparse.Namespace, states: "States") -> VisualStories:
    """
    Args:
        args: with ``data`` and the options of :func:`add_likelihood_arguments`.
        states: the checkpoints.

    Raises:
        UserError: if checkpoints, stories and features cannot be read, or do not fit together.
    """
    import torch

    from fairseq_mm.data.feature_store import open_features
    from fairseq_mm.data.missing_images import read_missing_images
    from fairseq_mm.data.visual_story_split import read_visual_story_split
    from fairseq_mm.inference.extractor_provenance import check_trained_features
    from fairseq_mm.inference.loading import load_models
    from fairseq_mm.retrieval.visual_story_likelihood import (
        SequenceImages,
        VisualStoryLikelihood,
    )

    for file, state in states.items():
        if not generates_visual_stories(state):
            raise UserError(
                f"{file}: was trained with --task {state['cfg']['task']['_name']}, which generates "
                "no stories of image sequences (visual_storytelling does)."
            )
    if args.threads:
        torch.set_num_threads(args.threads)
    split = read_visual_story_split(args.data, args.split)
    stores = (args.features or str(Path(args.data) / "features.h5")).split(os.pathsep)
    features = open_features(stores)
    loaded = load_models(list(states), device=args.device, states=states)
    check_trained_features(
        loaded.provenance["extractor"],
        loaded.provenance["feature_dim"],
        loaded.files[0],
        attributes=features.attributes,
        dim=features.dim,
        path=features.path,
    )
    images = SequenceImages(features, read_missing_images(args.data), loaded.task.rows_per_image)
    images.check(split.visual_ids)
    likelihood = VisualStoryLikelihood(
        loaded.models,
        loaded.dictionary,
        images,
        loaded.device,
        precision=args.precision,
        batch_tokens=_batch_tokens(args, loaded.device),
    )
    return VisualStories(likelihood, split, loaded.files, stores, loaded.device)
