"""Terminal: flags, progress, exit codes."""
