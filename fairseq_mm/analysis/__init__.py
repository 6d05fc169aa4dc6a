"""Recorders of attention weights and gates: data that reports draw."""
