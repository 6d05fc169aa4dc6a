"""Conversion of checkpoints of other programs to this package's format, and back."""
