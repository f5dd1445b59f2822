"""Verdicts: the rules under which an audit may say that something leaks, or that no leak was found."""
