"""Figures of what any finished runs leak: each attack, rounds, curves, membership, and accuracy against leakage."""
