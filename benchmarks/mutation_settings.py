"""Mutations of settings: a site's policy, a federation's folder, a run's configuration, and words of command lines."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from benchmarks.mutation_cases import Folder, Mutant, Subject, plain, unsealed
from benchmarks.mutation_operators import WORDS, bytes_mutant, odd, toml_mutant, tree_mutant, word_mutant
from flfw import apps
from flfw.client.site import Site
from flfw.command import record
from flfw.deploy import certificates, processes
from flfw.deploy.layout import Layout
from flfw.deploy.pins import Pins, pins_of
from flfw.deploy.policy import Policy
from flfw.dp.budget import budgeted
from flfw.engines.registrations import registered_nodes
from flfw.errors import BadInput
from flfw.experiment import Experiment
from flfw.messages.inprocess import InProcessGrid

_FLAGS = [
    "--method", "fedavg", "--rounds", "3", "--clients", "4", "--lr", "0.1", "--dataset", "digits", "--attack", "ig",
    "--defence", "soteria", "prune", "--set", "prune.ratio=0.5", "--audit-rounds", "0,last", "--curve", "batch=1,4",
    "--vantage", "server", "--engine", "inproc", "--seed", "1", "--metrics", "all", "--defended", "0,1",
]  # fmt: skip


def _policy() -> Policy:
    digest = hashlib.sha256(b"app").hexdigest()
    budget: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "unit": "example", "metrics": "none"}
    given: dict[str, Any] = {
        "record": True,
        "volunteered": (4, 0),
        "fewest_examples": 3,
        "plugins": ("a.b:C",),
        "most_messages": 40,
    }
    return Policy((digest,), ("net.*",), 5.0, **budget, **given, run=pins_of(Experiment(), "digits"))


def policies(scratch: Path) -> list[Subject]:
    """Return the readers of a site's policy: the file, and its decisions on runs and on answers."""
    InProcessGrid(apps.client, 1, {})
    policy = _policy()
    folder = Folder(scratch / "policy", {"policy.toml": policy.text().encode()})
    run_config = Experiment().to_run_config()

    def run(rng: Random) -> Mutant:
        config = tree_mutant(run_config, rng)
        config = config if isinstance(config, dict) else run_config
        return Mutant(lambda: policy.refuses_run(config))

    def answer(rng: Random) -> Mutant:
        message = _answer(rng)
        return Mutant(
            lambda: policy.refuses_answer(message, rng.choice(("train", "query", "")), rng.choice((0, 10**9)))
        )

    def reads(place: Path) -> Policy:
        return Policy.read(place / "policy.toml")

    def fits(read: Any) -> bool:
        numbers = (read.largest_upload_mb, read.epsilon, read.delta)
        whole = all(type(place) is int for place in read.volunteered)
        return (
            whole
            and all(isinstance(n, float | int) and n > 0 for n in numbers)
            and (read.run is None or isinstance(read.run, Pins))
        )

    return [
        folder.subject("Policy.read", {"policy.toml": unsealed(toml_mutant)}, reads, fits=fits, weight=3),
        Subject("refuses_run", run, refusals=(), fits=_is_reason),
        Subject("refuses_answer", answer, refusals=(), fits=_is_reason, weight=0.5),
    ]


def _is_reason(reason: Any) -> bool:
    return reason is None or isinstance(reason, str)


def _answer(rng: Random) -> Message:
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    word = rng.choice(WORDS).replace("\ud800", "?")
    if rng.random() < 0.3:
        return Message(Error(2, word * rng.choice((1, 50))), reply_to=asked)
    parts: dict[str, Any] = {"a": ArrayRecord({word or "x": Array(np.zeros(2, np.float32))})}
    parts["b"] = rng.choice((MetricRecord({word: 1}), ConfigRecord({"words": word}), MetricRecord({"loss": [1.0]})))
    return Message(RecordDict({rng.choice((name, word)): part for name, part in parts.items()}), reply_to=asked)


