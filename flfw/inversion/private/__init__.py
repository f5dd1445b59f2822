"""Attacks on private extractors, embeddings and features."""
