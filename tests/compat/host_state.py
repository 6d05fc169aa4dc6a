"""Program: print which state of a process is another after the package was imported, and after its
repairs were activated.

Its output is one JSON object: state -> dotted names of what differs from the state before, and the
names that the table of repairs gives for it.
"""

import argparse
import importlib
import json
import logging
import os
import signal
import sys
import types
import warnings

import torch
from omegaconf.basecontainer import BaseContainer

# modules of fairseq's commands; they import the rest of fairseq
COMMANDS = ("eval_lm", "generate", "hydra_train", "interactive", "preprocess", "train", "validate")
# fairseq itself adds these where it imports a --user-dir
ADDED_BY_FAIRSEQ = ("_parser", "import_user_module.memo")


def attributes():
    """Dotted name -> value of all attributes of fairseq's modules, classes and functions."""
    found = {}
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        # fairseq has some modules under a second name, too
        is_host = package in ("fairseq", "fairseq_cli", "fairscale")
        if not is_host or getattr(module, "__name__", None) != name:
            continue
        for key, value in list(vars(module).items()):
            found[f"{name}.{key}"] = value
            if getattr(value, "__module__", None) != name:
                continue
            if isinstance(value, (type, types.FunctionType)):
                for attribute, member in list(vars(value).items()):
                    if attribute != "__wrapped__":
                        found[f"{name}.{key}.{attribute}"] = member
    return found


def process_state():
    """Other state that all modules of a process share."""
    state = {
        "sys.excepthook": sys.excepthook,
        "warnings.filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "os.environ": dict(os.environ),
        "torch.load": torch.load,
        "torch.save": torch.save,
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.get_num_threads": torch.get_num_threads(),
        "torch.random": torch.get_rng_state().tolist(),
    }
    for name in ("cuda", "__init__", "load_state_dict"):
        state[f"torch.Tensor.{name}"] = vars(torch.Tensor).get(name)
    classes = map(str, torch.serialization.get_safe_globals())
    state["torch.serialization.get_safe_globals"] = sorted(classes)
    for name in ("", "h5py", "hydra", "fairseq", "torch"):
        logger = logging.getLogger(name)
        state[f"logging.Logger({name}).level"] = logger.level
        state[f"logging.Logger({name}).handlers"] = list(logger.handlers)
    for number in signal.valid_signals():
        state[f"signal.{number}"] = signal.getsignal(number)
    state["omegaconf.resolvers"] = sorted(BaseContainer._resolvers)
    return state


def snapshot():
    return {**attributes(), **process_state()}


def is_same(old, new):
    is_plain = isinstance(new, (list, dict, int, float, str))
    return old is new or (is_plain and type(old) is type(new) and old == new)


def differences(before, now):
    missing = object()
    found = []
    for name in before.keys() | now.keys():
        old, new = before.get(name, missing), now.get(name, missing)
        # a module becomes an attribute of its package when it is imported
        is_imported = old is missing and isinstance(new, types.ModuleType) and new.__name__ == name
        if not is_same(old, new) and not is_imported and not name.endswith(ADDED_BY_FAIRSEQ):
            # one replacement for all modules
            is_eval = name.startswith("fairseq.") and name.endswith(".eval")
            found.append("fairseq.*.eval" if is_eval else name)
    return sorted(set(found))


def names_in_table(repairs):
    """Return the names of the table, without modules of fairseq that nothing has imported."""
    names = {name for repair in repairs for name in repair.replaces}
    of_modules = {name for name in names if name.endswith(".torch")}
    return sorted(
        name for name in names if name not in of_modules or name.rpartition(".")[0] in sys.modules
    )


def main():
    package = sys.argv[1]
    for command in COMMANDS:
        importlib.import_module(f"fairseq_cli.{command}")
    import fairseq.utils

    before = snapshot()
    fairseq.utils.import_user_module(argparse.Namespace(user_dir=package))
    imported = snapshot()
    from fairseq_mm import compat
    from fairseq_mm.compat import activation

    of_import = list(activation.applied)
    compat.activate()
    activated = snapshot()
    of_activation = [x for x in list(activation.applied) if x not in of_import]
    print(
        json.dumps(
            {
                "imported": [differences(before, imported), names_in_table(of_import)],
                "activated": [differences(imported, activated), names_in_table(of_activation)],
            }
        )
    )


main()
