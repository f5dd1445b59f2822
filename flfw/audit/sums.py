"""Entry of a run's result.json on sums over its clients: what sums hide, computed from the run's recordings.

It covers broadcasts that differ, coordinates to which one client alone contributes, hidden units of a hypernetwork,
changing groups, clients as observers, and a malicious server that isolates a client. The change of a hypernetwork's
head is d h^T for each client in one step, with its own hidden units h. So the sum over n clients has rank n, and its
leading n directions span the clients' h; what each client sent alone tells whether that is so here.

Sums over changing groups are told apart by least squares over all rounds, and by the difference of two rounds whose
groups differ in one client. Both are exact only if the other clients' updates stay the same. The change between two
broadcasts is the mean update of a round: whoever sent c of its n updates subtracts them and has the sum of n - c.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import acos, inf, isinf, sqrt
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from flfw.adversary.secure_aggregation import EmbeddingSpan, expected_exposed, largest_angles, separation, span_of
from flfw.audit.verdict import MESSAGES, Findings, verdict_on
from flfw.client.broadcast_checks import differently_served
from flfw.errors import InputError, require
from flfw.experiment.curves import SUM_SIZE
from flfw.files.outcomes import LEAKS, VOID, concluded, outcome
from flfw.files.result_file import TRAINING, read_training
from flfw.files.tensor_names import matches
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.malicious_model import ModelModification
from flfw.nets.net import Tensors
from flfw.recording.format import Line
from flfw.recording.observation import Observation
from flfw.recording.reader import Recordings
from flfw.server.central import sends_mean, sends_one_model
from flfw.task.client_plan import ClientPlan

_NEAR = 0.1  # radians, 6 degrees: below, the span counts as recovered
_MOST = 1_000_000  # entries of a matrix whose singular values are computed, a few seconds
_NAMED = 20  # clients and pairs of rounds that are listed


def peers(recordings: Recordings, cohorts: Mapping[int, Set[int]], sends_mean: bool, clients: int) -> dict[str, Any]:
    """Compute the update or the sum that a client among the others learns.

    Args:
        recordings: of the run.
        cohorts: the clients whose updates were used in each round.
        sends_mean: whether all clients receive the mean of the last round's weights, and nothing else of the server.
        clients: number of clients of the federation.

    Returns:
        The smallest group n, what is left of it without one client, a verdict with its reason, and the check with
        recorded updates of two clients (None: no such round is recorded with the next broadcast).
    """
    smallest = min(len(group) for group in cohorts.values())
    where = min(number for number, group in cohorts.items() if len(group) == smallest)
    check = None
    for number in _recorded_rounds(recordings) if sends_mean else []:
        if len(cohorts.get(number, ())) == 2:
            check = subtracted(recordings, number)
        if check is not None:
            break
    verdict = concluded(*verdict_on(_findings(smallest, sends_mean, clients)))
    figures = {"smallest": smallest, "round": where, "left": smallest - 1}
    return figures | {key: verdict[key] for key in ("verdict", "evidence", "reason")} | {"check": check}


def _findings(smallest: int, sends_mean: bool, clients: int) -> Findings:
    if clients == 1:
        yield "alone", "The federation has one client: there is no other one, and no sum hides its message."
    if not sends_mean:
        yield (
            "untried",
            "This run's server does not send all clients the mean of what it received, so a client cannot subtract its "
            "own part from it. What it can compute instead was not looked at.",
        )
    if smallest == 2:
        yield (
            "peer",
            "With 2 clients in a round and 1 observer among them n - c = 1: the other client's update follows from two "
            "broadcasts and the observer's own update, up to the factor of its weight. It is as if nothing were "
            "summed.",
        )
    if smallest < 2:
        yield (
            "peer",
            "A round had 1 client: whoever received the broadcasts before and after it has that client's update.",
        )
    yield (
        "group",
        f"One observer among {smallest} clients is left with the sum of n - c = {smallest - 1}. If {smallest - 1} of "
        f"{smallest} put together what they know, n - c = 1, and the last one's update follows exactly.",
    )


def subtracted(recordings: Recordings, server_round: int) -> dict[str, Any] | None:
    """Compute one client's change from the next broadcast and the other client's upload, and compare with its upload.

    Args:
        recordings: of the run.
        server_round: a round in which two clients took part.

    Returns:
        The largest difference and the largest change, of all numbers; None: a recording is missing or damaged.
    """
    lines, after = _first_lines(recordings, server_round), _next_broadcast(recordings, server_round)
    if len(lines) != 2 or after is None:
        return None
    seen = [*_readable(recordings, lines)]
    if len(seen) != 2:
        return None
    observer, other = (_change_in(*both) for both in seen)
    before = seen[0][0].received
    if not (observer.tensors.keys() == other.tensors.keys() <= after.keys()) or observer.weight + other.weight <= 0:
        return None
    left = remainder(before, after, observer.tensors, (observer.weight, other.weight))
    names = [name for name in left if left[name].numel()]
    error = max((float((left[name] - other.tensors[name]).abs().max()) for name in names), default=0.0)
    largest = max((float(other.tensors[name].abs().max()) for name in names), default=0.0)
    return {"round": server_round, "client": other.client, "largest_difference": error, "largest_change": largest}


def remainder(before: Tensors, after: Tensors, change: Tensors, weights: tuple[float, float]) -> Tensors:
    """Compute the other client's change, in float64, from two broadcasts of a weighted mean of two clients.

    Args:
        before: broadcast that both received.
        after: the next one.
        change: the observer's change by name.
        weights: the observer's and the other's.
    """
    mine, total = weights[0], sum(weights)
    return {
        name: (total * (after[name].double() - before[name].double()) - mine * part) / weights[1]
        for name, part in change.items()
    }


def _next_broadcast(recordings: Recordings, server_round: int) -> Tensors | None:
    """Return the tensors that clients receive after a round, with the next message for training or with a probe."""
    lines = [*_first_lines(recordings, server_round + 1), *recordings.probe_lines("target", server_round)]
    return next((observation.received for observation, _ in _readable(recordings, lines)), None)


def _readable(recordings: Recordings, lines: Iterable[Line]) -> Iterator[tuple[Observation, Line]]:
    """Yield the observations of some lines, one in memory at a time; the report names the files that are damaged."""
    for line in lines:
        (observation,) = recordings.observations([line["id"]])
        if observation is not None:
            yield observation, line


def took_part(folder: Path) -> dict[int, set[int]]:
    """Return the clients whose updates were used in each round of a run; empty: its folder does not say.

    Args:
        folder: of the run.
    """
    if (folder / TRAINING).exists():
        rows: Iterable[Mapping[str, Any]] = read_training(folder)["clients"]
    elif (folder / "clients.csv").exists():
        try:
            rows = pd.read_csv(folder / "clients.csv", usecols=["round", "client"], dtype=int).to_dict("records")
        except ValueError as error:  # an empty file, another table, or numbers that are none
            raise InputError(f"Expected rounds and clients in {folder / 'clients.csv'}, got {error}.") from error
    else:
        return {}
    cohorts: dict[int, set[int]] = {}
    for row in rows:
        cohorts.setdefault(int(row["round"]), set()).add(int(row["client"]))
    return cohorts


def participation(cohorts: Mapping[int, Set[int]]) -> dict[str, Any]:
    """Compute from the participation alone how well single clients can be told from the sums.

    Every client counts with the same weight.

    Args:
        cohorts: the clients that took part in each round; at least one round with a client.
    """
    rounds = sorted(number for number, clients in cohorts.items() if clients)
    clients = sorted({client for number in rounds for client in cohorts[number]})
    sizes = [len(cohorts[number]) for number in rounds]
    figures: dict[str, Any] = {"rounds": len(rounds), "clients": len(clients), "smallest_group": min(sizes)}
    figures |= {"rank": None, "smallest_singular": None, "separable": None, "noise": None}
    if len(rounds) * len(clients) <= _MOST:
        matrix = np.array([[float(client in cohorts[number]) for client in clients] for number in rounds])
        separated = separation(matrix)
        apart = sorted((float(noise), client) for noise, client in zip(separated.noise, clients, strict=True))
        apart = [(noise, client) for noise, client in apart if not isinf(noise)]
        figures |= {"rank": separated.rank, "smallest_singular": separated.smallest, "separable": len(apart)}
        figures["noise"] = [{"client": client, "factor": factor} for factor, client in apart[:_NAMED]]
    alone = isolated(cohorts)
    return figures | {"isolated": len({row["client"] for row in alone}), "isolating": alone[:_NAMED]}


def isolated(cohorts: Mapping[int, Set[int]]) -> list[dict[str, int]]:
    """List the clients that a difference of two rounds leaves alone: one round had the same group and this client.

    A client that is alone in a round is in the list with that round and no other (``absent`` is 0).

    Args:
        cohorts: the clients that took part in each round.

    >>> isolated({1: {0, 1, 2}, 2: {0, 1}, 3: {5}})
    [{'client': 2, 'present': 1, 'absent': 2}, {'client': 5, 'present': 3, 'absent': 0}]
    """
    groups: dict[frozenset[int], int] = {}
    for number in sorted(cohorts):
        groups.setdefault(frozenset(cohorts[number]), number)
    left_alone: dict[int, dict[str, int]] = {}
    for group, number in sorted(groups.items(), key=lambda item: item[1]):
        for client in sorted(group):
            rest = group - {client}
            other = groups.get(rest) if rest else 0
            if other is not None and client not in left_alone:
                left_alone[client] = {"client": client, "present": number, "absent": other}
    return [left_alone[client] for client in sorted(left_alone)]


def head_of(model: nn.Module) -> str | None:
    """Return the name of a head's weight that is read: the smallest of those with as many rows as columns, or the
    largest one; None: no tensors of the model are generated.
    """
    if not isinstance(model, GeneratedNet):
        return None
    tensors = model.state_dict().items()
    sizes = {name: value.shape for name, value in tensors if matches(name, ("hypernet.heads.*.weight",))}
    tall = {name: shape for name, shape in sizes.items() if shape[0] >= shape[1]}
    return min(tall, key=lambda name: tall[name][0]) if tall else max(sizes, key=lambda name: sizes[name][0])


@final
class HeadSum:
    """Sum of a head's changes over clients, and the leading direction of each client's own change.

    Args:
        name: of the head's weight.
    """

    def __init__(self, name: str) -> None:
        self._name, self._sum = name, torch.zeros(0)
        self._own: list[Tensor] = []

    def add(self, update: Tensors) -> None:
        """Add a client's change; one without this head, or without any change of it, is left out."""
        change = update.get(self._name)
        if change is None or not bool(change.any()):
            return
        self._sum = self._sum + change if len(self._own) else change.clone()
        self._own.append(leading(change, 1)[0])

    def figures(self) -> dict[str, Any] | None:
        """Return the rank, and the angles between the clients' directions and the span; None: no client changed it."""
        if not self._own:
            return None
        span = span_of(self._sum)
        width, clients = self._sum.shape[1], len(self._own)
        maximum = min(clients, span.rank)
        angles = largest_angles(EmbeddingSpan(leading(self._sum, maximum), span.values), torch.stack(self._own))
        by_chance = acos(sqrt(maximum / width))
        return {
            "head": self._name,
            "clients": clients,
            "width": width,
            "rank": span.rank,
            "largest_angle": float(angles.max()),
            "angle_by_chance": by_chance,
            "recovered": bool(angles.max() < _NEAR) and maximum < width and by_chance > 2 * _NEAR,
        }


