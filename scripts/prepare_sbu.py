#!/usr/bin/env python3
"""SBU captioned photos -> data folder: the same as `fairseq-mm prepare sbu`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "sbu")
