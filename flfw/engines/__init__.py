"""Machinery to run one app: a federation on a grid, Flower's own commands, the resources of a machine."""
