"""Model of a finished run, built from the files in its folder alone; docs/python.md shows its use."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from flfw import data, nets
from flfw.client import FederatedClient
from flfw.client.context import ClientContext
from flfw.client.store import ClientStore
from flfw.data import feed
from flfw.data.files.columns import TableSchema
from flfw.data.readers.pixels import resize
from flfw.data.splits import partition
from flfw.data.tables import column_types, plan_file
from flfw.data.tables.names import TableSettings
from flfw.data.tables.written_values import DecimalSigns
from flfw.errors import InputError, OneLine, abridged, require
from flfw.files.folders import require_finished
from flfw.files.result_file import read_result
from flfw.messages.wire import pack, unpack
from flfw.plans.run_plan import RunPlan, plan
from flfw.server.central import sends_one_model
from flfw.server.checkpoint import last_snapshot, stored_experiment
from flfw.server.context import ServerContext
from flfw.task.task import Task


@final
class TrainedModel(nn.Module):
    """Network of a finished run with its last weights, in evaluation mode: ``scores = model(model.preprocess(x))``.

    Args:
        net: the network.
        task: the data set; it may have no examples.
        settings: how the cells of a table are read.

    Attributes:
        net: the network.
        inputs: shape, mean and standard deviation of its inputs.
        columns: plan of a table's columns; None: the data are no table.
        classes: names of the classes in the order of the scores; empty: the only output is a standardised number.
    """

    def __init__(self, net: nn.Module, task: Task, settings: TableSettings) -> None:
        super().__init__()
        dataset, self.inputs = task.dataset, task.inputs
        self.net, self.columns, self._settings = net, dataset.columns, settings
        self.classes = self.columns.classes if self.columns else tuple(map(str, range(dataset.classes)))
        # A user's own pictures are resized in another way.
        self._published = data.describe(dataset.name).shape if dataset.name in data.names() else dataset.shape
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores (B, classes) of inputs from `preprocess`."""
        return self.net(x)

    def preprocess(self, examples: Any) -> Tensor:
        """Return network inputs (B, ...), float32, of examples as the data set has them.

        Args:
            examples: images (B, C, H, W) or rows (B, d), as bytes or as floats in [0, 1]; bytes of the published size
                are resized. Of a table: a DataFrame, or another mapping from the names of columns to values, with all
                columns that are features. Others are not looked at.

        Raises:
            InputError: a column is missing, a value does not fit its column, or shape or range are others.
        """
        shape = self.inputs.shape
        if self.columns and hasattr(examples, "keys"):
            examples = _features(examples, self.columns, self._settings)
        x = torch.as_tensor(examples)
        if x.dtype == torch.uint8 and x.shape[1:] == self._published != shape:
            x = torch.from_numpy(resize(x.numpy(), shape[1]))
        require(x.shape[1:] == shape, f"inputs of shape (B, {', '.join(map(str, shape))})", shape=tuple(x.shape))
        x = feed.raw(x).float()
        require(bool(((x >= 0) & (x <= 1)).all()), "inputs as bytes, or floats in [0, 1]", inputs="others")
        return self.inputs.normalise(x)


def open_model(folder: Path, client: int | None = None) -> TrainedModel:
    """Build the model that a run ended with; nothing in its folder changes, and its data are not needed.

    Args:
        folder: folder of the run.
        client: number of the client whose model it is, where each has its own; None: the model of all.

    Raises:
        InputError: the run is not finished, its folder is damaged or purged, or does not hold the model.
    """
    require_finished(folder)
    experiment = stored_experiment(folder).experiment
    nets.look_in(experiment.weights)
    dataset, settings = _described(folder, experiment.dataset)
    run_plan = plan(experiment).with_input_space(dataset.shape, dataset.classes)
    clients = run_plan.client.rounds.clients
    require(client is None or client in range(clients), f"a client from 0 to {clients - 1}", client=client)
    task = Task(dataset, partition.nobodys(clients), run_plan.client.task.network)
    worker = client_after(run_plan, task, folder, client)
    if client is None and not (sends_one_model(run_plan.client.method) and _is_common(worker)):
        raise InputError(f"Expected client=NUMBER, as {run_plan.client.name} has a model for each client, got none.")
    return TrainedModel(worker.model, task, settings)


