"""Readers of the data sets, a file for each family."""
