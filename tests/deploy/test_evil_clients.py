"""Evil clients: one of three real sites runs any code in place of ours, over gRPC with TLS and its own key.

The lies are the rows of `tests.support.client_lies`. One run tells many: in each round the evil client is asked again.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from safetensors.torch import load_file

from flfw import apps
from flfw.deploy import processes
from flfw.deploy.layout import Layout
from flfw.engines import federation as engine
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.resolve import resolve, without_auto
from flfw.training.threads import one_thread
from tests.support import sites_at_work as sites
from tests.support.client_lies import ENROLMENT, FACTORS, TRAINING
from tests.support.lying import EVIL, Lie, honest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

HONEST = [client for client in range(sites.SITES) if client != EVIL]
DROP = ("--on-client-failure", "drop", "--round-deadline", "20")
ENROLLED = "tests.support.enrolled_again:EnrolledAgain"
PLAIN = ("--method", "fedavg", "--net", "linear", *sites.COMMON, "--set", "sampled.train=50")


@dataclass(frozen=True)
class Federation:
    """Two honest sites and an evil one.

    Attributes:
        layout: its folder and addresses.
        table: file with the name of the table of lies.
    """

    layout: Layout
    table: Path

    def run(self, table: str, out: Path, rounds: int, *flags: str) -> str:
        """Carry out a run in which the evil site tells the lies of a table; return what the server says."""
        self.table.write_text(table)
        processes.stop(self.layout.site(EVIL), "supernode")  # the one before has died, or is honest
        sites.start_in_place(self.layout, EVIL, "tests.support.evil_site", self.table)
        return sites.run(self.layout, out, "--rounds", str(rounds), *flags, *DROP)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("evil") / "federation"
    made = Federation(sites.made(folder, "--methods", "fedavg,hyperfl", "--plugins", ENROLLED), folder.parent / "table")
    with sites.at_work(made.layout, empty=[EVIL]):
        yield made


@dataclass(frozen=True)
class Told:
    """A run in which a table of lies was run.

    Attributes:
        out: folder of the run.
        terminal: words of the server on the terminal.
    """

    out: Path
    terminal: str

    def failed(self, server_round: int) -> list[dict[str, Any]]:
        """List the failures of a round."""
        return sites.result(self.out)["rounds"][server_round - 1]["failed"]

    def clients(self, server_round: int) -> list[int]:
        """List the clients whose updates counted in a round."""
        with (self.out / "clients.csv").open(newline="") as table:
            return [int(row["client"]) for row in csv.DictReader(table) if int(row["round"]) == server_round]

    def model(self) -> dict[str, torch.Tensor]:
        """Return the last model."""
        (path,) = (self.out / "checkpoint").glob("round-*.safetensors")
        return load_file(path)


def require_told(lie: Lie, run: Told, server_round: int) -> None:
    """Require that a lie cost the evil client its round, in one line that names it, or nothing; and nobody else."""
    failed = run.failed(server_round)
    assert run.clients(server_round) == (HONEST if lie.words else list(range(sites.SITES))), failed
    if lie.words:
        ((who, why),) = [(failure["client"], failure["reason"]) for failure in failed]
        assert who == EVIL and lie.words in why, why
        assert len(why) <= 300 and why.isprintable()
        assert f"round {server_round}/" in run.terminal and f"client {EVIL} dropped: {why}" in run.terminal


def require_sound(run: Told, rounds: int) -> None:
    """Require that a run ended as an honest one does: with numbers, and no byte that moves a cursor."""
    text = (run.out / "result.json").read_text()
    content = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in result.json"))
    assert [row["round"] for row in content["rounds"]] == list(range(1, rounds + 1))
    assert all(math.isfinite(row["loss"]) for row in content["rounds"])
    assert all(bool(torch.isfinite(value).all()) for value in run.model().values())
    for path in [*run.out.glob("*.csv"), *run.out.glob("*.html"), *run.out.glob("*.json")]:
        assert "\x1b" not in path.read_text(), path
    assert "\x1b" not in run.terminal and "Traceback" not in run.terminal


class Absent(InProcessGrid):
    """Grid of the same clients in one process, of which the evil one is absent where it lies in vain."""

    lies: tuple[Lie, ...] = ()

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != EVIL + 1 or message.metadata.message_type != "train":
            return super()._answer(message)
        server_round: Any = message.content.config_records["config"]["round"]
        absent = bool(self.lies[server_round - 1].words)
        return Message(Error(2, "absent") if absent else honest(message), reply_to=message)


def without_the_liar(out: Path, lies: tuple[Lie, ...], **changes: Any) -> dict[str, torch.Tensor]:
    """Return the last model of a run without the evil client's lies, in this process."""
    asked = Experiment(
        method="fedavg", net="linear", clients=sites.SITES, rounds=len(lies), local_epochs=1, engine="inproc",
        split="sampled", set=("sampled.train=50",), attack=("none",), on_client_failure="drop", out=out,
    )  # fmt: skip
    experiment = without_auto(dataclasses.replace(asked, **changes))
    private = [{"state": str(out.parent / "state")}] * sites.SITES
    grid = Absent(apps.client, sites.SITES, experiment.to_run_config(), private)
    grid.lies = lies
    with one_thread():
        engine.federate(grid, resolve(experiment))
    return Told(out, "").model()


