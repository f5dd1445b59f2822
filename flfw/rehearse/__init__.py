"""Rehearsals: a site's leakage, measured before it takes part."""
