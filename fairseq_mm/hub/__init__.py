"""Export of models to folders for sharing, and upload of such folders to the Hugging Face hub."""
