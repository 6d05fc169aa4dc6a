"""Preparing of data folders from releases and JSON lines."""
