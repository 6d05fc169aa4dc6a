"""Configurations as fairseq's commands build them, and fairseq-hydra-train in this process."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fairseq
import fairseq_cli.hydra_train
from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.file_io import PathManager
from hydra.core.global_hydra import GlobalHydra
from hydra.experimental import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

FAIRSEQ_CONFIG = Path(fairseq.__file__).parent / "config"


def parsed_config(arguments: Sequence[str]) -> DictConfig:
    """What ``fairseq-train`` makes of its arguments before it builds anything."""
    args = options.parse_args_and_arch(options.get_training_parser(), list(arguments))
    with warnings.catch_warnings():  # of hydra, about fairseq's use of it
        warnings.simplefilter("ignore")
        cfg = convert_namespace_to_omegaconf(args)
    add_defaults(cfg)
    return cfg


def composed_config(
    monkeypatch: Any, folder: Path, name: str, overrides: Sequence[str] = ()
) -> DictConfig:
    """What ``fairseq-hydra-train --config-dir FOLDER --config-name NAME`` makes of its arguments
    before it builds anything: fairseq's own code runs up to its training."""
    found = []

    def train(cfg: DictConfig) -> None:
        add_defaults(cfg)  # as fairseq's training begins, when the plugin has been imported
        found.append(cfg)

    monkeypatch.setattr(fairseq_cli.hydra_train, "pre_main", train)
    # recipes name pretrained checkpoints that are not here
    monkeypatch.setattr(PathManager, "isfile", lambda path: True)
    run_hydra(folder, name, [*overrides, "distributed_training.distributed_world_size=1"])
    return found[0]


def run_hydra(folder: Path, name: str, overrides: Sequence[str]) -> float:
    """``fairseq-hydra-train --config-dir FOLDER --config-name NAME OVERRIDES``, but for the working
    folder and the log files, which are hydra's."""
    GlobalHydra.instance().clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hydra_init(name)
        with initialize_config_dir(str(folder)):
            cfg = compose(name, overrides=list(overrides))
            return fairseq_cli.hydra_train._hydra_main(cfg)


def write_yaml(path: Path, sections: Mapping[str, Any]) -> None:
    OmegaConf.save(OmegaConf.create(dict(sections)), path)


def plain(section: Any) -> Any:
    """A section of a configuration as dicts, lists, strings and numbers."""
    return OmegaConf.to_container(section, resolve=True, enum_to_str=True)
