"""Question of a server to a client: the scalars of a message, which a server may have made up."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

from flwr.app import ArrayRecord, ConfigRecord, Message

from flfw.errors import InputError, require
from flfw.files.typed import fitted
from flfw.messages.wire import of_kind

_ARRAYS, _CONFIG, _PROBE = "arrays", "config", "train.probe"
_SOURCE, _WAY_OUT = "a message of the server", "run the same code on both sides"
_NAME = 128  # characters of an experiment's id, which becomes the name of a folder
_COUNTS = ("round", "client", "state_version", "slot", "own_slot", "batch", "steps")


class MessageConfig(TypedDict):
    """Scalars of a message to a client; those from ``control`` on are of probes.

    Attributes:
        round: number of the round, >= 0.
        client: number of the client, >= 0.
        state_version: round of the private state to go on from; 0: the start.
        experiment: id of the experiment, letters and digits.
        code: hash of the server's code.
        deadline: seconds for the answer, > 0.
        control: control of the audit, or ``target``.
        slot: place among all probes.
        own_slot: place among the client's probes.
        batch: number of examples.
        steps: number of local steps.
        point: name of the probe within the round.
        vantage: position of the observer.
    """

    round: int
    state_version: int
    experiment: str
    code: str
    deadline: float
    client: NotRequired[int]
    control: NotRequired[str]
    slot: NotRequired[int]
    own_slot: NotRequired[int]
    batch: NotRequired[int]
    steps: NotRequired[int]
    point: NotRequired[str]
    vantage: NotRequired[str]


_OF_PROBES = ("control", "slot", "own_slot", "batch", "steps", "point")


def read_question(message: Message, kind: str) -> tuple[dict[str, Any], ArrayRecord]:
    """Read the scalars and the arrays of a message to a client.

    Args:
        message: the message.
        kind: its type, such as ``train.probe``.

    Raises:
        InputError: a record or a scalar is missing, has another type, or is out of its range.
    """
    arrays, scalars = of_kind(message.content, ArrayRecord), of_kind(message.content, ConfigRecord)
    complete = _ARRAYS in arrays and _CONFIG in scalars
    require(complete, f"records {_ARRAYS} and {_CONFIG} in {_SOURCE}", records=", ".join(message.content) or "none")
    config = cast(dict[str, Any], fitted(dict(scalars[_CONFIG]), MessageConfig, _SOURCE, _WAY_OUT))
    if kind == _PROBE and (missing := [name for name in _OF_PROBES if name not in config]):
        raise InputError(f"Expected {missing[0]} in {_SOURCE} for a probe, got none; {_WAY_OUT}.")
    for name in _COUNTS:
        require(config.get(name, 0) >= 0, f"{name} >= 0 in {_SOURCE}", **{name: config.get(name)})
    require(config["deadline"] > 0, f"deadline > 0 in {_SOURCE}", deadline=config["deadline"])
    named = config["experiment"].isalnum() and len(config["experiment"]) <= _NAME
    require(named, f"an experiment of letters and digits in {_SOURCE}", experiment=config["experiment"][:_NAME])
    return config, arrays[_ARRAYS]
