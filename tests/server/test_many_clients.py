"""Bookkeeping of the server that does not grow with the number of clients."""

import json
import tracemalloc
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy.stats import binom

from flfw.client.site import Site
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.messages.client_info import ClientInfo
from flfw.messages.inprocess import InProcessGrid, representatives
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import numpy_generator
from flfw.runs import launch
from flfw.server import cohorts
from flfw.server.client_directory import ClientDirectory, Failure, FailurePolicy, NodeAssignment, NumberedNodes
from flfw.server.cohorts import drawn, drawn_last, in_turn, secretly_drawn
from flfw.server.history import History

MANY = 10_000
MILLION = 1_000_000


def asked_clients(odd: int = -1) -> tuple[ClientApp, list[int]]:
    """An app that introduces its clients, of which one may have other code; and the clients that were asked."""
    app, requested = ClientApp(), []

    @app.query()
    def introduce(message: Message, context) -> Message:
        client = int(context.node_config["partition-id"])
        requested.append(client)
        return ClientInfo(client, "other" if client == odd else "same").to_message(message)

    return app, requested


def test_one_client_of_a_process_speaks_for_all() -> None:
    app, requested = asked_clients()
    grid, directory = InProcessGrid(app, MILLION, {}, introduced=True), ClientDirectory(FailurePolicy())
    (answer,) = NodeAssignment(grid, directory, MILLION, 1.0, alike=representatives(grid)).begin()
    assert requested == [0] and answer.partition == 0
    assert len(directory.nodes) == MILLION and directory.nodes[MILLION - 1] == MILLION
    assert directory.everyone == range(MILLION) and not directory.excluded


def test_each_client_is_asked_where_those_that_speak_for_all_differ() -> None:
    app, requested = asked_clients(odd=1)
    grid, directory = InProcessGrid(app, 4, {}, introduced=True), ClientDirectory(FailurePolicy())
    answers = NodeAssignment(grid, directory, 4, 1.0, alike=(1, 2)).begin()
    assert requested == [0, 1, 0, 1, 2, 3]
    assert [answer.code for answer in answers] == ["same", "other", "same", "same"]
    assert directory.nodes == {0: 1, 1: 2, 2: 3, 3: 4}


def test_a_grid_of_sites_is_asked_node_by_node() -> None:
    app, _ = asked_clients()
    assert representatives(InProcessGrid(app, 2, {})) == ()
    with pytest.raises(ValueError, match="Expected sites without introduced"):
        InProcessGrid(app, 2, {}, [{}, {}], introduced=True)


def test_what_an_app_keeps_in_a_context_stays_and_other_contexts_go() -> None:
    app = ClientApp()

    @app.query()
    def count(message: Message, context) -> Message:
        if context.node_config["partition-id"] == 1:
            before = context.state["times"]["n"] if "times" in context.state else 0
            context.state["times"] = ConfigRecord({"n": before + 1})
        return Message(RecordDict({"kept": ConfigRecord({"n": len(context.state)})}), reply_to=message)

    grid = InProcessGrid(app, 3, {}, introduced=True)
    for _ in range(2):
        grid.send_and_receive([Message(RecordDict(), node, "query") for node in (1, 2, 3)])
    assert list(grid._contexts) == [2] and grid._contexts[2].state["times"]["n"] == 2
    (refused,) = grid.send_and_receive([Message(RecordDict(), 4, "query")])
    assert refused.has_error()


def test_cohorts_of_all_clients_are_those_of_a_list_of_them() -> None:
    """Drawing positions takes the same random numbers as drawing clients, as runs did before."""
    for clients in (50, MANY + 1):
        rng = numpy_generator(3, "cohort", 2)
        expected = sorted(int(one) for one in rng.choice(list(range(clients)), 20, replace=False))
        assert drawn(range(clients), 20, "fixed", 3, 2) == drawn(list(range(clients)), 20, "fixed", 3, 2) == expected
        poisson = drawn(range(clients), 20, "poisson", 3, 2)
        assert poisson == drawn(list(range(clients)), 20, "poisson", 3, 2) == sorted(set(poisson))
        last = numpy_generator(3, "final evaluation").choice(list(range(clients)), 20, replace=False)
        assert drawn_last(range(clients), 20, 3) == sorted(last.tolist())
    assert list(in_turn(range(MILLION), 3, 3))[:2] == [2, 5] == in_turn([1, 2, 4, 5], 3, 3)


