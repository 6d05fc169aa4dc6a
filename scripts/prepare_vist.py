#!/usr/bin/env python3
"""VIST -> data folder: the same as `fairseq-mm prepare vist`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "vist")
