"""Registers with fairseq for subcommands, and imports the user's package."""

import argparse
import contextlib
import gc
import os
import sys

from fairseq_mm.errors import UserError

# Thresholds of gc after the imports, see gc.set_threshold. Python's default of 700 allocations
# between two collections would cost 15 % of the time.
_COLLECTION = (100_000, 20, 100)

# True if this process is fairseq-mm itself; a program that calls `main` keeps its own settings
is_program = False


def keep_freed_memory() -> None:
    """Let the memory allocator reuse freed memory for later tensors, which is faster.

    This is done only if the process is ``fairseq-mm`` itself, not a program that calls ``main``.
    """
    if is_program:
        from fairseq_mm.compat import allocator

        allocator.keep_freed_memory()


def register_quietly() -> None:
    """Register the package with fairseq, without the messages that fairseq's import prints."""
    keep_freed_memory()
    from fairseq_mm.compat import fairseq

    # a program that calls `main` may use the deferred modules itself
    if is_program and "fairseq" not in sys.modules:
        fairseq.defers_imports = True
        # hydra comes with fairseq, whose absence is reported below
        with contextlib.suppress(ImportError):
            from hydra.core.config_store import ConfigStore

            fairseq.defer_configs(ConfigStore)
    try:
        with fairseq.deferred(fairseq.OF_FAIRSEQ):
            from fairseq_mm.inference import set_up  # noqa: F401
    except ImportError as error:
        raise UserError(str(error)) from None
    if is_program:
        # the imported objects stay, so that later collections need not search them
        gc.freeze()
        gc.set_threshold(*_COLLECTION)


def import_user_dir(folder: str) -> None:
    """Import the user's package ``--user-dir``, which registers its models and tasks."""
    # fairseq imports the package and the modules of its subfolders; a folder without any such file
    # would be imported, too, and register nothing
    parts = [os.path.join(folder, name) for name in ("__init__.py", "tasks", "models")]
    if os.path.isdir(folder) and not any(map(os.path.exists, parts)):
        raise UserError(f"--user-dir {folder}: must be a Python package, but has no __init__.py.")
    register_quietly()
    from fairseq.utils import import_user_module

    from fairseq_mm.compat.plugins import refused_names

    try:
        with refused_names():
            import_user_module(argparse.Namespace(user_dir=folder))
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        # a package may raise anything while it is imported, SystemExit too
        first_line = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"--user-dir {folder}: cannot be imported: {type(error).__name__}: {first_line}"
        ) from None
