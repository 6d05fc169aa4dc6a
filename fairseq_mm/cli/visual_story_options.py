"""What the commands that score given visual stories share: options, models, stories, images."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    import torch

    from fairseq_mm.data.feature_store import FeatureStores
    from fairseq_mm.data.visual_story_split import VisualStorySplit
    from fairseq_mm.retrieval.visual_story_likelihood import VisualStoryLikelihood


class ToScore(NamedTuple):
    """
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


def add_features_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--features",
        metavar="FILE",
        help="feature store of visual stories, or several separated by the system's path "
        "separator (default: features.h5 in DATA)",
    )


def open_visual_stories(args: argparse.Namespace, states: Mapping[str, dict[str, Any]]) -> ToScore:
    """
    Args:
        args: with ``data``, ``split``, ``features``, ``path``, ``precision``, ``batch_tokens``,
            ``threads``, ``device``.
        states: the checkpoints, of :func:`.load_states`.

    Raises:
        UserError: if checkpoints, stories and features cannot be read, or do not fit together.
    """
    import torch

    from fairseq_mm.data.feature_store import open_features
    from fairseq_mm.data.missing_images import read_missing_images
    from fairseq_mm.data.visual_story_split import read_visual_story_split
    from fairseq_mm.data.visual_story_text import SEPARATOR
    from fairseq_mm.inference.image_models import load_image_models
    from fairseq_mm.inference.text_models import tells_visual_stories
    from fairseq_mm.retrieval.visual_story_likelihood import (
        SequenceImages,
        VisualStoryLikelihood,
    )

    for file, state in states.items():
        if not tells_visual_stories(state):
            raise UserError(
                f"{file}: was trained with --task {state['cfg']['task']['_name']}, which tells no "
                "stories of five images (visual_storytelling does)."
            )
    if args.threads:
        torch.set_num_threads(args.threads)
    split = read_visual_story_split(args.data, args.split)
    stores = (args.features or str(Path(args.data) / "features.h5")).split(os.pathsep)
    features = open_features(stores)
    loaded = load_image_models(list(states), device=args.device, states=states)
    _check_features(features, loaded.provenance, loaded.files[0])
    dictionary = loaded.task.target_dictionary
    if dictionary.index(SEPARATOR) == dictionary.unk():
        raise UserError(f"{loaded.files[0]}: its dictionary has no {SEPARATOR}.")
    images = SequenceImages(features, read_missing_images(args.data), loaded.task.rows_per_image)
    images.check(split.visual_ids)
    tokens = args.batch_tokens or (4000 if loaded.device.type == "cpu" else 32000)
    likelihood = VisualStoryLikelihood(
        [model.to(loaded.device) for model in loaded.models],
        dictionary,
        images,
        loaded.device,
        precision=args.precision,
        batch_tokens=tokens,
    )
    return ToScore(likelihood, split, loaded.files, stores, loaded.device)


def _check_features(features: "FeatureStores", provenance: Mapping[str, Any], file: str) -> None:
    """As the weights are checked when they are loaded for a data folder."""
    if features.dim != provenance["feature_dim"]:
        raise UserError(
            f"{features.path}: features have {features.dim} channels, but {file} was trained on "
            f"{provenance['feature_dim']}."
        )
    for name, trained in provenance["extractor"].items():
        if features.attributes.get(name, trained) != trained:
            raise UserError(
                f"{features.path}: features were made with {name} = {features.attributes[name]!r}, "
                f"but {file} was trained on {trained!r}."
            )


def card_files(to_score: ToScore, data: str, split: str) -> dict[str, str]:
    """Files of the result's card, by what they are."""
    from fairseq_mm.data.visual_story_split import story_text_path

    files = {f"checkpoint_{i}": file for i, file in enumerate(to_score.files)}
    files["stories"] = str(story_text_path(data, split))
    files["visual_ids"] = str(Path(data) / f"{split}.visual_ids")
    files.update({f"features_{i}": file for i, file in enumerate(to_score.stores)})
    return files
