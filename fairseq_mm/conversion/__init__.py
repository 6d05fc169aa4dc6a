"""Converts checkpoints of other programs to checkpoints of this package, and back."""
