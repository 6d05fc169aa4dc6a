"""Makes the moving average of a training's weights the weights of its checkpoint.

``--store-ema`` keeps a moving average of the weights in a checkpoint, beside the weights. fairseq
itself neither validates nor loads this average. With ``--use-ema``, a task of this package
validates it, and every command that builds the model of the checkpoint has the average as its
weights. A training that is resumed or finetuned from the checkpoint continues with the weights.
"""

from collections.abc import Mapping
from typing import Any

from fairseq_mm.errors import UserError

# entry of the task's state in checkpoints whose validation scores are of the average
AVERAGE_KEY = "uses_ema"


def use_averaged_weights(state: Any, path: str) -> None:
    """Replace a checkpoint's weights by their average if its task has validated the average.

    Args:
        state: Content of the checkpoint, which is changed.
        path: Path of the checkpoint, for messages.

    Raises:
        UserError: if the checkpoint contains no average.
    """
    task_state = state.get("task_state") if isinstance(state, Mapping) else None
    if not isinstance(task_state, Mapping) or not task_state.get(AVERAGE_KEY):
        return
    extra_state = state.get("extra_state")
    average = extra_state.pop("ema", None) if isinstance(extra_state, dict) else None
    if not isinstance(average, Mapping):
        raise UserError(
            f"{path}: must contain the average of its weights (--use-ema), but does not."
        )
    state["model"] = average
    # an exported folder has the average as its weights, and nothing to replace
    state["task_state"] = {key: x for key, x in task_state.items() if key != AVERAGE_KEY}