def _described(folder: Path, name: str) -> tuple[data.Dataset, TableSettings]:
    """Return the data set of a run without examples, as its files describe it, and how a table's cells are read."""
    noted = (read_result(folder).get("provenance") or {}).get("data") or {}
    if lacking := [key for key in ("shape", "classes", "mean", "std") if not noted.get(key)]:
        raise InputError(f"Expected provenance.data.{lacking[0]} in {folder / 'result.json'}, got none; run it anew.")
    x, y = np.zeros((0, *noted["shape"]), np.float32), np.zeros(0, np.int64)
    constants = noted["classes"], tuple(noted["mean"]), tuple(noted["std"])
    dataset = data.Dataset(name, x, y, x, y, *constants, source="", md5_ok=None, columns=plan_file.kept(folder))
    return dataset, replace(TableSettings(), **(noted.get("reading") or {}))


def client_after(run_plan: RunPlan, task: Task, folder: Path, client: int | None) -> FederatedClient:
    """Return a client, on the CPU, that has received the last model of a run, as for the final evaluation.

    Args:
        run_plan: of the run.
        task: of the run; it may have no examples.
        folder: folder of the run.
        client: number of the client; None: a client that never took part.

    Raises:
        InputError: the model, or what this client kept, is not there, is damaged or is of another run.
    """
    clients, last = replace(run_plan.client, on_gpu=False), last_snapshot(folder)
    strategy = run_plan.strategy(clients.settings, seed=clients.seed)
    strategy.ctx = ServerContext(clients)
    strategy.restore(last, ())
    number, version = client or 0, 0 if client is None else last.state_versions.get(client, 0)
    arrays = unpack(strategy.arrays_for(number, pack(last.evaluated)))
    received = {name: value.numpy() for name, value in arrays.items()}
    store = None if client is None else ClientStore(folder / "state", stored_experiment(folder).id, number)
    made: FederatedClient = clients.client_class(ClientContext(clients, task, number, last.round, None, store))
    if version and made.private_state():
        require_state(folder)
    try:
        made.validator.check_received(received)
        made.load_received(received, version)
    except (OSError, OneLine) as error:
        raise InputError(f"Expected the whole state of the run in {folder}: {error}") from error
    return made


def require_state(folder: Path) -> None:
    """Refuse the folder of a run that does not hold what its clients kept."""
    if not (folder / "state").is_dir():
        raise InputError(
            f"Expected the clients' private tensors in {folder / 'state'}, got none; run with --expert keep_state=true."
        )


def _is_common(worker: FederatedClient) -> bool:
    """Return whether a client's scores do not depend on tensors that the server does not send, by a trial."""
    shape, moved = worker.ctx.task.dataset.shape, deepcopy(worker.model).eval()
    x = torch.linspace(0, 1, 2 * int(np.prod(shape))).view(2, *shape)
    with torch.no_grad():
        for name in worker.private_names:
            moved.state_dict()[name].add_(1)
        return torch.equal(moved(x), worker.model.eval()(x))


def _features(table: Mapping[str, Any], plan: TableSchema, settings: TableSettings) -> np.ndarray:
    """Return features (B, d) of a table's columns, each read by itself: numbers as they are, words as written."""
    from pandas import Series
    from pandas.api.types import is_numeric_dtype

    parts = []
    if lacking := [column.name for column in plan.kept if column.name not in table]:
        raise InputError(f"Expected all columns that are features, got none called {abridged(lacking, 8)}.")
    for column in plan.kept:
        values = Series(table[column.name])
        pairs = zip(values.tolist(), values.isna(), strict=True)
        words = {column.name: np.array(["" if absent else str(value).strip() for value, absent in pairs], object)}
        signs = DecimalSigns(".") if is_numeric_dtype(values) else column_types.decimal_signs(words, settings, "")
        read, _ = column_types.by_schema(words, replace(plan, columns=(column,)), settings, signs)
        parts.append(column_types.encoded(read, (column,)))
    return np.concatenate(parts, axis=1)
