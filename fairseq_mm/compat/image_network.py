"""Names the weights of an image network that was trained with a model, and refuses them where a
model without image network is loaded."""

from collections.abc import Mapping
from typing import Any

from fairseq_mm.errors import WeightsError

# name of the network's module in the model
NETWORK_NAME = "image_network"
NETWORK_PREFIX = f"{NETWORK_NAME}."


def has_network(weights: Mapping[str, Any]) -> bool:
    """Return True if a model's state dict contains an image network."""
    return any(str(name).startswith(NETWORK_PREFIX) for name in weights)


def check_has_no_network(weights: Mapping[str, Any]) -> None:
    """Raise WeightsError if a model's state dict contains an image network."""
    if has_network(weights):
        raise WeightsError(
            "contains the image network that it was trained with (--photos): separate the two "
            "with fairseq-mm export CHECKPOINT FOLDER --separate-network, and take the checkpoint "
            "of that folder."
        )
