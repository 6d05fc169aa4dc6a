"""Questions for annotators: which prompt belongs to which story, and which story is better."""
