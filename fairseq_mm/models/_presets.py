"""Registers presets: named architectures that are a model with other defaults (``--arch NAME``).

A preset is a dict from fields of a model's config to values, defined in the model's file. It gives
the same config with ``fairseq-train --arch NAME``, with hydra's ``model=NAME`` and
``model: {_name: NAME}``, and from a checkpoint. Explicit values take precedence over the preset's
values, and the preset's values over the model's defaults.

With hydra, fairseq's ``register_model_architecture`` has no effect: fairseq first fills the config
with the defaults of the model's dataclass, and then calls the architecture's function, which finds
no option missing. Therefore each preset has its own dataclass, with the preset's values as
defaults.
"""

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import (
    ARCH_MODEL_NAME_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    register_model_architecture,
)
from hydra.core.config_store import ConfigStore

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {}  # name -> (model, field -> value)


def register_presets(model: str, presets: Mapping[str, Mapping[str, Any]]) -> None:
    """Register named architectures of a model with the command line and with hydra.

    ``presets`` maps the name of an architecture to its defaults, a dict from fields of the model's
    dataclass to values.
    """
    for name, values in presets.items():
        config = _preset_config(MODEL_DATACLASS_REGISTRY[model], name, values)
        register_model_architecture(model, name)(partial(_set_missing, values=values))
        # fairseq looks up the defaults of a config under this name, not under the model's name
        ARCH_MODEL_NAME_REGISTRY[name] = name
        MODEL_DATACLASS_REGISTRY[name] = config
        node = config(_name=name)
        ConfigStore.instance().store(name=name, group="model", node=node, provider="fairseq_mm")
        globals()[config.__name__] = config  # pickle looks up the class in this module
        PRESETS[name] = model, dict(values)


def _set_missing(cfg: Namespace, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        # Explicit values come first: fairseq calls this after it has parsed the command line.
        setattr(cfg, name, getattr(cfg, name, value))


def _preset_config(
    base: type[FairseqDataclass], name: str, values: Mapping[str, Any]
) -> type[FairseqDataclass]:
    fields = base.__dataclass_fields__
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise ValueError(f"preset {name}: {base.__name__} has no field {', '.join(unknown)}.")
    # A dataclass of its own, because hydra fills a config from the dataclass before it calls the
    # function of the architecture.
    return dataclasses.make_dataclass(
        "".join(part.capitalize() for part in name.split("_")) + "Config",
        [
            (
                field,
                fields[field].type,
                dataclasses.field(default=x, metadata=fields[field].metadata),
            )
            for field, x in values.items()
        ],
        bases=(base,),
        namespace={"__doc__": f"Defaults of ``--arch {name}``.", "__module__": __name__},
    )
