"""Data sets as arrays and files: the record of one, the cache of arrays, downloads."""
