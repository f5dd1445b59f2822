"""Reports of a run: findings in words, pictures, and one HTML page."""
