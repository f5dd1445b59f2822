"""Generators of images as priors: their training on public data, and the spaces of a search for their images."""
