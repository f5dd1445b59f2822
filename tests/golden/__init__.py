"""Tests against numbers that the authors' own code computed."""
