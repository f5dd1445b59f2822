"""Command line: of ``sim.py`` in a checkout, and of ``flfw``, which has a subcommand for each task."""
