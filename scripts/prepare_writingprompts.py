#!/usr/bin/env python3
"""WritingPrompts -> data folder: the same as `fairseq-mm prepare writingprompts`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "writingprompts")
