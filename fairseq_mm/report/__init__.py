"""Results as one self-contained HTML file: images, text, scores and curves."""
