"""Closed forms that read data off an update, without a search."""
