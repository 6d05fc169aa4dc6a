"""Repairs single functions of fairseq, and imports fairseq without side effects."""

import contextlib
import difflib
import functools
import glob
import importlib.util
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

from fairseq_mm.compat.loading import refuse_folder
from fairseq_mm.compat.model_folders import is_model_folder
from fairseq_mm.compat.pytorch import multiplies_float16_on_cpu
from fairseq_mm.compat.scope import is_ours
from fairseq_mm.data.model_folder import WEIGHTS_FILE
from fairseq_mm.errors import UserError
from fairseq_mm.errors.verbosity import is_verbose

logger = logging.getLogger(__name__)


def check_fairseq() -> None:
    """Check that fairseq can be imported.

    Raises:
        ImportError: if fairseq is missing or cannot be imported; the message says what to install.
    """
    newer = sys.version_info >= (3, 11)
    remedy = "pip install 'fairseq-mm[fairseq]'" + (
        " (it brings fairseq-fixed, the build of fairseq for Python 3.11 and newer)"
        if newer
        else " (it brings fairseq 0.12.2; pip must be older than 24.1)"
    )
    try:
        with _quiet_import():
            import fairseq  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "fairseq":
            raise ImportError(
                f"fairseq needs the package {error.name}, which is missing; try: {remedy}"
            ) from None
        raise ImportError(
            f"fairseq_mm is a plugin of fairseq, which is missing: {remedy}"
        ) from None
    except ValueError as error:
        # stock fairseq's configuration on Python 3.11: "mutable default ... is not allowed"
        raise ImportError(
            f"the fairseq that is installed does not run on Python "
            f"{sys.version_info.major}.{sys.version_info.minor} ({error}); "
            f"pip uninstall -y fairseq, then {remedy}"
        ) from None


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Hide warnings inside the context, and restore the root logger's handlers and level after it.

    Nothing is done if fairseq is imported already.
    """
    # fairseq's commands have imported fairseq and configured their log before they import a plugin
    if "fairseq" in sys.modules:
        yield
        return
    import torch  # noqa: F401  (imported before warnings are hidden)

    # some of fairseq's tasks and models call logging.basicConfig, one with the level DEBUG
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    if not handlers and logging.lastResort is not None:
        # basicConfig does nothing if there is a handler; this handler prints as if there were none
        root.addHandler(logging.lastResort)
    try:
        with warnings.catch_warnings():
            if not is_verbose():
                # PyTorch 2.4 and newer warn of functions that fairseq and fairscale call on import
                warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def silence_libraries() -> None:
    """Hide log messages of h5py and hydra that fairseq's commands would print at every start."""
    for name in ("h5py", "hydra"):
        library = logging.getLogger(name)
        if library.level == logging.NOTSET:
            library.setLevel(logging.WARNING)


def is_command() -> bool:
    return "fairseq_cli" in sys.modules


def silence_pin_memory() -> None:
    """Hide PyTorch's warning that memory cannot be pinned without a GPU; fairseq always pins it."""
    warnings.filterwarnings(
        "ignore", r"'pin_memory' argument is set as true but no accelerator", UserWarning
    )


def configure_command(cfg: Any) -> None:
    """Correct settings of a fairseq command before it runs, and refuse settings that cannot work.

    With ``--bf16``, fairseq switches to TPUs even if there are none; this is undone. With
    ``--fp16`` on a CPU, ``--fp16-no-flatten-grads`` is set.

    Args:
        cfg: Config of the command, changed in place.
    """
    import torch
    from omegaconf import open_dict

    # fairseq looks for the file after it has read the data
    _check_first_checkpoint(cfg.checkpoint)
    on_cpu = cfg.common.cpu or not torch.cuda.is_available()
    if cfg.common.fp16 and on_cpu and not multiplies_float16_on_cpu():
        raise UserError(
            f"--fp16 without a GPU: PyTorch {torch.__version__} multiplies no float16 on a "
            "CPU. Use --bf16, or a newer PyTorch."
        )
    with open_dict(cfg):
        # fairseq's parser switches tpu on with --bf16, which fails without torch_xla
        if cfg.common.bf16 and cfg.common.tpu and not importlib.util.find_spec("torch_xla"):
            cfg.common.tpu = False
            cfg.distributed_training.tpu = False
        if cfg.common.fp16 and on_cpu and not cfg.common.fp16_no_flatten_grads:
            cfg.common.fp16_no_flatten_grads = True
    if cfg.common.get("memory_efficient_bf16"):
        logger.warning(
            "--memory-efficient-bf16 keeps no float32 copy of the weights: updates below 1/256 "
            "of a weight are lost, and models learn less. --bf16 keeps one."
        )


