"""Attacks on clients' uploads, one file per attack."""
