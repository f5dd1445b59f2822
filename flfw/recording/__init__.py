"""Recordings of the messages that a server saw: written by a grid, read and checked, removed."""

from flfw.recording.grid import RecordingGrid, recorded
from flfw.recording.records import RecordMap

__all__ = ["RecordMap", "RecordingGrid", "recorded"]
