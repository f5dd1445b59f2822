"""Measures of a reconstruction: distances, recovery, public data, perceptual scores, statistics."""
