"""A laboratory for privacy in federated learning on Flower.

Nothing is imported here: a client process pays for every import of every package it touches.
"""

from pathlib import Path as _Path

__version__ = "0.1.0"

# The folders of plug-ins lie beside this one in a checkout, with symbolic links to them here. `flwr run` takes an app
# without its links.
if not _Path(__file__).with_name("strategies").exists():
    __path__.append(str(_Path(__file__).parent.parent))
