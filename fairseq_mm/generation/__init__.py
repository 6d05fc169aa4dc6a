"""How tasks generate text: their defaults, and the tokens that no text may have."""