def leading(matrix: Tensor, count: int) -> Tensor:
    """Return the leading right singular vectors (count, width) of a matrix (rows, width), in float64.

    Args:
        matrix: the matrix.
        count: how many, at most its rank.
    """
    small = matrix.double()
    if len(small) > small.shape[1]:
        small = torch.linalg.qr(small, mode="r").R
    return torch.linalg.svd(small, full_matrices=False)[2][:count]


@final
class Exposure:
    """Count of the clients that contribute to each coordinate.

    Attributes:
        clients: number of updates so far.
    """

    def __init__(self) -> None:
        self.clients = 0
        self._counts: dict[str, Tensor] = {}
        self._kept: dict[str, list[float]] = {}

    def add(self, update: Tensors) -> None:
        """Count a client's update.

        Raises:
            InputError: it has other tensors than the first one.
        """
        if not self.clients:
            self._counts = {name: torch.zeros(value.shape, dtype=torch.int32) for name, value in update.items()}
            self._kept = {name: [] for name in update}
        shapes = {name: count.shape for name, count in self._counts.items()}
        same = {name: value.shape for name, value in update.items()} == shapes
        require(same, "the same tensors in all updates of a round", tensors=", ".join(update))
        self.clients += 1
        for name, value in update.items():
            self._counts[name] += value != 0
            self._kept[name].append(float((value != 0).double().mean()) if value.numel() else 0.0)

    def figures(self) -> dict[str, Any]:
        """Return the shares: of all coordinates, and of each layer, the most exposed one first.

        Beside each share stands the one that supports of the same sizes would give if they were independent.
        """
        groups: dict[str, list[str]] = {}
        for name in self._counts:
            groups.setdefault(name.rpartition(".")[0] or name, []).append(name)
        layers = [{"layer": layer, **self._share(names)} for layer, names in groups.items()]
        layers.sort(key=lambda row: -row["share"])
        return {**self._share(self._counts), "layers": layers}

    def _share(self, names: Iterable[str]) -> dict[str, Any]:
        chosen = list(names)
        total = sum(self._counts[name].numel() for name in chosen)
        alone = sum(int((self._counts[name] == 1).sum()) for name in chosen)
        nobody = sum(int((self._counts[name] == 0).sum()) for name in chosen)
        expected = sum(self._counts[name].numel() * expected_exposed(self._kept[name]) for name in chosen)
        shares = {"share": alone, "independent": expected, "untouched": nobody}
        return {"coordinates": total, **{key: value / max(1, total) for key, value in shares.items()}}


