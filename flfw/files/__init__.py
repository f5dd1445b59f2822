"""Files and messages, read by their types; files that are complete or absent; what a program says on a terminal."""
