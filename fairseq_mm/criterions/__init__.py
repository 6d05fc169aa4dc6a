"""``--criterion``: losses that fairseq does not have."""
