"""Client-side defences, one file a defence."""
