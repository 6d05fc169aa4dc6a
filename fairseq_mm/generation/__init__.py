"""Generates text: options, defaults of each task, sampling, and constraints of texts."""
