"""Simulations of the apps beside this file: python simulate.py [--engine flfw|flwr] [APP ...].

Both engines print the same SHA-256 of each app's last model.
"""

import argparse
import hashlib
import importlib
import os
from pathlib import Path

APPS = ("message_app", "numpy_app", "adam_app", "state_app")
ENGINES = {"flfw": "flfw.engines.simulation", "flwr": "flwr.simulation"}
RESOURCES = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}


def digest(name: str, engine: str) -> str:
    """Run an app on an engine; return the SHA-256 of its last model."""
    app, results = importlib.import_module(name), []
    run_simulation = importlib.import_module(ENGINES[engine]).run_simulation
    run_simulation(app.server_app(results), app.client_app, num_supernodes=2, backend_config=RESOURCES)
    return hashlib.sha256(b"".join(array.tobytes() for array in results[-1])).hexdigest()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("apps", nargs="*", default=APPS, metavar="APP")
    flags.add_argument("--engine", choices=ENGINES, default="flfw")
    asked = flags.parse_args()
    for name in asked.apps:
        print(name, digest(name, asked.engine), flush=True)
