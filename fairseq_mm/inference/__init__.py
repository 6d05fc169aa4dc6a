"""Inference: generate text, score text and compute embeddings with trained checkpoints."""
