"""Figures of finished runs: charts and tables for a paper, by matplotlib."""
