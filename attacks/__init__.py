"""Attacks on what clients send, one file an attack."""
