"""Formats of files and messages whose writer may be anybody: JSON, TOML and CSV, read by their types."""
