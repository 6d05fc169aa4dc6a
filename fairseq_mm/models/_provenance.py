"""What a checkpoint was trained on, carried in its weights: dictionary and image extractor.

fairseq reads ``task_state`` only when a model is loaded for generation, and the configuration of
a resumed run is the command line's. So the fingerprint travels in the model's state: it is
checked by every way of loading.
"""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mm.errors import UserError

def dictionary_fingerprint(dictionary: Any) -> dict[str, Any]:
    """Size and SHA-256 of the words of a fairseq dictionary, in order."""
    words = "\n".join(dictionary.symbols).encode()
    return {"words": len(dictionary), "sha256": hashlib.sha256(words).hexdigest()}


class Provenance(nn.Module):
    """Refuses to load weights that were trained with another dictionary or extractor.

    Its extra state is a tensor of the bytes of a JSON object, 64 bits each: fairseq's averaging of
    checkpoints adds up tensors of integers and divides them again.

    Args:
        dictionary: fingerprint of the target dictionary, see :func:`dictionary_fingerprint`.
        extractor: attributes of the feature store that say how a picture became a vector; empty
            when they are not known.
    """

    def __init__(self, dictionary: dict[str, Any], extractor: dict[str, Any]) -> None:
        super().__init__()
        self.dictionary = dictionary
        self.extractor = dict(extractor)

    @classmethod
    def of_task(cls, task: Any) -> "Provenance":
        return cls(
            dictionary_fingerprint(task.target_dictionary),
            getattr(task, "feature_attributes", {}),
        )

    def get_extra_state(self) -> Tensor:
        text = json.dumps({"dictionary": self.dictionary, "extractor": self.extractor})
        return torch.tensor(list(text.encode()), dtype=torch.int64)

    def set_extra_state(self, state: Tensor) -> None:
        """
        Raises:
            UserError: if the weights come from another dictionary or extractor.
        """
        saved = decode_provenance(state)
        trained, given = saved["dictionary"], self.dictionary
        if trained["sha256"] != given["sha256"]:
            cause = (
                "the same number of words in another order"
                if trained["words"] == given["words"]
                else "the text was prepared with another vocabulary threshold or other training text"
            )
            raise UserError(
                f"the checkpoint was trained with a dictionary of {trained['words']} words "
                f"(sha256 {trained['sha256'][:12]}), but the data folder's dict.txt has "
                f"{given['words']} (sha256 {given['sha256'][:12]}): {cause}?"
            )
        trained, given = saved["extractor"], self.extractor
        for key in trained:
            if key in given and trained[key] != given[key]:
                raise UserError(
                    f"the checkpoint was trained on features with {key} {trained[key]!r}, but the "
                    f"feature store has {given[key]!r}: extract with the checkpoint's extractor."
                )
        if trained:
            self.extractor = trained


def decode_provenance(state: Tensor) -> dict[str, Any]:
    """The JSON object of a ``provenance._extra_state`` tensor."""
    return json.loads(bytes(state.tolist()).decode())