def require_same_model(run: Told, expected: dict[str, torch.Tensor]) -> None:
    """Require that a run ended with a model, to the bit."""
    model = run.model()
    assert model.keys() == expected.keys()
    assert all(torch.equal(model[name], expected[name]) for name in model)


# --- what is sent in place of an update ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Told:
    out = tmp_path_factory.mktemp("training") / "run"
    return Told(out, federation.run("training", out, len(TRAINING), *PLAIN))


@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(TRAINING, 1)), ids=[lie.name for lie in TRAINING])
def test_a_lie_costs_the_liar_its_round_and_nobody_else(training: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, training, server_round)


def test_a_run_ends_well_in_spite_of_all_lies(training: Told) -> None:
    require_sound(training, len(TRAINING))
    notes = sites.result(training.out)["notes"]  # its site has died
    assert any(note.startswith(f"Client {EVIL} has no final accuracy: ") for note in notes), notes
    assert not any(note.startswith(f"Client {honest}") for note in notes for honest in HONEST), notes


def test_the_last_model_is_that_of_a_run_without_the_liar(training: Told, tmp_path: Path) -> None:
    """To the bit: where a lie was refused, the evil client counts as absent in that round."""
    require_same_model(training, without_the_liar(tmp_path / "run", TRAINING))


# --- what is sent in place of factors ------------------------------------------------------------------------------

FACTORED = {"method": "hyperfl", "net": "lenet", "set": ("hidden=16", "embedding=8", "upload=factors")}


@pytest.fixture(scope="module")
def factored(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Told:
    out = tmp_path_factory.mktemp("factors") / "run"
    flags = ("--method", "hyperfl", "--net", "lenet", *sites.COMMON, "--set", "sampled.train=50", *FACTORED["set"])
    return Told(out, federation.run("factors", out, len(FACTORS), *flags))


@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(FACTORS, 1)), ids=[lie.name for lie in FACTORS])
def test_a_lie_in_factors_costs_the_liar_its_round(factored: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, factored, server_round)


def test_a_run_of_factors_ends_with_the_model_of_the_honest(factored: Told, tmp_path: Path) -> None:
    require_sound(factored, len(FACTORS))
    settings = ("sampled.train=50", *FACTORED["set"])
    require_same_model(factored, without_the_liar(tmp_path / "run", FACTORS, **{**FACTORED, "set": settings}))


# --- what is sent in place of an introduction ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def enrolled(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """All clients are enrolled anew before each round, by the server's own code over gRPC."""
    out = tmp_path_factory.mktemp("enrolment") / "run"
    flags = ("--method", ENROLLED, *PLAIN[2:])
    return Told(out, federation.run("enrolment", out, len(ENROLMENT), *flags))


@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(ENROLMENT, 1)), ids=[lie.name for lie in ENROLMENT])
def test_a_lie_in_enrolment_leaves_the_liar_out_and_nobody_else(enrolled: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, enrolled, server_round)


def test_a_run_of_enrolments_ends_with_the_model_of_the_honest(enrolled: Told, tmp_path: Path) -> None:
    require_sound(enrolled, len(ENROLMENT))
    require_same_model(enrolled, without_the_liar(tmp_path / "run", ENROLMENT))
