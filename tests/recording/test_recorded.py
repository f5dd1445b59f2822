"""Whole ServerApps recorded in one line: both styles of apps, own names of records, actions and tensors."""

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import Grid, ServerApp

from flfw.errors import InputError
from flfw.messages.inprocess import InProcessGrid
from flfw.recording import RecordingGrid, RecordMap, recorded
from flfw.recording.grid import NoRecord
from flfw.recording.reader import Recordings
from tests.support.foreign_apps import ask

START = [np.zeros((2, 3), np.float32), np.ones(2, np.float32)]


def context(**config: Any) -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)


@final
class AddingClient(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        return [value + self.partition + 1 for value in parameters], 4, {"cid": self.partition}


def legacy_client() -> ClientApp:
    return ClientApp(client_fn=lambda context: AddingClient(int(context.node_config["partition-id"])).to_client())


def legacy_server(rounds: int = 2) -> ServerApp:
    def server_fn(context: Context) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_available_clients=3, initial_parameters=ndarrays_to_parameters(START)
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    return ServerApp(server_fn=server_fn)


def test_an_app_with_a_server_fn_is_recorded_in_one_line(tmp_path: Path) -> None:
    app = recorded(legacy_server(), tmp_path / "recordings", RecordMap(client="cid"))
    app(InProcessGrid(legacy_client(), 3, {}), context())
    kept = Recordings(tmp_path / "recordings")
    assert sorted((line["round"], line["client"]) for line in kept.lines) == [(r, c) for r in (1, 2) for c in range(3)]
    for number in (1, 2):
        for observation in kept.updates(number):
            assert set(observation.sent) == set(observation.received) == {"0", "1"}
            assert (observation.sent["0"] - observation.received["0"]).unique().tolist() == [observation.client + 1]
    assert kept.refused == [] and kept.lines[0]["metrics"]["num_examples"] == 4


def test_clients_that_answer_at_once_are_all_recorded(tmp_path: Path) -> None:
    """Flower's older strategies ask each client in a thread of its own."""
    waiting = threading.Barrier(8)

    @final
    class Together(Grid):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            (message,) = messages
            waiting.wait(10)
            arrays = ArrayRecord([np.full((200, 200), message.metadata.dst_node_id, np.float32)])
            return [Message(RecordDict({"arrays": arrays}), reply_to=message)]

        set_run = push_messages = pull_messages = create_message = get_node_ids = None  # type: ignore[assignment]
        run = None  # type: ignore[assignment]

    InProcessGrid(legacy_client(), 1, {})  # it gives messages an identity
    grid = RecordingGrid(Together(), tmp_path)

    def ask(node: int) -> None:
        message = Message(RecordDict({"arrays": ArrayRecord(START)}), dst_node_id=node, message_type="train")
        message.metadata.__dict__["_message_id"] = f"message {node}"
        assert len(list(grid.send_and_receive([message]))) == 1

    threads = [threading.Thread(target=ask, args=(node,)) for node in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = Recordings(tmp_path)
    assert sorted(line["client"] for line in kept.lines) == list(range(1, 9))
    assert len(kept.observations([line["id"] for line in kept.lines])) == 8 and not kept.refused


def client() -> ClientApp:
    app = ClientApp()

    @app.train()
    def plain(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord(START)}), reply_to=message)

    @app.train("local")
    def local(message: Message, context: Context) -> Message:
        model, config = message.content.array_records["model"], message.content.config_records["config"]
        sent = {name: array.numpy() + 1 for name, array in model.items()}
        content = {
            "gradients": ArrayRecord({name: _array(value) for name, value in sent.items()}),
            "statistics": ArrayRecord([np.zeros(5, np.float32)]),
            "metrics": MetricRecord(
                {"partition-id": int(context.node_config["partition-id"]), "lr": float(config["lr"])}
            ),
        }
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def _array(value: np.ndarray) -> Any:
    from flwr.app import Array

    return Array(value)


def asking(grid: Grid, message_type: str) -> None:
    content = RecordDict(
        {
            "model": ArrayRecord({"model.layer.weight": _array(START[0]), "model.layer.bias": _array(START[1])}),
            "control": ArrayRecord(START),
            "config": ConfigRecord({"lr": 0.5, "server-round": 3}),
        }
    )
    list(grid.send_and_receive([Message(content, dst_node_id=2, message_type=message_type)]))


NAMES = RecordMap("gradients", "model", types=("train.local",), prefix="model.", client="partition-id")


def main_app(message_type: str = "train.local") -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        asking(grid, message_type)

    return app


def test_an_app_with_own_names_is_recorded_as_the_map_says(tmp_path: Path) -> None:
    recorded(main_app(), tmp_path / "r", NAMES)(InProcessGrid(client(), 2, {}), context())
    (observation,) = Recordings(tmp_path / "r").updates(3)
    assert observation.client == 1  # the partition of node 2
    assert set(observation.received) == set(observation.sent) == {"layer.bias", "layer.weight"}
    assert (observation.sent["layer.weight"] - observation.received["layer.weight"]).unique().tolist() == [1.0]


