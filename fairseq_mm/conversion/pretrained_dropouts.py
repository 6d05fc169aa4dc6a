"""Reads the dropout probabilities of a pretrained model from its checkpoint."""

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.bart import BARTModel

from fairseq_mm.conversion.foreign_checkpoint import checkpoint_options, read_foreign_checkpoint
from fairseq_mm.conversion.new_checkpoint import complete_options
from fairseq_mm.errors import UserError
from fairseq_mm.models.t5 import T5Model
from fairseq_mm.models.vg_t5 import VgT5Model

_PRETRAINED = (BARTModel, T5Model, VgT5Model)
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def pretrained_dropouts(path: str) -> dict[str, float]:
    """Read the dropout probabilities of a pretrained model.

    Args:
        path: Path of a checkpoint of fairseq's BART or of T5, or of a
            model trained from such a checkpoint.

    Returns:
        Dict from ``dropout``, ``attention_dropout`` and ``activation_dropout`` to the probability;
        options that the checkpoint lacks are left out.
    """
    arch, options = checkpoint_options(read_foreign_checkpoint(path), path)
    if arch in ARCH_MODEL_REGISTRY and not issubclass(ARCH_MODEL_REGISTRY[arch], _PRETRAINED):
        raise UserError(f"{path}: must be a checkpoint of BART or T5, but --arch {arch} is not.")
    options = complete_options(arch, options)
    # fairseq's older name, which its layers take where the newer one is 0
    options["activation_dropout"] = options.get("activation_dropout") or options.get("relu_dropout")
    dropouts: dict[str, float] = {}
    for name in DROPOUTS:
        rate = options.get(name)
        if rate is None:
            continue
        # type, not isinstance: True is an int
        if type(rate) not in (int, float) or not 0 <= rate < 1:
            raise UserError(f"{path}: {name} must be 0 or more and below 1, but is {rate!r}.")
        dropouts[name] = float(rate)
    if "dropout" not in dropouts:
        raise UserError(f"{path}: does not say the dropout of its --arch {arch}.")
    return dropouts
