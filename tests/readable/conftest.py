"""The package of a reader is named on a command line, and is no test."""

collect_ignore = ["package"]
