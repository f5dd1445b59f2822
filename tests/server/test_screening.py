"""The screen of updates: a change far larger than all others is refused by name, and no other is."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from flfw.experiment import Experiment
from flfw.files.tensor_names import matches
from flfw.messages.inprocess import InProcessGrid
from flfw.messages.wire import pack, unpack
from flfw.plans.run_plan import plan
from flfw.server.client_directory import FailurePolicy
from flfw.server.robust import bound_of, change, without_grown_counts, without_outliers
from flfw.server.strategy import FederatedStrategy
from tests.support.rounds import fresh, place


def left(norms: list[float], bound: float = 10.0) -> tuple[list[int], dict[int, str]]:
    """The clients whose updates are used, in the order of use, and the reasons for the others."""
    reasons: dict[int, str] = {}
    used = without_outliers(enumerate(norms), lambda _, norm: (norm, bound), reasons.__setitem__)
    return [client for client, _ in used], reasons


@pytest.mark.parametrize(
    ("norms", "used"),
    [
        ([], []),
        ([1.0, 2.0, 3.0], [0, 1, 2]),
        ([1e38, 2.0, 3.0], [1, 2]),
        ([math.inf, 2.0, 3.0], [1, 2]),
        ([1.0, 1e38], [0]),  # of two the smaller is the median
        ([1e38], [0]),  # nothing to compare it with
        ([0.0, 9.0, 0.0], [0, 1, 2]),  # tiny updates of others have nobody refused
        ([0.0, 11.0, 0.0], [0, 2]),
        ([1.0, 99.0, 1.0], [0, 2, 1]),  # large, and not a hundred times the median
        ([1.0, 101.0, 1.0], [0, 2]),
        ([50.0, 60.0, 70.0], [0, 1, 2]),  # large ones alone, as with much noise
        ([1.0, 1e38, 1e38], [0, 1, 2]),  # more than half lie: said in the module
    ],
)
def test_what_is_far_larger_than_all_others_is_refused(norms: list[float], used: list[int]) -> None:
    clients, reasons = left(norms)
    assert clients == used
    assert reasons.keys() == set(range(len(norms))) - set(used)


def test_the_reason_has_both_numbers() -> None:
    assert left([1234.5, 2.0, 3.0])[1] == {0: "sent a change of norm 1.23e+03, over 100 times the round's median 3"}


def test_what_is_not_large_is_passed_on_before_the_next_arrives() -> None:
    arrived: list[int] = []

    def updates():
        for client in range(3):
            arrived.append(client)
            yield client, 1.0

    for client, _ in without_outliers(updates(), lambda _, norm: (norm, 10.0), lambda *_: None):
        assert arrived == list(range(client + 1))


def test_a_number_of_examples_that_grows_is_refused() -> None:
    refused: list[tuple[int, str]] = []
    earlier = {0: 40, 1: 40, 2: 40}
    updates = [(0, 40), (1, 41), (2, 39), (3, 2**31)]  # of client 3 it is the first number
    kept = list(without_grown_counts(updates, int, earlier, lambda client, reason: refused.append((client, reason))))
    assert kept == [(0, 40), (2, 39), (3, 2**31)]
    assert refused == [(1, "tells 41 examples, and first told 40; a new run counts more")]


@pytest.mark.parametrize(("federation", "metrics", "used"), [("fed", "all", [1, 2]), ("fed", "none", [0, 1, 2])])
def test_a_client_that_tells_more_examples_in_a_later_round_is_left_out_of_it(
    federation: str, metrics: Any, used: list[int]
) -> None:
    experiment = Experiment(
        method="fedavg", net="linear", split="iid", clients=3, federation=Path(federation), metrics=metrics
    )
    strategy, start = asked_by(experiment)
    for number, count in enumerate([40, 30, 40, 41], start=1):
        strategy.aggregate_train(number, answers(strategy, number, start, [0.1] * 3, [count, 40, 40]))
        clients = [row["client"] for row in strategy.history.clients if row["round"] == number]
        assert clients == (used if number == 4 else [0, 1, 2])


def test_norms_are_those_of_all_numbers_together_and_no_float_is_too_large() -> None:
    sent = {"w": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0]), "count": torch.tensor(7)}
    assert bound_of(sent) == 60.0
    assert change({**sent, "w": torch.tensor([[3.0, 5.0]]), "count": torch.tensor(10**9)}, sent) == 5.0
    both = torch.tensor([[3e38, 3e38]])  # of which the norm is no float of 32 bits
    assert change({"w": both}, {"w": torch.zeros(1, 2)}) == pytest.approx(3e38 * math.sqrt(2))
    assert change({"b": torch.tensor([3e38])}, {"b": torch.tensor([-3e38])}) == math.inf
    assert change({}, sent) == 0.0


@pytest.mark.parametrize(("federation", "used"), [("fed", [1, 2]), (None, [0, 1, 2])])
def test_a_round_on_real_sites_is_screened(federation: str | None, used: list[int]) -> None:
    """Simulated clients run this project's own code."""
    experiment = Experiment(
        method="fedavg", net="linear", split="iid", clients=3, federation=Path(federation) if federation else None
    )
    strategy, start = asked_by(experiment)
    arrays, _ = strategy.aggregate_train(1, answers(strategy, 1, start, [1e30, 0.1, 0.1], [10] * 3))
    assert arrays is not None and [row["client"] for row in strategy.history.clients] == used
    failed = strategy.history.rounds[0]["failed"]
    assert [failure["client"] for failure in failed] == [client for client in range(3) if client not in used]
    assert all(failure["reason"].startswith("sent a change of norm ") for failure in failed)
    model, bound = unpack(arrays), 1.0 if federation else math.inf
    assert all(float((model[name] - start[name]).abs().max()) < bound for name in start)


