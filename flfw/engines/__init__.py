"""The machinery that runs one app: a federation on a grid, Flower's own commands, what a machine offers."""
