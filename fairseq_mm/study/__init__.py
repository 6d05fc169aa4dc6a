"""Questions for human judges: which prompt belongs to which story, and which story is better."""
