"""Measurements that were made once, evidence and studies of the papers: ``python -m research.X``; not in the wheel."""
