"""Makes pages of results: self-contained HTML files with images, texts, scores and curves."""
