"""Comparisons of runs: a matrix of methods, defences, seeds and data sets, and figures of finished runs."""
