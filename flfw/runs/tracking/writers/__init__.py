"""Trackers that come with the project: a file for each tool."""
