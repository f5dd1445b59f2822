"""Adaptations of attacks to client-side defences, one file per defence, with its name."""
