"""Readers of the published releases, one file per data set."""
