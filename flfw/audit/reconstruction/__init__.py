"""Reconstruction in an audit: its controls, its scores, and its entries in result.json."""
