"""Federations that cannot be: what one machine can know is refused before anything is written, the rest by name."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import sim
from flfw.engines import apps, federation
from flfw.errors import RunError
from flfw.experiment import Experiment
from flfw.messages.client_info import ClientInfo
from flfw.messages.inprocess import InProcessGrid
from flfw.plans.run_plan import plan, without_auto
from flfw.server.client_directory import ClientDirectory, NodeAssignment, Requirements
from tests.support.pictures import noise, save

# --- sites whose data are of another kind -------------------------------------------------------------------------


class Sites:
    """The ClientApp on several machines, on each of which the same path leads to what lies there.

    To what, the node's data root says. When a message has been answered it leads to the server's again.
    """

    def __init__(self, path: Path, servers: Path) -> None:
        self.place, self.servers = path, servers
        path.symlink_to(servers)

    def __call__(self, message: Message, context: Context) -> Message:
        self.lead_to(Path(str(context.node_config["data-root"])))
        try:
            return apps.client(message, context)
        finally:
            self.lead_to(self.servers)

    def lead_to(self, chosen: Path) -> None:
        self.place.unlink()
        self.place.symlink_to(chosen)


def images(folder: Path, classes: int, channels: int = 3, side: int = 8) -> Path:
    for label in range(classes):
        for number in range(12):
            pixels = noise(2, 12, channels, side, side)[label % 2, number]
            save(folder / f"class{label}" / f"{number:02}.png", pixels if channels == 3 else pixels[0])
    return folder


def federated(tmp_path: Path, others: Path, **changes: object) -> tuple[Experiment, InProcessGrid]:
    """Three clients, of which that of partition 1 has other data than the server and the rest."""
    usual, place = images(tmp_path / "usual", 2), tmp_path / "data"
    sites = Sites(place, usual)
    requested = Experiment(
        method="fedavg", dataset=f"folder:{place}", net="linear", clients=3, rounds=1, local_epochs=1, engine="inproc",
        attack=("none",), out=tmp_path / "run",
    )  # fmt: skip
    experiment = dataclasses.replace(without_auto(requested), **changes)  # type: ignore[arg-type]
    grid = InProcessGrid(sites, 3, experiment.to_run_config())  # type: ignore[arg-type]
    for context in grid._contexts.values():
        chosen = others if context.node_config["partition-id"] == 1 else usual
        context.node_config["data-root"] = str(chosen)
    return experiment, grid


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    apps._own_space.cache_clear()
    yield
    apps._own_space.cache_clear()


@pytest.mark.parametrize(
    ("classes", "channels", "side", "held"),
    [(3, 3, 8, "3 classes and 3x8x8"), (2, 3, 9, "2 classes and 3x9x9"), (2, 1, 8, "2 classes and 1x8x8")],
)
def test_a_client_with_other_classes_or_inputs_ends_the_run_by_name(
    tmp_path: Path, classes: int, channels: int, side: int, held: str
) -> None:
    experiment, grid = federated(tmp_path, images(tmp_path / "others", classes, channels, side))
    with pytest.raises(RunError) as caught:
        federation.federate(grid, plan(experiment))
    message = f"holds data of {held} inputs, the server of 2 classes and 3x8x8 inputs; give both the same"
    assert str(caught.value) == f"client 1 failed in node assignment: {message}"
    assert experiment.out is not None and (experiment.out / "failure.txt").read_text() == f"{caught.value}\n"


def test_a_client_with_other_data_is_dropped_where_that_is_borne(tmp_path: Path) -> None:
    experiment, grid = federated(tmp_path, images(tmp_path / "others", 3), on_client_failure="drop")
    federation.federate(grid, plan(experiment))
    assert experiment.out is not None
    training = json.loads((experiment.out / "training.json").read_text())
    (round_one,) = training["rounds"]
    assert [failure["client"] for failure in round_one["failed"]] == [1]
    assert round_one["failed"][0]["reason"].startswith("holds data of 3 classes and 3x8x8 inputs")
    assert [row["client"] for row in training["final"]] == [0, 2]


def test_sizes_do_not_matter_where_all_are_resized(tmp_path: Path) -> None:
    experiment, grid = federated(tmp_path, images(tmp_path / "others", 2, side=9), image_size=8)
    federation.federate(grid, plan(experiment))
    assert final_clients(experiment) == [0, 1, 2]


def final_clients(experiment: Experiment) -> list[int]:
    assert experiment.out is not None
    return [row["client"] for row in json.loads((experiment.out / "training.json").read_text())["final"]]


def test_a_client_without_its_data_is_named_and_may_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    experiment, grid = federated(tmp_path, tmp_path / "others")
    with pytest.raises(
        RunError, match=r"^client 1 failed in node assignment: Expected one folder of images per class, or "
    ):
        federation.federate(grid, plan(experiment))
    bearing = dataclasses.replace(experiment, on_client_failure="drop", out=tmp_path / "again")
    federation.federate(grid, plan(bearing))
    assert final_clients(bearing) == [0, 2]


def test_a_quiet_client_keeps_the_reason_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "others").mkdir()
    experiment, grid = federated(tmp_path, tmp_path / "others")
    for context in grid._contexts.values():
        context.node_config["quiet"] = "true"
    with pytest.raises(RunError) as caught:
        federation.federate(grid, plan(experiment))
    assert (
        str(caught.value) == "client 1 failed in node assignment: cannot use its data; this site's log has the reason"
    )
    assert "flfw: Expected one folder of images per class, or " in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "trained"), [(0, True), (1, False)])
def test_a_site_with_too_few_examples_answers_nothing(tmp_path: Path, missing: int, trained: bool) -> None:
    experiment, grid = federated(tmp_path, tmp_path / "usual")
    held = len(plan(experiment).task.load(None).split.train[2])
    grid._contexts[3].node_config["fewest-examples"] = str(held + missing)
    if trained:
        federation.federate(grid, plan(experiment))
        return
    with pytest.raises(RunError) as caught:
        federation.federate(grid, plan(experiment))
    reason = f"has fewer training examples in this run than the {held + 1} its policy asks for"
    assert str(caught.value) == f"client 2 failed in round 1: {reason}"


@pytest.mark.parametrize("changed", [True, False])
def test_a_site_that_checks_the_broadcast_refuses_a_changed_network_alone(tmp_path: Path, changed: bool) -> None:
    """The site's number 2, whose policy has reject_suspicious_weights; honest networks pass in every round."""
    experiment, grid = federated(tmp_path, tmp_path / "usual")
    experiment = dataclasses.replace(experiment, malicious_server="imprint" if changed else "")
    for context in grid._contexts.values():
        context.run_config = experiment.to_run_config()
    grid._contexts[3].node_config["check-broadcast"] = "true"
    if not changed:
        federation.federate(grid, plan(experiment))
        return
    with pytest.raises(RunError) as caught:
        federation.federate(grid, plan(experiment))
    reason = "was sent weights that its reject_suspicious_weights refuses: extractor.imposed.measure.weight has "
    assert str(caught.value).startswith(f"client 2 failed in round 1: {reason}127 of 128 rows parallel to another")


