"""Recordings of the messages that a server saw: `grid` writes them around Flower's grid, `reader` reads
and checks them, `format` and `manifest` are their files, `client_examples` those of an observer on a client.
"""

from flfw.recording.grid import RecordingGrid, RecordMap, recorded

__all__ = ["RecordMap", "RecordingGrid", "recorded"]
