"""The server half of each method, one file a method."""
