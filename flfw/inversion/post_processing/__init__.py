"""Correction of an attack's images by a network that learns from simulated clients with public images."""
