#!/usr/bin/env python3
"""Flickr8k -> data folder: the same as `fairseq-mm prepare flickr8k`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "flickr8k")
