"""Prompts and stories whose dependence on each other is known exactly."""
