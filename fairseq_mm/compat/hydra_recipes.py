"""Recipes of fairseq-hydra-train: what they demand is given, and what fails is said in one line."""

import os
from collections.abc import Iterator
from typing import Any

from fairseq_mm.errors import UserError

_MISSING = "???"


def check_hydra_recipe() -> None:
    """``???`` in a recipe is a value that the command line must give, but fairseq fills it.

    Its defaults are there when hydra reads the recipe, or are merged into it later, and ``???``
    replaces no value: a run without ``checkpoint.finetune_from_model`` would train from random
    weights. And hydra prints every error as a part of a traceback; where its variable asks for
    all of it, it leaves errors to Python, and so to :func:`.errors.report_on_exit`. Goes when
    fairseq merges recipes over defaults by hydra's defaults list.

    Raises:
        UserError: naming the options that are missing, in a run of fairseq-hydra-train.
    """
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    run = HydraConfig.get()
    given = {
        key.lstrip("+")
        for key, _, value in (override.partition("=") for override in run.overrides.task)
        if value != _MISSING
    }
    recipe = _recipe_file(str(run.job.config_name))
    missing = [
        key for key in _missing_in(recipe) if not any(f"{key}.".startswith(f"{g}.") for g in given)
    ]
    if missing:
        raise UserError(
            f"{recipe}: {', '.join(missing)} must be given on the command line, such as "
            f"{missing[0]}=..."
        )


def _recipe_file(name: str) -> str:
    """Where hydra has found the recipe; an empty string if it is no file."""
    from hydra.core.global_hydra import GlobalHydra

    for source in GlobalHydra.instance().config_loader().get_sources():
        file = os.path.join(source.path, name if name.endswith(".yaml") else f"{name}.yaml")
        if source.scheme() == "file" and os.path.isfile(file):
            return file
    return ""


def _missing_in(recipe: str) -> list[str]:
    from omegaconf import OmegaConf

    if not recipe:
        return []
    return list(_missing_keys(OmegaConf.to_container(OmegaConf.load(recipe)), ""))


def _missing_keys(section: Any, prefix: str) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from _missing_keys(value, f"{prefix}{key}.")
        elif value == _MISSING:
            yield f"{prefix}{key}"
