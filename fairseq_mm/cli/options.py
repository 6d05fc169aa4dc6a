"""List the options of an architecture, which fairseq's --help hides.

  fairseq-mm options m_rnn
  fairseq-mm options --user-dir my_package my_model

Prints each option of --arch in fairseq-train with its default in this
architecture, and below it its help.
"""

import argparse
import difflib
import textwrap

from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arch", metavar="ARCH", help="Name of an architecture, such as m_rnn.")


def run(args: argparse.Namespace) -> None:
    register_quietly()
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    name = args.arch
    if name not in ARCH_MODEL_REGISTRY:
        close = difflib.get_close_matches(name, ARCH_MODEL_REGISTRY, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "."
        raise UserError(f"{name}: no such architecture{hint}")
    model, parser = ARCH_MODEL_REGISTRY[name], argparse.ArgumentParser(add_help=False)
    config = getattr(model, "__dataclass", None)
    if config is None:
        model.add_args(parser)
    else:
        gen_parser_from_dataclass(parser, config())
    # the function of an architecture sets the defaults that differ from the model's
    defaults = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[name](defaults)
    for action in parser._actions:
        value = getattr(defaults, action.dest, action.default)
        default = "" if value in (None, argparse.SUPPRESS) else f" {value}"
        text = " ".join(str(action.help or "").split())
        print(f"{action.option_strings[-1]}{default}", textwrap.indent(text, "    "), sep="\n")
