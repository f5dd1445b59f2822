"""What attacks know of client-side defences, one file a defence and of its name."""
