"""Tables of the papers as functions for Python programs."""
