"""Data sets that are generated on demand, for any number of clients."""