def _check_first_checkpoint(cfg: Any) -> None:
    """Raise UserError if the file of ``--finetune-from-model`` or ``--restore-file`` is missing."""
    from fairseq.file_io import PathManager
    from omegaconf import open_dict

    for option in ("finetune_from_model", "restore_file"):
        path = cfg[option]
        if path is not None and os.path.isdir(path) and is_model_folder(path):
            # fairseq begins anew, without a message, if the path is no file
            path = os.path.join(path, WEIGHTS_FILE)
            with open_dict(cfg):
                cfg[option] = path
        if path is None or PathManager.isfile(path):
            continue
        # a training that continues needs no --finetune-from-model, and a script may name its own
        # checkpoint_last.pt as --restore-file before there is one
        is_fine_tuning = option == "finetune_from_model"
        last = os.path.join(glob.escape(cfg.save_dir), "checkpoint_last*.pt")
        if glob.glob(last) if is_fine_tuning else os.path.basename(path) == "checkpoint_last.pt":
            continue
        flag = f"--{option.replace('_', '-')} {path}"
        refuse_folder(path, flag)
        # a sharded training reads NAME-shard0.pt and the like
        if not glob.glob(f"{glob.escape(path.removesuffix('.pt'))}-shard*.pt"):
            raise UserError(f"{flag}: there is no such file.")


