"""Submission of the app to the SuperLink of a federation of real sites."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from flfw.engines import processes, superlink
from flfw.engines.layout import FederationLayout, environment
from flfw.engines.superlink import toml_lines
from flfw.errors import InputError, RunError, require
from flfw.experiment import Experiment


def check(experiment: Experiment) -> FederationLayout:
    """Check that an experiment fits its federation, and return the federation's layout.

    Raises:
        InputError: the numbers of clients and sites differ, or there is an audit, whose truth no site gives away.
        RunError: the server is not running.
    """
    assert experiment.federation is not None, "asked of no other"
    layout = FederationLayout.read(experiment.federation)
    expected = f"clients={layout.clients}, the sites of {experiment.federation}"
    require(experiment.clients == layout.clients, expected, clients=experiment.clients)
    if experiment.attacks:
        raise InputError(
            "Expected --attack none with --federation, since no truth leaves a site to be compared with, got "
            f"{' '.join(experiment.attacks)}; audit a simulation, or let each site rehearse."
        )
    if not processes.listens(layout.control[1], layout.control_port):
        raise RunError(f"Expected the federation's server at work, got none; python -m flfw.deploy up {layout.folder}")
    return layout


def run_in_federation(experiment: Experiment) -> None:
    """Run the app until it ends.

    Raises:
        RunError: Flower refused the app, or the run did not complete; the message is one line.
    """
    layout = check(experiment)
    assert experiment.out is not None, "the experiment was checked"
    with tempfile.TemporaryDirectory(prefix="flfw-flwr-") as name:
        folder = Path(name).resolve()
        variables = environment(layout.superlink / "home") | {"TMPDIR": str(folder)}  # for flwr, which may be killed
        # The bundle is the code alone, so that a site can know it by its hash; the configuration is a separate file.
        (folder / "run.toml").write_text(toml_lines(experiment.to_run_config()))
        options = ["--run-config", str(folder / "run.toml")]
        superlink.complete(Experiment().to_run_config(), folder, options, variables, experiment.out)


def bundle() -> bytes:
    """Build Flower's app bundle of the installed code; the same code gives the same bytes on every machine."""
    from flwr.cli.build import build_fab_from_disk

    with tempfile.TemporaryDirectory(prefix="flfw-app-") as name:
        superlink.write_bundle(Path(name), Experiment().to_run_config())
        return build_fab_from_disk(Path(name))


def bundle_hash() -> str:
    """Return the SHA-256 of `bundle`, by which a site's policy accepts it."""
    return hashlib.sha256(bundle()).hexdigest()
