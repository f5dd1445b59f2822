"""Recordings of the messages that a server saw: written by a grid, read and checked, removed."""

from flfw.recording.grid import RecordingGrid

__all__ = ["RecordingGrid"]
