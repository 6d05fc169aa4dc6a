"""Presets: named architectures that are a model with other defaults (``--arch NAME``).

A preset is a table of field -> value in the model's file. The name means the same however the
configuration is built: ``fairseq-train --arch NAME``, hydra's ``model=NAME`` and
``model: {_name: NAME}``, and the configuration in a checkpoint. A value that is given wins, the
preset's is next, the model's own default last.

fairseq's ``register_model_architecture`` alone is not enough. hydra's path
(``fairseq.dataclass.initialize.add_defaults``) fills a configuration from the model's dataclass
before the architecture's function sees it, so that the function finds nothing left to set. Here
each name has a dataclass of its own, with the preset's values as defaults.
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
    """Registers architectures with the command line and with hydra.

    Args:
        model: name of a registered model that has a dataclass.
        presets: name of the architecture -> field of that dataclass -> default.

    Raises:
        ValueError: if a name is taken, or a field is unknown.
    """
    for name, values in presets.items():
        config = _preset_config(MODEL_DATACLASS_REGISTRY[model], name, values)
        register_model_architecture(model, name)(partial(_set_missing, values=values))
        # fairseq looks for the defaults of a configuration under this name, not under the model's
        ARCH_MODEL_NAME_REGISTRY[name] = name
        MODEL_DATACLASS_REGISTRY[name] = config
        node = config(_name=name)
        ConfigStore.instance().store(name=name, group="model", node=node, provider="fairseq_mm")
        globals()[config.__name__] = config  # where pickle looks for it
        PRESETS[name] = model, dict(values)


def _set_missing(cfg: Namespace, values: Mapping[str, Any]) -> None:
    """Sets the options that the command line did not give."""
    for name, value in values.items():
        setattr(cfg, name, getattr(cfg, name, value))


def _preset_config(
    base: type[FairseqDataclass], name: str, values: Mapping[str, Any]
) -> type[FairseqDataclass]:
    """A subclass of a dataclass with other defaults; types and help texts stay."""
    fields = base.__dataclass_fields__
    unknown = sorted(values.keys() - fields.keys())
    if unknown:
        raise ValueError(f"preset {name}: {base.__name__} has no field {', '.join(unknown)}.")
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
