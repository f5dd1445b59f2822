"""Attacks on extractors, embeddings and features that a client keeps to itself."""