def test_without_a_map_all_records_are_kept_and_other_actions_are_no_updates(tmp_path: Path) -> None:
    recorded(main_app(), tmp_path / "r")(InProcessGrid(client(), 2, {}), context())
    kept = Recordings(tmp_path / "r")
    (line,) = kept.lines
    assert (line["type"], line["client"]) == ("train.local", 2) and kept.updates(3) == []
    assert "gradients/model.layer.weight" in kept.observation(line["id"]).sent


def test_messages_without_the_named_record_are_skipped_and_said(tmp_path: Path) -> None:
    wrong = RecordMap("weights", "model", types=("train.local",))
    recorded(main_app(), tmp_path / "r", wrong)(InProcessGrid(client(), 2, {}), context())
    (skipped,) = Recordings(tmp_path / "r").skipped
    assert skipped["skipped"] == "there is no array record weights among gradients, statistics"
    recorded(main_app("train"), tmp_path / "other", NAMES)(InProcessGrid(client(), 2, {}), context())
    (skipped,) = Recordings(tmp_path / "other").skipped
    assert skipped["type"] == "train.default" and "no array record gradients among arrays" in skipped["skipped"]


def test_the_main_function_may_follow_on_the_recorded_app_and_the_folder_come_from_the_run(tmp_path: Path) -> None:
    app, events = recorded(ServerApp(), lambda run: run.run_config["recordings"], NAMES), []  # type: ignore[arg-type]

    @app.lifespan()
    def lifespan(context: Context) -> Any:
        events.append("before")
        yield
        events.append("after")

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        assert isinstance(grid, RecordingGrid)
        events.append("main")
        asking(grid, "train.local")

    assert isinstance(app, ServerApp)  # as Flower's loader demands
    app(InProcessGrid(client(), 2, {}), context(recordings=str(tmp_path / "r")))
    assert events == ["before", "main", "after"] and len(Recordings(tmp_path / "r").lines) == 1


def test_options_of_the_recorder_are_passed_on(tmp_path: Path) -> None:
    recorded(main_app(), tmp_path / "r", NAMES, compression="gzip")(InProcessGrid(client(), 2, {}), context())
    assert Recordings(tmp_path / "r").lines[0]["compression"] == "gzip"
    again = recorded(main_app(), tmp_path / "r", NAMES)
    with pytest.raises(InputError, match=r"^Expected a new folder for recordings"):
        again(InProcessGrid(client(), 2, {}), context())


@pytest.mark.parametrize(
    ("app", "folder", "records", "says"),
    [
        (object(), "/r", None, "^Expected a ServerApp of Flower, got object"),
        (ServerApp(), "recordings", None, "^Expected an absolute folder, got recordings: Flower runs a copy"),
    ],
)
def test_what_cannot_be_recorded_is_refused_at_once(app: Any, folder: str, records: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        recorded(app, folder, records)
    with pytest.raises(InputError, match=r"^Expected a tuple of message types, got types=train"):
        RecordMap(types="train")  # type: ignore[arg-type]


def test_two_arrays_that_get_one_name_are_no_record_and_unknown_options_are_refused(tmp_path: Path) -> None:
    content = RecordDict({"arrays": ArrayRecord({name: Array(np.zeros(2)) for name in ("w", "model.w")})})
    assert set(RecordMap().arrays(content, "")) == {"w", "model.w"}
    with pytest.raises(NoRecord, match=r"two of its arrays have one name without the prefix model\."):
        RecordMap(prefix="model.").arrays(content, "")
    with pytest.raises(InputError, match=r"Expected options of RecordingGrid among .*should_record.*, got wanted=None"):
        recorded(legacy_server(), tmp_path, wanted=None)


def test_trees_that_travel_as_bytes_are_named(tmp_path: Path) -> None:
    app = ClientApp()
    trees = json.dumps({"learner": {"gradient_booster": {}}}).encode()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from flwr.app import Array

        array = Array(dtype="", shape=(), stype="", data=trees)
        return Message(RecordDict({"arrays": ArrayRecord({"0": array})}), reply_to=message)

    grid = RecordingGrid(InProcessGrid(app, 1, {}), tmp_path)
    list(grid.send_and_receive([Message(RecordDict({"arrays": ArrayRecord(START)}), 1, "train")]))
    (skipped,) = Recordings(tmp_path).skipped
    assert skipped["skipped"].startswith("it is a model of XGBoost: trees have no gradients")
    with pytest.raises(InputError, match="got exchanges=0, skipped=it is a model of XGBoost: trees"):
        ask(tmp_path, tmp_path / "audit")
