"""Pictures of a user's own, of any kind: what is read of a file, how it becomes an input, and which are damaged."""
