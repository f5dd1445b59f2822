"""Sums over clients, as behind secure aggregation: what the protocol adds to them, and what they still tell."""
