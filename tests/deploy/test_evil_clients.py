"""Evil clients: one of three real sites runs any code in place of ours, over gRPC with TLS and its own key.

The lies are the rows of `tests.support.client_lies`. One run tells many: in each round the evil client is asked again.
`tests/server/test_lies_of_clients.py` tells them in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flfw.engines import processes
from flfw.engines.layout import FederationLayout
from tests.support import sites_at_work as sites
from tests.support.client_lies import DOZEN, ENROLMENT, FACTORS, TRAINING
from tests.support.lying import EVIL, Lie
from tests.support.told_lies import HONEST, Told, require_same_model, require_sound, require_told, without_the_liar

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]

DROP = ("--expert", "on_client_failure=drop", "round_deadline=20")
ENROLLED = "tests.support.enrolled_again:EnrolledAgain"
PLAIN = ("--method", "fedavg", "--net", "linear", *sites.COMMON, "--set", "sampled.train=50")


@dataclass(frozen=True)
class Federation:
    """Two honest sites and an evil one.

    Attributes:
        layout: its folder and addresses.
        table: file with the name of the table of lies.
    """

    layout: FederationLayout
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


# --- a dozen lies that no process alone would show ---------------------------------------------------------------


@pytest.fixture(scope="module")
def dozen(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Told:
    out = tmp_path_factory.mktemp("dozen") / "run"
    return Told(out, federation.run("dozen", out, len(DOZEN), *PLAIN))


@pytest.mark.slow
@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(DOZEN, 1)), ids=[lie.name for lie in DOZEN])
def test_one_of_a_dozen_lies_costs_the_liar_its_round(dozen: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, dozen, server_round)


@pytest.mark.slow
def test_a_run_of_a_dozen_lies_ends_with_the_model_of_the_honest(dozen: Told, tmp_path: Path) -> None:
    require_sound(dozen, len(DOZEN))
    require_same_model(dozen, without_the_liar(tmp_path / "run", DOZEN))


# --- all that is sent in place of an update ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Told:
    out = tmp_path_factory.mktemp("training") / "run"
    return Told(out, federation.run("training", out, len(TRAINING), *PLAIN))


@pytest.mark.nightly
@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(TRAINING, 1)), ids=[lie.name for lie in TRAINING])
def test_a_lie_costs_the_liar_its_round_and_nobody_else(training: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, training, server_round)


@pytest.mark.nightly
def test_a_run_ends_well_in_spite_of_all_lies(training: Told) -> None:
    require_sound(training, len(TRAINING))
    notes = sites.result(training.out)["notes"]  # its site has died
    assert any(note.startswith(f"Client {EVIL} has no final accuracy: ") for note in notes), notes
    assert not any(note.startswith(f"Client {honest}") for note in notes for honest in HONEST), notes


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(FACTORS, 1)), ids=[lie.name for lie in FACTORS])
def test_a_lie_in_factors_costs_the_liar_its_round(factored: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, factored, server_round)


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize(("server_round", "lie"), list(enumerate(ENROLMENT, 1)), ids=[lie.name for lie in ENROLMENT])
def test_a_lie_in_enrolment_leaves_the_liar_out_and_nobody_else(enrolled: Told, server_round: int, lie: Lie) -> None:
    require_told(lie, enrolled, server_round)


@pytest.mark.nightly
def test_a_run_of_enrolments_ends_with_the_model_of_the_honest(enrolled: Told, tmp_path: Path) -> None:
    require_sound(enrolled, len(ENROLMENT))
    require_same_model(enrolled, without_the_liar(tmp_path / "run", ENROLMENT))
