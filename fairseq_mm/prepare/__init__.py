"""Prepares data folders from published releases and from a user's own JSON lines."""
