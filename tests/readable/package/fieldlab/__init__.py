"""The same package with the names of the field, copied from docs/extending.md on 2026-11-28 after they were given."""