def test_clients_of_one_site_look_through_its_data_once(tmp_path: Path) -> None:
    grid = federated(tmp_path, tmp_path / "usual")[1]
    NodeAssignment(grid, ClientDirectory(federation.FailurePolicy()), 3, wait=10).begin()
    result = apps._own_space.cache_info()
    assert (result.misses, result.hits) == (1, 2)


@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_client_with_made_up_class_names_leaves_no_other_out(liar: int) -> None:
    """Not even as the first one: most clients say which names are usual."""
    directory = ClientDirectory(federation.FailurePolicy("drop"))
    grid = InProcessGrid(introduces(liar), 3, {})
    NodeAssignment(grid, directory, 3, wait=10, required=Requirements("code", (1, 8, 8), 10)).begin()
    other = 1 if liar == 0 else 0
    assert list(directory.excluded) == [liar] and f"otherwise than client {other}" in directory.excluded[liar]


def introduces(liar: int) -> ClientApp:
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        me = int(context.node_config["partition-id"])
        labels = "ffff" if me == liar else "aaaa"
        return ClientInfo(me, "code", shape=(1, 8, 8), classes=10, labels=labels).to_message(message)

    return app


# --- what a method cannot do with a client's data -----------------------------------------------------------------


def refused(flags: str, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a command that ends with exit code 2 and leaves nothing behind."""
    assert sim.main([*flags.split(), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not out.exists()
    return line.removeprefix("sim.py: ")


def test_a_client_without_a_class_is_refused_where_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--method fedcg --dataset digits --clients 5 --split pathological --engine inproc --attack none"
    message = refused(flags, tmp_path / "run", capsys)
    assert message.startswith("Expected training examples of all 10 classes at each client, got none of class ")
    assert message.endswith(" at client 0; choose another --split or fewer --clients.")
