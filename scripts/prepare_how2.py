#!/usr/bin/env python3
"""How2 -> data folder: the same as `fairseq-mm prepare how2`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "how2")
