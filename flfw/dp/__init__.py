"""Clipping and noise in a run, and the privacy claims that follow."""