def federations(scratch: Path) -> list[Subject]:
    """Return the readers of a federation's folder: its layout, its registrations, its processes, its sites' config."""
    made = scratch / "made-federation"
    made.mkdir(parents=True)
    Layout(made, 3).write()
    files = {"federation.toml": (made / "federation.toml").read_bytes()}
    folder = Folder(scratch / "federation", files)
    names = {f"superlink/registered-{client}": f"{100 + client}\n".encode() for client in range(3)}
    registered = Folder(scratch / "registered", {**files, **names})
    running = Folder(scratch / "running", {"superlink/superlink.pid": b"999999999 12345\n"})
    node = {
        "data-root": "/data",
        "state": "/state",
        "truth": "/truth",
        "volunteered": "0 1 2",
        "budget": "2.0 1e-05 example 0",
        "ledger": "/l",
    }

    def config(rng: Random) -> Mutant:
        changed = tree_mutant(node, rng)
        changed = changed if isinstance(changed, dict) else node
        return Mutant(lambda: (Site.from_config(changed, "abc"), budgeted(changed)))

    def layout(place: Path) -> object:
        read = Layout.read(place)
        commands = read.superlink_command(), read.supernode_command(0), read.register_command(0), read.connection
        return dataclasses.replace(read, folder=Path("/f")), len(commands)

    def sound(read: Any) -> bool:
        one = read[0]
        numbers = (one.clients, one.port, one.control_port, one.site_port)
        return (
            all(type(number) is int for number in numbers) and isinstance(one.host, str) and isinstance(one.listen, str)
        )

    authority = certificates.authority()
    pair = {"ca.crt": authority.public, "ca.key": authority.private}
    signed = Folder(scratch / "signed", pair)

    def renewed(place: Path) -> object:
        by = certificates.Pair((place / "ca.key").read_bytes(), (place / "ca.crt").read_bytes())
        made = certificates.server(by, ["127.0.0.1"])
        return certificates.ends(made.public) > certificates.ends((place / "ca.crt").read_bytes())

    anything = dict.fromkeys(names, unsealed(bytes_mutant))
    return [
        folder.subject("Layout.read", {"federation.toml": unsealed(toml_mutant)}, layout, fits=sound, weight=3),
        registered.subject("registered_nodes", anything, lambda p: registered_nodes(p, 3), fits=_nodes_fit),
        running.subject(
            "processes.alive",
            {"superlink/superlink.pid": unsealed(bytes_mutant)},
            lambda p: processes.alive(p / "superlink", "superlink"),
            fits=lambda pid: pid is None,
            weight=0.3,
        ),
        signed.subject(
            "certificates",
            dict.fromkeys(pair, unsealed(bytes_mutant)),
            renewed,
            refusals=(BadInput, OSError),
            weight=0.5,
        ),
        Subject("node config", config, fits=lambda read: isinstance(read[0], Site), weight=0.5),
    ]


def _nodes_fit(nodes: Any) -> bool:
    return all(type(node) is int and client in range(3) for node, client in nodes.items())


def words(scratch: Path) -> list[Subject]:
    """Return the readers of a run's configuration and of a command line, which start nothing."""
    usual = Experiment().to_run_config()

    def run_config(rng: Random) -> Mutant:
        changed = tree_mutant(usual, rng)
        changed = changed if isinstance(changed, dict) else {}
        return Mutant(lambda: Experiment.from_run_config(changed))

    def line(rng: Random) -> Mutant:
        arguments = list(_FLAGS)
        for _ in range(rng.choice((1, 1, 2))):
            at, change = rng.randrange(len(arguments)), rng.random()
            if change < 0.5:
                arguments[at] = word_mutant(arguments[at], rng)
            elif change < 0.65:
                arguments[at] = str(odd(rng))[:200] if rng.random() < 0.9 else "9" * 5000
            elif change < 0.75:
                del arguments[at]
            elif change < 0.9:
                arguments.insert(
                    at,
                    rng.choice(
                        (
                            "--resume",
                            "--from",
                            "--matrix",
                            "methods=a,b",
                            "--seeds",
                            "--table",
                            "--out",
                            "\0",
                            "--",
                            "--purge",
                            "x",
                        )
                    ),
                )
            else:
                arguments[at : at + 1] = arguments[at : at + 2] * 2
        return Mutant(lambda: _parsed(arguments))

    return [
        Subject("from_run_config", run_config, plain(Experiment()), fits=_typed, weight=3),
        Subject("command line", line, refusals=(BadInput,), fits=lambda c: _typed(c.experiment), weight=0.25),
    ]


def _parsed(arguments: list[str]) -> record.Command:
    command = record.parse(arguments)
    record.refuse_two_tasks(command)
    return command


def _typed(experiment: Any) -> bool:
    """Return whether the values of an experiment have the types of its run configuration."""
    usual: Mapping[str, Any] = Experiment().to_run_config()
    given = experiment.to_run_config()
    alike = all(
        type(given[key]) is type(value) or {type(given[key]), type(value)} == {int, float}
        for key, value in usual.items()
    )
    return alike and Experiment.from_run_config(given) == experiment
