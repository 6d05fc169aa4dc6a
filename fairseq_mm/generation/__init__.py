"""Generation of text: options, defaults of each task, sampling, and constraints of texts."""
