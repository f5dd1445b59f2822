"""Runs in which an evil client told lies, and what each may cost: the liar its round, and nobody else anything."""

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from safetensors.torch import load_file

from flfw.engines import apps
from flfw.engines import federation as engine
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid
from flfw.nets.training.devices import one_thread
from flfw.plans.run_plan import plan, without_auto
from tests.support import sites_at_work as sites
from tests.support.client_lies import lie_about
from tests.support.csv_files import read_csv
from tests.support.lying import EVIL, Lie, honest

HONEST = [client for client in range(sites.SITES) if client != EVIL]


@dataclass(frozen=True)
class Told:
    """A run in which a table of lies was run.

    Attributes:
        out: folder of the run.
        terminal: words of the server on the terminal.
    """

    out: Path
    terminal: str

    @cached_property
    def training(self) -> dict[str, Any]:
        """What the server wrote of its rounds; a run that is over has it in its results."""
        path = self.out / "training.json"
        return json.loads(path.read_text()) if path.exists() else sites.result(self.out)

    def failed(self, server_round: int) -> list[dict[str, Any]]:
        """List the failures of a round."""
        return self.training["rounds"][server_round - 1]["failed"]

    def clients(self, server_round: int) -> list[int]:
        """List the clients whose updates counted in a round."""
        rows = self.training["clients"] if "clients" in self.training else read_csv(self.out / "clients.csv")
        return [int(row["client"]) for row in rows if int(row["round"]) == server_round]

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
        assert not run.terminal or f"client {EVIL} dropped: {why}" in run.terminal


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


class Lying(InProcessGrid):
    """Grid of the same clients in one process, of which the evil one lies.

    Its answers are taken apart and made again by Flower's own functions, around which the server puts its checks.
    """

    lies: tuple[Lie, ...] = ()
    queries = 0

    def _answer(self, message: Message) -> Message:
        if message.metadata.dst_node_id != EVIL + 1:
            return super()._answer(message)
        self.queries += message.metadata.message_type == "query"
        sent, *_ = lie_about(self.lies, message, self.queries)
        parts = pull_objects([part.object_id for part in iterate_object_tree(sent.tree)], sent.objects.__getitem__)
        return inflate_object_from_contents(sent.envelope.metadata.message_id, parts)  # type: ignore[return-value]


def without_the_liar(out: Path, lies: tuple[Lie, ...], **changes: Any) -> dict[str, torch.Tensor]:
    """Return the last model of a run without the evil client's lies, in this process."""
    return Told(in_process(Absent, out, lies, **changes), "").model()


def in_process(kind: type[Absent | Lying], out: Path, lies: tuple[Lie, ...], **changes: Any) -> Path:
    """Carry out a run on a grid of this process; return its folder."""
    requested = Experiment(
        method="fedavg", net="linear", clients=sites.SITES, rounds=len(lies), local_epochs=1, engine="inproc",
        split="sampled", set=("sampled.train=50",), attack=("none",), on_client_failure="drop", out=out,
    )  # fmt: skip
    experiment = without_auto(dataclasses.replace(requested, **changes))
    private = [{"state": str(out.parent / "state")}] * sites.SITES
    grid = kind(apps.client, sites.SITES, experiment.to_run_config(), private)
    grid.lies = lies
    with one_thread():
        engine.federate(grid, plan(experiment))
    return out


def require_same_model(run: Told, expected: dict[str, torch.Tensor]) -> None:
    """Require that a run ended with a model, to the bit."""
    model = run.model()
    assert model.keys() == expected.keys()
    assert all(torch.equal(model[name], expected[name]) for name in model)
