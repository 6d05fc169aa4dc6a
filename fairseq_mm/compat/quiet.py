"""Hides messages of fairseq's commands on which a user cannot act.

These are warnings of deprecated functions that fairseq, fairscale, hydra and PyTorch call, lists of
unchanged settings, and notes of fairseq about its iterators. Errors, and warnings about data,
options and precision, stay. ``FAIRSEQ_MM_VERBOSE=1`` shows everything.

fairseq's commands import fairseq before they load a plugin. Warnings of this import, and the notice
of ``fairseq.tasks.text_to_speech`` about tensorboardX, cannot be hidden here.
"""

import functools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from fairseq_mm.compat.scope import is_program
from fairseq_mm.errors.verbosity import is_verbose

# packages whose deprecated calls a user cannot change; a module of his own still warns
_LIBRARIES = ("fairscale", "fairseq", "fairseq_cli", "fairseq_mm", "hydra", "omegaconf", "torch")
# UserWarnings of hydra, which name the caller's module, and of PyTorch: how their messages begin
_MESSAGES = (
    r"hydra\.experimental\.",
    r"The version_base parameter is not specified",
    r"In '.*': Usage of deprecated keyword in package header",
    r"'.*' is validated against ConfigStore schema",
    r"The strict flag in the compose API is deprecated",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
)
# loggers to which fairseq's commands write all settings
SETTINGS = ("train", "generate", "validate", "interactive", "eval_lm")
# notes about iterators, several in each epoch: how they begin
_NOTES = ("can_reuse_epoch_itr =", "reuse_dataloader =", "rebuild_batches =")
_NOTES_LOGGER = "fairseq.tasks.fairseq_task"
# settings that `fairseq-mm score` reads in the log of fairseq-generate, changed or not
_READ_BY_SCORE = {
    "common": ("seed", "fp16", "bf16"),
    "common_eval": ("path", "model_overrides"),
    "dataset": ("gen_subset",),
}
# sections of a training; commands that read a checkpoint have unused defaults there
_OF_TRAINING = ("model", "criterion", "optimizer", "lr_scheduler")


def hides_messages() -> bool:
    """Return True in a command of fairseq, unless ``FAIRSEQ_MM_VERBOSE`` asks for all messages."""
    return is_program() and not is_verbose()


def hide_library_warnings() -> None:
    """Hide warnings of deprecated functions that fairseq and the libraries below it call."""
    modules = rf"(sys|__main__|({'|'.join(_LIBRARIES)})(\.|$))"
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module=modules)
    for message in _MESSAGES:
        warnings.filterwarnings("ignore", rf"\s*{message}", UserWarning)


def shorten_log() -> None:
    """Make fairseq's commands log changed settings only, and no notes about iterators.

    The log is shortened by filters of loggers, because filters of handlers do not apply to
    ``--log-file``.
    """
    for name in SETTINGS:
        logging.getLogger(f"fairseq_cli.{name}").addFilter(
            functools.partial(_shorten_settings, is_training=name in ("train", "validate"))
        )
    logging.getLogger(_NOTES_LOGGER).addFilter(_is_no_note)


def _is_no_note(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_NOTES)


def _shorten_settings(record: logging.LogRecord, *, is_training: bool) -> bool:
    """Replace a config in ``record`` by its changed settings; return True, which keeps the record.

    ``is_training`` is True for the config of a training.
    """
    from omegaconf import DictConfig

    if isinstance(record.msg, DictConfig) and "common" in record.msg:
        record.msg = changed_settings(record.msg, is_training=is_training)
    return True


def changed_settings(cfg: Any, *, is_training: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of a config that differ from fairseq's defaults, by section.

    The sections of the search and of named components (task, model, criterion, ...) are returned
    whole, and so are settings that ``fairseq-mm score`` reads.

    Args:
        cfg: Config of a fairseq command, a ``DictConfig``.
        is_training: If False, the sections that only a training uses are left out.
    """
    from fairseq.dataclass.configs import FairseqConfig
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(cfg, resolve=True)
    fields = FairseqConfig.__dataclass_fields__
    found = {}
    for name, section in values.items():
        if not isinstance(section, Mapping) or (not is_training and name in _OF_TRAINING):
            continue
        default = fields[name].default if name in fields else None
        if is_dataclass(default) and (is_training or name != "generation"):
            defaults: Any = OmegaConf.to_container(OmegaConf.structured(default))
            always = _READ_BY_SCORE.get(name, ())
            section = {
                key: value
                for key, value in section.items()
                if key in always or value != _default(cfg, defaults, key)
            }
        if section:
            found[name] = dict(section)
    return found


def _default(cfg: Any, defaults: Mapping[str, Any], key: str) -> Any:
    """Return the default of the setting ``key``; Ellipsis if the setting has no default."""
    from omegaconf import OmegaConf

    default = defaults.get(key, ...)
    # such as ${common.fp16}: the value of another setting
    if isinstance(default, str) and default.startswith("${"):
        return OmegaConf.select(cfg, default[2:-1])
    return default
