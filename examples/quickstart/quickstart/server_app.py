"""Server: Flower's federated averaging, and two lines that record the clients' updates."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flfw.recording.grid import RecordingGrid  # recorder, line 1 of 2
from quickstart.task import SmallNet

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    run = context.run_config
    folder = Path(run["recordings"]).expanduser()
    grid = RecordingGrid(grid, folder)  # recorder, line 2 of 2

    clients = run["num-clients"]
    strategy = FedAvg(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(SmallNet().state_dict()),
        train_config=ConfigRecord({name: run[name] for name in ("lr", "local-epochs", "batch-size")}),
        num_rounds=run["num-server-rounds"],
    )
