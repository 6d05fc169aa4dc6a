"""fairseq's loading of checkpoints: checked, whichever command or model asks for it."""

import os
import pickle
import sys
import types
from typing import Any

from fairseq_mm.compat.evaluated_options import EVALUATED, check_options, evaluate_literal
from fairseq_mm.compat.unpickling import UNNEEDED, checkpoints, read_torch_file
from fairseq_mm.errors import UserError

# where fairseq reads files that a user, or the options of a checkpoint, name
LOADING = (
    "checkpoint_utils.py",
    "data/codedataset.py",
    "models/speech_to_text/xm_transformer.py",
    "models/text_to_speech/vocoder.py",
)
# where it reads what its own processes have written -> what that is
OWN_DATA = {
    "distributed/utils.py": "what the processes of one training send each other",
    "modules/quantization/pq/em.py": "a temporary file that the same function has just written",
    "models/speech_to_text/hub_interface.py": "torch.hub, of a program that calls its interface",
}
# where it starts programs -> why no checkpoint chooses which, or what a shell reads
PROGRAMS = {
    "data/fasta_dataset.py:FastaDataset._build_index": "replaced by repair_index_of_fasta",
    "data/plasma_utils.py:PlasmaArray.start_server": (
        "a fixed program without a shell: plasma_store"
    ),
    "data/plasma_utils.py:PlasmaStore.start": "a fixed program without a shell: plasma_store",
    "distributed/utils.py:_infer_slurm_init": "a fixed program without a shell: scontrol",
    "tasks/audio_pretraining.py:AudioPretrainingConfig": "declares post_save_script",
    "tasks/audio_pretraining.py:AudioPretrainingTask.post_save": (
        "training alone calls it, whose task comes from the command line"
    ),
}


def guard_loading() -> None:
    """``torch.load`` in fairseq's modules: nothing runs that a checkpoint names.

    Neither what its pickle asks for nor what its options say. This is the one place that all
    checkpoints come through, before fairseq looks at their options: with ``fairseq-mm`` and
    ``from_pretrained``, in fairseq's own commands, and where a model loads another one. Goes when
    fairseq evaluates no option, and loads with weights only under every PyTorch (up to 2.5 it
    unpickles anything, and its main branch asks for that under any).
    """
    for file in LOADING:
        module = sys.modules.get(module_of(file))
        if module is not None:
            vars(module)["torch"] = _GuardedTorch()


class _GuardedTorch(types.ModuleType):
    """PyTorch with another ``load``: the same with every PyTorch, whatever its default, its
    variables of the environment or the caller say of ``weights_only``."""

    def __init__(self) -> None:
        super().__init__("torch")

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)

    @staticmethod
    def load(file: Any, map_location: Any = None, *args: Any, **options: Any) -> Any:
        try:
            state = read_torch_file(
                file, checkpoints(), emptied=UNNEEDED, map_location=map_location
            )
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{_name_of(file)}: is no fairseq checkpoint that can be loaded safely (with "
                f"weights only): {str(error)[:300]}. If you trust it, load it once with "
                "torch.load(..., weights_only=False), and save its tensors, containers and options."
            ) from None
        check_options(state, _name_of(file))
        return state


def _name_of(file: Any) -> str:
    name = getattr(file, "name", file)
    return os.fspath(name) if isinstance(name, (str, os.PathLike)) else "checkpoint"


def guard_evaluation() -> None:
    """``eval`` in fairseq's modules reads literals, and nothing else.

    Behind :func:`guard_loading`: for options that reach ``eval`` by a name, or in a way, that its
    table does not know. Goes with it.
    """
    for name in ("fairseq.utils", *sorted({module_of(place) for place in EVALUATED})):
        module = sys.modules.get(name)
        if module is not None:
            vars(module)["eval"] = evaluate_literal


def module_of(place: str) -> str:
    file = place.partition(":")[0]
    return "fairseq." + file[: -len(".py")].replace("/", ".")
