"""From a checkpoint and raw inputs to hypotheses, scores and embeddings."""
