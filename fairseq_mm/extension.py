"""Offers everything that a model or a task of your own needs from this package.

Names of this module stay compatible within a minor version; other modules may change. Importing
this module registers fairseq_mm with fairseq, so a package that imports this module can be given as
``--user-dir``. The pages "Add a model" and "Add a task" of the documentation use only these names.
"""

from typing import Any

from torch import nn

import fairseq_mm
from fairseq_mm.errors import UserError

# before the other imports: their modules use fairseq's classes, which the repairs change
fairseq_mm.register()

from fairseq_mm.compat.options import check_sizes, option  # noqa: E402
from fairseq_mm.inference.processor import Example, Processor, read_field  # noqa: E402
from fairseq_mm.models._bases import (  # noqa: E402
    BatchFirstEncoder,
    FeatureDecoder,
    masked_mean,
)
from fairseq_mm.models._presets import register_presets  # noqa: E402
from fairseq_mm.models._provenance import MODULE_NAME, Provenance  # noqa: E402
from fairseq_mm.tasks.multimodal_captioning import (  # noqa: E402
    MultimodalCaptioningConfig,
    MultimodalCaptioningTask,
)
from fairseq_mm.tasks.multimodal_task import MultimodalTask, MultimodalTaskConfig  # noqa: E402

__all__ = [
    "BatchFirstEncoder",
    "Example",
    "FeatureDecoder",
    "MultimodalCaptioningConfig",
    "MultimodalCaptioningTask",
    "MultimodalTask",
    "MultimodalTaskConfig",
    "Processor",
    "UserError",
    "attach_provenance",
    "check_sizes",
    "masked_mean",
    "option",
    "read_field",
    "register_presets",
]


def attach_provenance(model: nn.Module, task: Any, *, has_source: bool = False) -> Any:
    """Add a record of the training data to a model's checkpoints.

    The record contains the dictionaries and the identity of the feature extractor, so that
    ``fairseq_mm.from_pretrained`` and the commands of ``fairseq-mm`` need no data folder. Loading a
    checkpoint into a task with another dictionary or extractor is an error. The record is saved in
    the state dict, as the model's submodule ``data_version``.

    Args:
        model: Model that ``build_model`` is about to return.
        task: Task that was given to ``build_model``.
        has_source: True if the model reads a source text, so that its dictionary is recorded, too.

    Returns:
        The model.
    """
    model.add_module(MODULE_NAME, Provenance.of_task(task, has_source=has_source))
    return model
