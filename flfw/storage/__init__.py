"""Files that are whole or absent: sealed arrays, journals, checkpoints, provenance."""