def broadcast(lines: list[Line]) -> dict[str, Any]:
    """Compare the messages that the clients of one round received.

    Args:
        lines: the manifest's lines of their uploads.

    Returns:
        The number of different contents, and the clients whose content is not the most common one; all where none is.
    """
    digests = {line["client"]: str(line["sent_to_client"]["sha256"]) for line in lines}
    return {"contents": len(set(digests.values())), "differ": differently_served(digests)}


@final
@dataclass(frozen=True)
class Change:
    """Change of the shared tensors in a client's upload.

    Attributes:
        client: number of the client.
        weight: number of examples that the client reported; 1 where it reports none.
        tensors: what was sent minus what was received, by name, in float64; only those with fractions.
    """

    client: int
    weight: float
    tensors: Tensors


def _recorded_rounds(recordings: Recordings) -> list[int]:
    """List the rounds of which uploads are recorded, ascending."""
    return sorted({line["round"] for line in recordings.lines if line["type"] == "train"})


def _first_lines(recordings: Recordings, server_round: int) -> list[Line]:
    """List the manifest's lines of a round's uploads, the first of each client, by client."""
    first: dict[int, Line] = {}
    for line in recordings.update_lines(server_round):
        first.setdefault(line["client"], line)
    return list(first.values())


def changes(recordings: Recordings, server_round: int) -> Iterator[Change]:
    """Read the changes of a round by client; one is in memory at a time, and damaged files are left out."""
    return (_change_in(*both) for both in _readable(recordings, _first_lines(recordings, server_round)))