SERVERS_NOISE = {
    "fed_sdp": ("noised_by=server", "grouping=flat"),
    "dp_fedavg": ("unit=client",),
    "centaur": ("unit=client",),
    "ppsgd": ("unit=client",),
    "dp_ftrl": ("bands=1",),
}
BOUND = 500.0


def sum_with(method: str, assignments: tuple[str, ...], shifts: Sequence[float]) -> tuple[torch.Tensor, list[int]]:
    """The sum of three changes of a round on real sites, without noise, as one row, and whose changes are in it."""
    experiment = Experiment(
        method=method,
        net="linear" if method not in ("centaur", "ppsgd") else "mlp",
        split="iid",
        clients=3,
        federation=Path("fed"),
        metrics="none",
        set=("noise_source=secure", "noise_multiplier=0", f"clip={BOUND:g}", *assignments),
    )
    strategy, start = asked_by(experiment)
    start = {name: value for name, value in start.items() if matches(name, strategy.uploads)}
    size = sum(value.numel() for value in start.values()) ** 0.5
    replies = answers(strategy, 1, start, [shift / size for shift in shifts], [1] * 3)
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    moved = torch.cat([(unpack(arrays)[name] - value).double().flatten() for name, value in start.items()])
    return 3 * moved, [row["client"] for row in strategy.history.clients]


@pytest.mark.parametrize(("method", "assignments"), SERVERS_NOISE.items())
def test_no_client_decides_whether_another_one_counts_where_the_server_bounds_each_change(
    method: str, assignments: tuple[str, ...]
) -> None:
    """Of three real sites the last has data, or has none. Its bound is what the server's noise hides.

    By the median of the norms, which are 1 and 500 then, the first one was refused beside a last one without data.
    """
    present, used = sum_with(method, assignments, [BOUND, 1.0, BOUND])
    absent, used_without = sum_with(method, assignments, [BOUND, 1.0, 0.0])
    assert used == used_without == [0, 1, 2]
    assert float((present - absent).norm()) == pytest.approx(BOUND, rel=2e-3)


def test_the_server_screens_updates_that_it_does_not_bound() -> None:
    """Those of Fed-SDP whose clients add the noise; a lie is a client's own, and noise is in all others."""
    assert sum_with("fed_sdp", ("grouping=flat",), [BOUND, 1.0, 0.0])[1] == [1, 2]


def asked_by(experiment: Experiment) -> tuple[FederatedStrategy, dict[str, torch.Tensor]]:
    """The server half of a method with three clients, and the first tensors."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    run_plan = plan(experiment)
    strategy = run_plan.strategy(run_plan.client.settings, tolerance=FailurePolicy(on_failure="drop"))
    strategy.ctx = place(experiment)
    strategy.client_directory.nodes = {client: client + 1 for client in range(3)}
    return strategy, {name: value.clone() for name, value in fresh(experiment).state_dict().items()}


def answers(
    strategy: FederatedStrategy,
    number: int,
    start: dict[str, torch.Tensor],
    shifts: Sequence[float],
    counts: Sequence[int],
) -> list[Message]:
    """The clients' answers in a round: the start plus a shift each, and the number of examples that each tells."""
    grid = InProcessGrid(ClientApp(), 3, {})
    result = []
    for client, message in enumerate(strategy.configure_train(number, pack(start), ConfigRecord({}), grid)):
        message.metadata.__dict__["_message_id"] = str(client)  # which Flower gives when it is sent
        tensors = {name: value + shifts[client] for name, value in start.items()}
        numbers = MetricRecord({"num-examples": counts[client], "loss": 1.0})
        result.append(Message(RecordDict({"arrays": pack(tensors), "metrics": numbers}), reply_to=message))
    return result
