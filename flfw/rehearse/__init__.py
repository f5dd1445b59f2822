"""Rehearsals: what a site would leak, before it takes part."""