def seeded(everyone: range, sample: int, server_round: int) -> list[int]:
    return drawn(everyone, sample, "poisson", 5, server_round)


def secret(everyone: range, sample: int, server_round: int) -> list[int]:
    return secretly_drawn(everyone, sample, b"k" * 32, server_round, 0)


@pytest.mark.parametrize("draw", [seeded, secret])
@pytest.mark.parametrize(("clients", "sample"), [(6, 2), (150, 100)])  # the second in two runs of clients
def test_poisson_cohorts_are_those_of_a_coin_for_each_client(draw, clients: int, sample: int) -> None:
    """Their sizes are binomial; each client, pair and triple is in as often as independent coins are heads."""
    rounds, share = 6000, sample / clients
    taken = np.zeros((rounds, clients), dtype=bool)
    for one in range(rounds):
        taken[one, draw(range(clients), sample, one + 1)] = True
    sizes, grid = taken.sum(1), np.arange(clients + 1)
    below = np.searchsorted(np.sort(sizes), grid, side="right") / rounds
    assert np.abs(below - binom.cdf(grid, clients, share)).max() < 2.2 / sqrt(rounds)  # Kolmogorov's bound at 1e-4
    together = taken.T.astype(float) @ taken / rounds
    low, high = binom.ppf([1e-8, 1 - 1e-8], rounds, share**2) / rounds
    pairs = together[np.triu_indices(clients, 1)]
    assert low <= pairs.min() and pairs.max() <= high
    assert np.abs(np.diag(together) - share).max() < 6 * sqrt(share * (1 - share) / rounds)
    triple = taken[:, [0, 1, clients - 1]].all(1).mean()
    assert abs(triple - share**3) < 5 * sqrt(share**3 * (1 - share**3) / rounds)


@pytest.mark.parametrize(("length", "sample", "everyone"), [(3, 1, 4), (64_000, 1, 1000), (70, 99, 100)])
def test_numbers_of_secretly_drawn_clients_are_binomial(length: int, sample: int, everyone: int) -> None:
    sums = cohorts._binomial_sums(length, sample, everyone)
    exact = binom.cdf(np.arange(len(sums)), length, sample / everyone)
    assert np.abs(np.array([one / sums[-1] for one in sums]) - exact).max() < 1e-14


@pytest.mark.parametrize("draw", [seeded, secret])
def test_a_poisson_cohort_of_a_billion_needs_no_memory_for_each(draw) -> None:
    """A coin for each would be eight gigabytes."""
    tracemalloc.start()
    cohort = draw(range(10**9), 100, 1)
    maximum = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 40 < len(cohort) < 180 and cohort == sorted(set(cohort)) and max(cohort) < 10**9
    assert maximum < 1_000_000


def test_missing_answers_are_noted_in_the_order_of_the_questions() -> None:
    """Node 2 is asked twice and answers once: its second answer is the one that is missing."""
    grid = InProcessGrid(ClientApp(), 1, {})
    directory, failed = ClientDirectory(FailurePolicy("drop")), list[Failure]()
    directory.nodes = NumberedNodes(MILLION)
    requested = [directory.address(partition, RecordDict(), "train", "1") for partition in (1, 0, 1, MILLION - 1)]
    grid.push_messages(requested)  # sending gives a message its id
    replies = [Message(RecordDict(), reply_to=requested[0]), Message(RecordDict(), reply_to=requested[3])]
    assert [
        partition for partition, _ in directory.receive(requested, replies, "round 1", lambda reply: 0, failed)
    ] == [1, MILLION - 1]
    assert [failure.client for failure in failed] == [0, 1]


