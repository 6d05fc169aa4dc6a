#!/usr/bin/env python3
"""COCO captions -> data folder: the same as `fairseq-mm prepare coco`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "coco")
