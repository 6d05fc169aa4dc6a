#!/usr/bin/env python3
"""IAPR TC-12 -> data folder: the same as `fairseq-mm prepare iapr_tc12`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "iapr_tc12")
