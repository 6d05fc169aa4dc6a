"""Results as one self-contained HTML file: pictures, text, scores and curves."""