def name_unknown_architectures() -> None:
    """Make fairseq report an unknown architecture in one line, with similar names.

    fairseq's own assertion prints all options of the training.
    """
    from fairseq import models

    original = models.build_model

    @functools.wraps(original)
    def build_model(cfg: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        known = {**models.ARCH_MODEL_REGISTRY, **models.MODEL_DATACLASS_REGISTRY}
        if isinstance(name, str) and name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f": did you mean {' or '.join(near)}?" if near else "."
            raise UserError(
                f"--arch {name} (model._name) is not known{hint} A model of your own needs the "
                "--user-dir of its package."
            )
        try:
            return original(cfg, *args, **kwargs)
        except AttributeError as error:
            kind = models.ARCH_MODEL_REGISTRY.get(name)
            of_task = args and getattr(error, "obj", None) is args[0]
            if not of_task or not is_ours(kind):
                raise
            raise UserError(
                f"--arch {name}: needs the attribute `{error.name}` of a task of the plugin, but "
                f"{type(args[0]).__name__} has none: give --task."
            ) from error

    models.build_model = build_model


def repair_ddp_on_cpu() -> None:
    """Let PyTorch's ``DistributedDataParallel`` run on CPUs: do not pass fairseq's device ids."""
    from fairseq.models import distributed_fairseq_model

    original = distributed_fairseq_model.DistributedDataParallel

    def build(module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> Any:
        # PyTorch refuses device ids for a module on the CPU
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        return original(module, device_ids=device_ids, output_device=output_device, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = build


def keeps_overlap_of_groups() -> bool:
    from fairseq.search import DiverseBeamSearch

    return "group_overlap" in DiverseBeamSearch.__init__.__code__.co_names


def repair_diverse_beam() -> None:
    """Repair ``--diverse-beam-groups``, which ends in IndexError in newer builds of fairseq."""
    from fairseq.search import DiverseBeamSearch

    original = DiverseBeamSearch.step

    @functools.wraps(original)
    def step(
        self: Any,
        step: int,
        lprobs: Any,
        scores: Any,
        prev_output_tokens: Any = None,
        original_batch_idxs: Any = None,
    ) -> Any:
        if step == 0:
            self.sentence_ids = original_batch_idxs
            # with as many candidates as beams, finished texts continue and unfinished texts are
            # lost; stock fairseq selects twice as many, too
            self.candidate_multiple = 2
        # the overlap of groups has a row per sentence of the batch, but fairseq indexes it by the
        # sentences' numbers in the dataset
        rows = original_batch_idxs[:, None].eq(self.sentence_ids).int().argmax(dim=1)
        return original(self, step, lprobs, scores, prev_output_tokens, rows)

    DiverseBeamSearch.step = step


def attention_keeps_beam_size() -> bool:
    from fairseq.modules import MultiheadAttention

    return "beam_size" in MultiheadAttention.forward.__code__.co_names


def repair_beams_in_training() -> None:
    """Reset the beam size in attention modules after a generation, so that training is correct.

    fairseq's ``MultiheadAttention`` keeps the beam size of the last generation. A model that is
    trained afterwards, such as BART with ``--eval-bleu``, would attend to the source texts of other
    examples in the batch.
    """
    from fairseq.modules import MultiheadAttention
    from fairseq.sequence_generator import EnsembleModel

    forward, set_beam_size = MultiheadAttention.forward, EnsembleModel.set_decoder_beam_size

    @functools.wraps(forward)
    def forward_of_beams(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        incremental_state: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # a generator leaves its beam size in the attention, which then treats every batch as the
        # beams of one text, even without an incremental state
        beam = self.beam_size
        if incremental_state is None:
            self.beam_size = 1
        try:
            return forward(
                self, query, key, value, key_padding_mask, incremental_state, *args, **kwargs
            )
        finally:
            self.beam_size = beam

    @functools.wraps(set_beam_size)
    def set_every_beam_size(self: Any, beam_size: int) -> None:
        set_beam_size(self, beam_size)
        # fairseq does not reset the beam size of an earlier generator to 1
        if beam_size == 1:
            for module in self.modules():
                if isinstance(module, MultiheadAttention):
                    module.beam_size = 1

    MultiheadAttention.forward = forward_of_beams
    EnsembleModel.set_decoder_beam_size = set_every_beam_size


def numpy_lacks_compat() -> bool:
    import numpy as np

    return not hasattr(np, "compat")


def repair_token_blocks() -> None:
    """Provide ``numpy.compat.long`` to two modules of fairseq; NumPy 2 does not have it.

    ``--task language_modeling --sample-break-mode eos`` needs it, and so does ``--task
    translation --num-batch-buckets``.
    """
    import numpy as np
    from fairseq.data import language_pair_dataset, token_block_dataset

    numpy_with_compat: Any = types.ModuleType("numpy")
    numpy_with_compat.__dict__.update(vars(np))
    numpy_with_compat.compat = types.SimpleNamespace(long=int)
    for module in (language_pair_dataset, token_block_dataset):
        module.np = numpy_with_compat


def misses_repeats() -> bool:
    import torch
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    # </s> 4 5 4 and two steps to come: 5 would repeat the bigram 4 5
    tokens = torch.tensor([[2, 4, 5, 4, 1, 1]])
    blocker = NGramRepeatBlock(2, use_extension=False)
    return not blocker(tokens, torch.zeros(1, 6), 1, 1, 3)[0, 5].isinf()


def repair_repeat_blocking() -> None:
    """Repair ``--no-repeat-ngram-size``, which has no effect without fairseq's CUDA extension."""
    from fairseq.ngram_repeat_block import NGramRepeatBlock

    NGramRepeatBlock._no_repeat_ngram = _no_repeat_ngram


def _no_repeat_ngram(
    self: Any, tokens: Any, lprobs: Any, bsz: int, beam_size: int, step: int
) -> Any:
    """Set the log-probability of words that would repeat an n-gram to -inf; return ``lprobs``.

    A word that is the only possible word of its step does not change. ``tokens`` is [N, L] and
    ``lprobs`` [N, vocabulary], where N is batch size times beam size.
    """
    # tokens [N, L] are </s>, `step` words, and a buffer that later steps fill, with whose end
    # fairseq compares instead of the last words
    n = self.no_repeat_ngram_size
    if step < n:
        return lprobs
    words = tokens[:, 1 : step + 1]
    windows = words.unfold(1, n, 1)  # [N, step - n + 1, n]
    last = words[:, step - n + 1 :].unsqueeze(1)
    is_allowed = windows[:, :, : n - 1].ne(last).any(dim=2)
    is_allowed |= _have_one_word(lprobs, is_allowed).unsqueeze(1)
    # The logarithm is -inf for a repeat and 0 otherwise. A sum needs no list of the repeats, which
    # would wait for a GPU.
    return lprobs.scatter_add_(1, windows[:, :, n - 1], is_allowed.log().to(lprobs.dtype))


def _have_one_word(lprobs: Any, is_allowed: Any) -> Any:
    """Return a mask [N], True at rows with at most one possible word, such as a word of a prefix.

    ``is_allowed`` [N, W] is False at words that would repeat an n-gram. The mask may be False for
    rows without such words.
    """
    import torch

    if lprobs.is_cuda:
        return lprobs.gt(-float("inf")).sum(dim=1, dtype=torch.int32) <= 1
    # A CPU takes long to read a whole vocabulary, and most rows have no repeats. On a GPU, listing
    # the rows would wait.
    result = is_allowed.new_zeros(len(lprobs))
    rows = (~is_allowed).any(dim=1).nonzero().squeeze(1)
    result[rows] = lprobs[rows].gt(-float("inf")).sum(dim=1, dtype=torch.int32) <= 1
    return result