def _change_in(observation: Observation, line: Line) -> Change:
    """Return the change in an upload.

    Args:
        observation: the upload.
        line: the manifest's line of it.
    """
    names = [n for n, value in observation.sent.items() if n in observation.received and value.is_floating_point()]
    moved = {name: observation.sent[name].double() - observation.received[name].double() for name in names}
    examples = line["metrics"].get("num-examples", 1)
    return Change(observation.client, float(examples) if isinstance(examples, int | float) else 1.0, moved)


def sums(plan: ClientPlan, recordings: Recordings, folder: Path) -> dict[str, Any] | None:
    """Compute how much sums over clients would have hidden of a run's uploads; None: none are recorded.

    One upload is in memory at a time, and for the peer two.

    Args:
        plan: of the run's clients.
        recordings: of the run.
        folder: of the run, which says who took part in rounds that are not recorded.
    """
    numbers = _recorded_rounds(recordings)
    if not numbers:
        return None
    cohorts = {number: {line["client"] for line in _first_lines(recordings, number)} for number in numbers}
    known = took_part(folder)
    one_model = sends_one_model(plan.method)
    everyone = known or cohorts
    means = sends_mean(plan.method, plan.rounds.robust_rule, plan.task.network.malicious)
    return {
        "rounds": [_of_round(plan.model, recordings, number) for number in numbers],
        "same_for_all": one_model,
        "participation": participation(everyone) | {"recorded_only": not known},
        "peer": peers(recordings, everyone, means, plan.task.clients),
    }


def _of_round(model: nn.Module, recordings: Recordings, number: int) -> dict[str, Any]:
    lines, exposure = _first_lines(recordings, number), Exposure()
    name = head_of(model)
    heads = HeadSum(name) if name else None
    for change in changes(recordings, number):
        exposure.add(change.tensors)
        if heads is not None:
            heads.add(change.tensors)
    return {
        "round": number,
        "clients": len(lines),
        "exposed": exposure.figures() if exposure.clients > 1 else None,
        "heads": heads.figures() if heads else None,
        "broadcast": broadcast(lines),
    }


