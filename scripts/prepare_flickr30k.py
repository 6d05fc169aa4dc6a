#!/usr/bin/env python3
"""Flickr30k -> data folder: the same as `fairseq-mm prepare flickr30k`."""

from fairseq_mm.cli.script import run_subcommand

run_subcommand("prepare", "flickr30k")
