"""Readers of the published releases, one file a data set."""
