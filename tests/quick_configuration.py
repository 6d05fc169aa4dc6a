"""Configurations of fairseq's commands without what hydra computes anew for each.

To train a model of a test takes a tenth of a second. Hydra takes three times as long to compose its
configuration: it reads the source of each function on the stack, and sets each of 270 options.
Here hydra composes once a process. The chosen task, model and the like take their places as hydra
puts them there, and only those options are set that differ from those of the first command with the
same choices.
"""

import contextlib
import copy
import functools
from pathlib import Path
from typing import Any, Optional

import fairseq
from fairseq.dataclass import utils
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

initialize_by_hydra, compose_by_hydra = utils.initialize, utils.compose
# for each choice of task, model and the like, and the options' names: the first command's options,
# and its configuration
_composed: dict[tuple[str, ...], tuple[dict[str, str], DictConfig]] = {}


@functools.lru_cache(maxsize=2000)
def _parse(override: str) -> Any:
    return OverridesParser.create().parse_overrides([override])[0]


def _by_hydra(name: str, overrides: list[str], strict: Optional[bool]) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(Path(fairseq.__file__).parent / "config")):
        return compose_by_hydra(name, overrides=overrides, strict=strict)


@functools.lru_cache(maxsize=1)
def _without_choices(name: str) -> DictConfig:
    return _by_hydra(name, [], strict=True)


def _choose(name: str, choices: list[str]) -> DictConfig:
    cfg = copy.deepcopy(_without_choices(name))
    for choice in choices:
        group, _, value = choice.partition("=")
        node = ConfigStore.instance().load(f"{group}/{value}.yaml").node
        cfg[group] = OmegaConf.merge(OmegaConf.structured(node))
    return cfg


def _set_options(cfg: DictConfig, options: dict[str, str]) -> None:
    for override in map(_parse, options.values()):
        OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)


def compose(name: str, overrides: list[str], strict: Optional[bool] = None) -> DictConfig:
    """What hydra composes, of ``GROUP=CHOICE`` and then of ``KEY.KEY=VALUE``."""
    choices = [override for override in overrides if "." not in override.partition("=")[0]]
    options = {x.partition("=")[0]: x for x in overrides if "." in x.partition("=")[0]}
    key = (name, *choices, *options)
    try:
        if key not in _composed:
            cfg = _choose(name, choices)
            _set_options(cfg, options)
            _composed[key] = (options, cfg)
        first, cfg = _composed[key]
        others = {option: x for option, x in options.items() if first[option] != x}
        if any(isinstance(_parse(x).value(), dict) for x in others.values()):
            return _by_hydra(name, overrides, strict)  # its entries join those of the default
        cfg = copy.deepcopy(cfg)
        _set_options(cfg, others)
    except Exception:
        return _by_hydra(name, overrides, strict)  # which says more of it
    OmegaConf.set_struct(cfg, strict)
    return cfg


def prepare() -> None:
    """Let hydra compose now, so that forked processes need not."""
    _without_choices("config")


def install() -> None:
    """Makes fairseq's commands of this process compose here."""
    utils.initialize = lambda **_: contextlib.nullcontext()
    utils.compose = compose
