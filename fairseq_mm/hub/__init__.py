"""Exports models to folders for sharing, and uploads such folders to the Hugging Face hub."""
