"""The attack engine: what a guess would have sent, how far that is from what was sent, and how to search."""
