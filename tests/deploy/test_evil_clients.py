"""Evil clients: one of three real sites runs any code in place of ours, over gRPC with TLS and its own key.

The lies are the rows of `tests.support.client_lies`. One run tells many: in each round the evil client is asked again.
`tests/server/test_lies_of_clients.py` tells them in one process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
CHOSEN = (*sites.COMMON, "--set", "sampled.train=50")
PLAIN = ("--method", "fedavg", "--net", "linear", *CHOSEN)
FACTORED = {"method": "hyperfl", "net": "lenet", "set": ("hidden=16", "embedding=8", "upload=factors")}
TABLES = {
    "dozen": (DOZEN, PLAIN),  # that no process alone would show
    "training": (TRAINING, PLAIN),  # all that is sent in place of an update
    "factors": (FACTORS, ("--method", "hyperfl", "--net", "lenet", *CHOSEN, *FACTORED["set"])),
    # All clients are enrolled anew before each round, by the server's own code over gRPC.
    "enrolment": (ENROLMENT, ("--method", ENROLLED, *PLAIN[2:])),
}


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


@pytest.fixture(scope="module")
def told(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """What becomes of a run in which the evil site tells the lies of a table."""

    @cache
    def told_of(table: str) -> Told:
        (lies, flags), out = TABLES[table], tmp_path_factory.mktemp(table) / "run"
        return Told(out, federation.run(table, out, len(lies), *flags))

    return told_of


def row(table: str, *values: object, name: str = "") -> Any:
    """A row of a table of tests; the dozen is told in CI."""
    return pytest.param(table, *values, marks=getattr(pytest.mark, "slow" if table == "dozen" else "nightly"), id=name)


@pytest.mark.parametrize(
    ("table", "server_round", "lie"),
    [row(table, n, lie, name=lie.name) for table, (lies, _) in TABLES.items() for n, lie in enumerate(lies, 1)],
)
def test_a_lie_costs_the_liar_its_round_and_nobody_else(
    told: Callable[[str], Told], table: str, server_round: int, lie: Lie
) -> None:
    require_told(lie, told(table), server_round)


@pytest.mark.parametrize("table", [row(table, name=table) for table in TABLES])
def test_a_run_of_lies_ends_with_the_model_of_the_honest(
    told: Callable[[str], Told], table: str, tmp_path: Path
) -> None:
    """To the bit: where a lie was refused, the evil client counts as absent in that round."""
    changes = {**FACTORED, "set": ("sampled.train=50", *FACTORED["set"])} if table == "factors" else {}
    require_sound(told(table), len(TABLES[table][0]))
    require_same_model(told(table), without_the_liar(tmp_path / "run", TABLES[table][0], **changes))


@pytest.mark.nightly
def test_the_notes_name_the_site_that_died_and_no_other(told: Callable[[str], Told]) -> None:
    notes = sites.result(told("training").out)["notes"]
    assert any(note.startswith(f"Client {EVIL} has no final accuracy: ") for note in notes), notes
    assert not any(note.startswith(f"Client {honest}") for note in notes for honest in HONEST), notes
