"""Files that are complete or absent: sealed arrays, journals, checkpoints, provenance."""
