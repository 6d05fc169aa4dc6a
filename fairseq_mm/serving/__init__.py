"""Server of a page and a JSON API that generate texts with trained checkpoints."""
