"""What a checkpoint was trained on, carried in its weights: dictionary and image extractor.

fairseq reads ``task_state`` only when a model is loaded for generation, and the configuration of
a resumed run is the command line's. So both travel in the model's state: they are checked by every
way of loading, and a checkpoint needs no ``dict.txt`` beside it.
"""

import hashlib
import json
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_mm.errors import UserError

# fairseq's moving average of weights leaves out what has "version" in its name, and would fail to
# average integers.
MODULE_NAME = "data_version"
STATE_KEY = f"{MODULE_NAME}._extra_state"


def words_of(dictionary: Dictionary) -> list[str]:
    """Words of a fairseq dictionary in the order of their indices, special symbols left out."""
    return dictionary.symbols[dictionary.nspecial :]


def fingerprint(words: list[str]) -> str:
    """First twelve digits of the SHA-256 of the words in their order."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


class Provenance(nn.Module):
    """Refuses to load weights that were trained with another dictionary or extractor.

    Its extra state is a tensor of the bytes of a JSON object, 32 bits each: fairseq's averaging of
    checkpoints adds up tensors of integers and divides them again.

    Args:
        words: of the target dictionary, see :func:`words_of`.
        extractor: attributes of the feature store that say how a picture became a vector; empty
            when they are not known.
        feature_dim: channels of the features.
    """

    def __init__(self, words: list[str], extractor: dict[str, Any], feature_dim: int) -> None:
        super().__init__()
        self.words = words
        self.extractor = dict(extractor)
        self.feature_dim = feature_dim

    @classmethod
    def of_task(cls, task: Any) -> "Provenance":
        return cls(words_of(task.target_dictionary), task.feature_attributes, task.feature_dim)

    def get_extra_state(self) -> Tensor:
        content = {
            "words": self.words,
            "extractor": self.extractor,
            "feature_dim": self.feature_dim,
        }
        return torch.tensor(list(json.dumps(content).encode()), dtype=torch.int32)

    def set_extra_state(self, state: Tensor) -> None:
        """
        Raises:
            UserError: if the weights come from another dictionary or extractor.
        """
        saved = decode_provenance(state)
        if saved["words"] != self.words:
            cause = (
                "the same words in another order"
                if sorted(saved["words"]) == sorted(self.words)
                else "prepared with another vocabulary threshold, or from other training text"
            )
            raise UserError(
                f"the checkpoint was trained with a dictionary of {len(saved['words'])} words "
                f"(fingerprint {fingerprint(saved['words'])}), but dict.txt of the data folder has "
                f"{len(self.words)} (fingerprint {fingerprint(self.words)}): {cause}."
            )
        if saved["feature_dim"] != self.feature_dim:
            raise UserError(
                f"the checkpoint was trained on features of {saved['feature_dim']} channels, but "
                f"the feature store has {self.feature_dim}."
            )
        trained = saved["extractor"]
        for key in trained:
            if key in self.extractor and trained[key] != self.extractor[key]:
                raise UserError(
                    f"the checkpoint was trained on features with {key} = {trained[key]!r}, but "
                    f"the feature store has {self.extractor[key]!r}: extract with the checkpoint's "
                    "extractor."
                )
        self.extractor = trained or self.extractor


def decode_provenance(state: Tensor) -> dict[str, Any]:
    """Content of the entry ``STATE_KEY`` of a checkpoint's weights.

    Returns:
        ``words``, ``extractor`` and ``feature_dim`` as given to :class:`Provenance`.
    """
    return json.loads(bytes(state.tolist()).decode())
