"""Checkpoints of other programs to this package's form, and back."""
