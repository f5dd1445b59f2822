"""Runs from start to report: checks, engines, results, estimates."""
