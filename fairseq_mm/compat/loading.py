"""fairseq's loading of checkpoints: checked, whichever command or model asks for it."""

import contextlib
import os
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

from fairseq_mm.compat.evaluated_options import EVALUATED, check_options, evaluate_literal
from fairseq_mm.compat.scope import names_ours
from fairseq_mm.compat.unpickling import checkpoints, read_torch_file, refusal
from fairseq_mm.errors import UserError, is_user_error

# where fairseq reads files that a user, or the options of a checkpoint, name
LOADING = (
    "checkpoint_utils.py",
    "data/codedataset.py",
    "models/speech_to_text/xm_transformer.py",
    "models/text_to_speech/vocoder.py",
)


def module_of(place: str) -> str:
    file = place.partition(":")[0]
    return "fairseq." + file[: -len(".py")].replace("/", ".")


# modules that evaluate text
EVALUATING = ("fairseq.utils", *sorted({module_of(place) for place in EVALUATED}))
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
        name = _name_of(file)
        try:
            state = read_torch_file(file, checkpoints(), map_location=map_location)
        except OSError:
            raise
        except Exception as error:  # PyTorch and pickle raise nearly anything on a crafted file
            raise refusal(name, error, kind="fairseq checkpoint") from None
        check_options(state, name)
        _check_weights(state, name)
        _activate_for(state)
        return state


def _activate_for(state: Any) -> None:
    """Apply all repairs where a checkpoint of this package is loaded, under whichever task."""
    options = [state.get("cfg"), state.get("args")] if isinstance(state, Mapping) else []
    # options of a damaged file may raise anything when they are read; fairseq refuses them later
    with contextlib.suppress(Exception):
        if any(names_ours(section) for section in options):
            from fairseq_mm.compat import repairs

            repairs.activate()


def _check_weights(state: Any, name: str) -> None:
    """Complex numbers would lose their imaginary part where they are copied into a model."""
    weights = state.get("model") if isinstance(state, Mapping) else None
    for key, weight in weights.items() if isinstance(weights, Mapping) else ():
        if hasattr(weight, "is_complex") and weight.is_complex():
            raise UserError(f"{name}: its weights must be real numbers, but {key} is complex.")


@contextlib.contextmanager
def named_failures(
    path: str, what: str = "no model can be made of this checkpoint"
) -> Iterator[None]:
    """Around what is made of a checkpoint: what fails there becomes one line that names the file.

    Options may be of any type, and task and model are built of them before weights are compared.
    The line ends with the place that failed, for those who develop a model.

    Args:
        path: The checkpoint.
        what: What fails, for the message.

    Raises:
        UserError: from whatever was raised, but for errors of the system.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        named = error.filename
        if named is None or os.fsdecode(named) in path.split(os.pathsep):
            raise
        raise UserError(
            f"{path}: {what}: it names {named}, which cannot be read ({error.strerror})."
        ) from error
    except Exception as error:
        if is_user_error(error):
            raise
        while error.__cause__ is not None:  # fairseq tells of the model, its cause of the tensor
            error = error.__cause__  # type: ignore[assignment]
        if "flat_param_0" in str(error):
            raise UserError(
                f"{path}: is a shard of a training with --use-sharded-state: give the name without "
                "-shard0, and --checkpoint-shard-count with the number of its processes."
            ) from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"{path}: {what}: {type(error).__name__}: "
            f"{str(error)[:500]} ({os.path.basename(frame.filename)}:{frame.lineno})"
        ) from error


def _name_of(file: Any) -> str:
    name = getattr(file, "name", file)
    return os.fspath(name) if isinstance(name, (str, os.PathLike)) else "checkpoint"


def guard_evaluation() -> None:
    """``eval`` in fairseq's modules reads literals, and nothing else.

    Behind :func:`guard_loading`: for options that reach ``eval`` by a name, or in a way, that its
    table does not know. Goes with it.
    """
    for name in EVALUATING:
        module = sys.modules.get(name)
        if module is not None:
            vars(module)["eval"] = evaluate_literal