def test_the_rows_of_the_newest_round_are_found_from_the_end() -> None:
    history = History(clients=[{"round": 1, "client": 0}, {"round": 2, "client": 3}, {"round": 2, "client": 4}])
    assert history.rows_of(2)["clients"] == [{"round": 2, "client": 3}, {"round": 2, "client": 4}]
    assert history.rows_of(3) == {"rounds": [], "clients": [], "probes": []}


def test_first_values_are_found_without_reading_old_rows_again() -> None:
    class Rows(list):
        """Rows that note how many were read."""

        read = 0

        def __getitem__(self, places):
            taken = super().__getitem__(places)
            self.read += len(taken)
            return taken

    history = History(clients=Rows({"round": 1, "client": one % 3, "n": one} for one in range(5)))
    assert history.first("n") == {0: 0, 1: 1, 2: 2}
    history.clients += [{"round": 2, "client": 3, "n": 9}, {"round": 2, "client": 0, "n": 7}, {"round": 2, "client": 4}]
    assert history.first("n") == {0: 0, 1: 1, 2: 2, 3: 9} == history.first("n")
    assert history.clients.read == 8 and history.first("loss") == {}  # type: ignore[attr-defined]
    assert set(history.lists()) == {"rounds", "clients", "probes"}


def trained(folder: Path, clients: int) -> tuple[dict, Path]:
    experiment = Experiment(
        method="fedper",
        net="mlp",
        split="sampled_on_demand",
        set=("sampled_on_demand.train=5", "sampled_on_demand.test=5"),
        clients=clients,
        sample=2,
        rounds=2,
        local_epochs=1,
        final_eval_clients="3",
        attack=("none",),
        engine="inproc",
        out=folder,
    )
    folder.mkdir()
    launch.run_on_engine(plan(without_auto(experiment)), Site(state=folder / "state"))
    return json.loads((folder / "training.json").read_text()), folder / "state"


@pytest.mark.parametrize("clients", [MANY, pytest.param(MILLION, marks=pytest.mark.nightly)])
def test_only_clients_that_take_part_leave_anything_behind(tmp_path: Path, clients: int) -> None:
    training, state = trained(tmp_path / "run", clients)
    took_part = sorted({row["client"] for row in training["clients"]})
    assert len(training["clients"]) == 4 and len(training["final"]) == 3 and max(took_part) > 100
    folders = sorted(state.glob("*/*/*"))
    assert sorted(int(folder.name.removeprefix("client-")) for folder in folders) == took_part
    assert {folder.parent.name for folder in folders} == {f"{client % 256:02x}" for client in took_part}


def test_an_engine_that_asks_each_client_gets_the_same_numbers(tmp_path: Path) -> None:
    """The grid of a million clients, with a Context for each of 30, and one without."""
    training, _ = trained(tmp_path / "one", 30)
    from flfw.engines import apps

    folder = tmp_path / "two"
    folder.mkdir()
    stored = json.loads(next((tmp_path / "one" / "checkpoint").glob("experiment-*")).read_text())["experiment"]
    config = {**stored, "out": str(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLFW_STATE", str(folder / "state"))
        apps.server(InProcessGrid(apps.client, 30, config), launch._server_context(config))
    again = json.loads((folder / "training.json").read_text())
    for rows in (training, again):
        for row in rows["clients"]:
            del row["seconds"]
    assert again["clients"] == training["clients"] and again["final"] == training["final"]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"clients": [{"round": 1, "client": 0}, {"client": 1}]}, "whole number for round in each row of clients"),
        ({"clients": [{"round": 1}]}, "whole number for client in each row of clients"),
        ({"rounds": [{"round": "1"}]}, "whole number for round in each row of rounds"),
        ({"probes": [3]}, "whole number for round in each row of probes"),
        ({"rows": [{"round": 1}]}, "Expected lists of rounds, clients, probes in the history of a run, got rows"),
        ({"clients": {"round": 1}}, "in the history of a run, got clients"),
    ],
)
def test_a_row_of_a_history_without_its_round_is_refused_in_one_line(rows: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        History().extend(rows)