def isolation(recordings: Recordings, tampering: ModelModification) -> list[str]:
    """Return a sentence on the messages of the isolated client and of all others; none where nobody is isolated.

    It is for the report: the attacker sees sums, and cannot tell.

    Args:
        recordings: recordings of a run with probes of the target.
        tampering: its server's.
    """
    client = tampering.isolates
    if client is None:
        return []
    largest: dict[tuple[int, str], dict[bool, float]] = defaultdict(dict)
    left_out: list[str] = []
    probes = (one for one in recordings.lines if one["type"] == "train.probe")
    targets = (one for one in probes if one["config"].get("control") == "target")
    for observation, line in _readable(recordings, targets):
        names = tampering.alone([*observation.sent])
        left_out = [name for name in observation.sent if name not in names]
        lengths, isolated = largest[observation.round, observation.point], observation.client == client
        length = _length(observation, names, int(line["config"].get("steps", 1)) > 1)
        lengths[isolated] = max(lengths.get(isolated, 0.0), length)
    shares = [at[False] / at[True] for at in largest.values() if False in at and at.get(True)]
    if not shares:
        return [f"No message of client {client} was recorded beside others', so that no sum isolates it."]
    beside = f" but {', '.join(left_out)}" if left_out else ""
    if not max(shares):
        return [f"All clients but client {client} sent zeros in all tensors{beside}: sums are its update there."]
    share = f"{max(shares):.2g} of the length of client {client}'s update"
    return [f"Clients beside client {client} sent up to {share} in all tensors{beside}: no sum is its update alone."]


def _length(observation: Observation, names: Sequence[str], weights: bool) -> float:
    """Return the length of a gradient, or of the change of weights, in some tensors."""
    sent = (observation.sent[name].double() - (observation.received[name].double() if weights else 0) for name in names)
    return sum(float(change.square().sum()) for change in sent) ** 0.5


def min_safe_sum_size(reached: Mapping[int, bool | None]) -> int | None:
    """Return the smallest measured group from which on an attack reaches nothing; None: it did not fall to that.

    An attack that reaches nothing in the smallest group either was not stopped by sums: then no number is needed.

    Args:
        reached: whether the attack recovered or identified anything, by the size of the group; None: it gave no answer.

    >>> min_safe_sum_size({1: True, 2: True, 5: False, 10: False}), min_safe_sum_size({1: False, 2: False})
    (5, None)
    >>> min_safe_sum_size({1: True, 2: None, 5: None}), min_safe_sum_size({1: True, 2: None, 5: False})
    (None, 5)
    """
    last = max((size for size, leaked in reached.items() if leaked), default=inf)
    return min((size for size in reached if size > last and reached[size] is False), default=None)


def with_min_safe_sum_size(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of a kind of game, those on sums with the group from which on their attack reaches nothing.

    An attack that could look through the clients' operations in a sum over one client, and not in a larger one, is the
    same attack on one curve: ``adaptive`` may differ between them.

    Args:
        entries: the entries.
    """
    sizes: dict[str, dict[int, bool | None]] = {}
    for one in entries:
        if _on_curve(one):
            sizes.setdefault(_same_attack(one), {})[one["sum_size"]] = _reached(one)
    needed = {attack: min_safe_sum_size(reached) for attack, reached in sizes.items()}
    return [one | {"min_safe_sum_size": needed[_same_attack(one)] if _on_curve(one) else None} for one in entries]


def _on_curve(one: Mapping[str, Any]) -> bool:
    return bool(one["sum_size"]) and one.get("curve") in (None, SUM_SIZE)


def _same_attack(one: Mapping[str, Any]) -> str:
    kinds = ("attack", "statistic", "vantage", "adaptation", "defence", "round", "rounds", "steps")
    return repr([one.get(kind) for kind in kinds])


def _reached(one: Mapping[str, Any]) -> bool | None:
    """Return whether an entry's attack reached something; None: it broke, saw too few sums, or luck may explain it.

    A statistic of members counts only if its controls passed and its pairs were enough to find something: then nothing
    was found, or it is only the size of the group that rules out to call it protection.
    """
    if one["cause"] == "peer":
        return False
    if one["verdict"] == LEAKS:
        return True
    if "statistic" in one:
        return {"nothing": False, "group": False, "faint": True}.get(one["cause"])
    broke = one["failure_reason"] and not one["failure_reason"].startswith("not applicable")
    unknown = broke or outcome(one) == VOID or one["cause"] == "chance" or one["messages"] < MESSAGES
    return None if unknown else False
