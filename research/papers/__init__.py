"""Studies of single papers: ``python -m research.papers.NAME``."""
