"""Clipping and noise in a run, and what may be claimed of its privacy."""
