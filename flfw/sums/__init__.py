"""Figures of one run on sums over clients: what secure aggregation would have hidden of the recorded uploads."""
