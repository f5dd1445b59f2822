"""Recordings of the messages that a server saw: written by a grid, read and checked, removed."""

from flfw.recording.apps import recorded
from flfw.recording.grid import RecordingGrid
from flfw.recording.records import RecordMap

__all__ = ["RecordMap", "RecordingGrid", "recorded"]
