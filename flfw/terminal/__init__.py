"""The terminal: flags, progress, exit codes."""
