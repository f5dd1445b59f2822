"""Membership inference from updates: tests of whether an example was in the data behind an update."""
