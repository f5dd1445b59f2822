"""A package of a reader's own, copied from docs/extending.md on 2026-11-28; it is not edited when that page is."""
