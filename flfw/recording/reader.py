"""A reader of what `flfw.recording.grid` wrote; each file is checked, and damaged ones are left out and named."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from flfw.adversary.observation import Observation, Vantage
from flfw.errors import BadInput
from flfw.messages.factored_upload import Unfit, expand
from flfw.nets.net import Tensors
from flfw.recording.format import COMPRESSIONS, FORMAT, MANIFEST, Damaged, Line, exchange_id, read

_SIDES = ("sent_to_client", "sent_by_client")

_Received = dict[tuple[str, str], Tensors]


@final
@dataclass
class Recordings:
    """The recorded exchanges of a run.

    Args:
        folder: where a `flfw.recording.grid.RecordingGrid` wrote, or of which clients have a folder each
        (`flfw.recording.client_examples`).

    Attributes:
        lines: the manifest's lines of what was recorded, in order; beside what the tap wrote, ``id`` names each, and
            ``place`` is the client's folder, if there is one.
        skipped: its lines of what was not recorded, with the reason as ``skipped``.
        forgotten: the rounds whose recordings were removed.
        refused: what could not be used, a sentence each; it grows as files are read.

    Raises:
        BadInput: there are none, or they are in another format.
    """

    folder: Path
    lines: list[Line] = field(init=False)
    skipped: list[Line] = field(init=False)
    forgotten: list[int] = field(init=False)
    refused: list[str] = field(init=False)

    def __post_init__(self) -> None:
        rows, self.lines, self.refused = [], [], []
        for folder in places(self.folder):
            found, damaged = manifest(folder)
            place = "" if folder == self.folder else f"{folder.name}/"
            rows += found
            self.lines += [_placed(row, place) for row in found if is_exchange(row)]
            self.refused += [f"{place}{sentence}" for sentence in damaged]
        self.skipped = [row for row in rows if "skipped" in row]
        self.forgotten = forgotten(rows)

    @property
    def stored_bytes(self) -> int:
        """What the recorded files take on disk, each counted once."""
        files = {self.folder / line["place"] / line[side]["file"] for line in self.lines for side in _SIDES}
        return sum(path.stat().st_size for path in files if path.is_file())

    def summary(self, refused: Sequence[str]) -> dict[str, Any]:
        """The ``recordings`` of result.json; ``refused``: sentences about what an audit could not use."""
        return {
            "exchanges": len(self.lines),
            "bytes": self.stored_bytes,
            "refused": list(refused),
            "skipped": len(self.skipped),
        }

    def remarks(self, refused: Sequence[str]) -> list[str]:
        """What a report has to say of recordings that are not there or of no use."""
        reasons = Counter(str(line["skipped"]) for line in self.skipped)
        said = [f"Exchanges that were not recorded: {count}, because {why}." for why, count in reasons.items()]
        if refused:
            said.append(f"Recordings that could not be used: {len(refused)}; the rest was audited.")
        return said

    def probe_lines(
        self,
        rung: str,
        server_round: int,
        batch: int | None = None,
        steps: int | None = None,
        point: str | None = None,
    ) -> list[Line]:
        """The manifest's lines of the probes of one rung and round, by slot; no tensors are read.

        Args:
            rung: ``control``, ``easy`` or ``target``.
            server_round: after which they were sent.
            batch: only those of so many examples.
            steps: only those of so many local steps.
            point: only those of this point of a curve, or of none (``target``).
        """

        def meant(line: Line) -> bool:
            config = line["config"]
            return (
                config.get("rung") == rung
                and line["round"] == server_round
                and isinstance(config.get("slot"), int)
                and (batch is None or config.get("batch") == batch)
                and (steps is None or config.get("steps", 1) == steps)
                and (point is None or config.get("point", rung) == point)
            )

        return sorted(filter(meant, self.lines), key=lambda line: line["config"]["slot"])

    def probes(
        self,
        rung: str,
        server_round: int,
        batch: int | None = None,
        steps: int | None = None,
        point: str | None = None,
    ) -> list[Observation]:
        """The probes of one rung and round, by slot; see `probe_lines`.

        Those who received the same share it. What is damaged is missing, and `refused` says why.
        """
        return self._observations(self.probe_lines(rung, server_round, batch, steps, point))

    def update_lines(self, server_round: int) -> list[Line]:
        """The manifest's lines of what training sent in a round, by client; no tensors are read."""
        found = [line for line in self.lines if line["type"] == "train" and line["round"] == server_round]
        return sorted(found, key=lambda line: (line["client"], line["id"]))

    def updates(self, server_round: int) -> list[Observation]:
        """What training sent in a round, by client; slots count what was recorded, damaged or not."""
        return self._observations(self.update_lines(server_round))

    def observation(self, exchange: str) -> Observation:
        """One exchange by the ``id`` of its line.

        Raises:
            BadInput: there is none of that id, or it is refused.
        """
        (seen,) = self.observations([exchange])
        if seen is None:
            raise BadInput(f"Expected an intact recording in {self.folder}: {self.refused[-1]}")
        return seen

    def observations(self, exchanges: Sequence[str]) -> list[Observation | None]:
        """Several exchanges by their ids, those who received the same sharing it; None for what is refused."""
        by_id = {line["id"]: line for line in self.lines}
        received: _Received = {}
        return [self._or_refused(by_id.get(exchange), exchange, received) for exchange in exchanges]

    def _observations(self, lines: Sequence[Line]) -> list[Observation]:
        received: _Received = {}
        found = [self._or_refused(line, line["id"], received) for line in lines]
        return [seen for seen in found if seen is not None]

    def _or_refused(self, line: Line | None, exchange: str, received: _Received) -> Observation | None:
        try:
            if line is None:
                raise Damaged(f"{MANIFEST} does not name it")
            return self._read(line, received)
        except Damaged as error:
            sentence = f"{exchange} was left out: {error}."
            self.refused = [*(said for said in self.refused if said != sentence), sentence]
            return None

    def _read(self, line: Line, received: _Received) -> Observation:
        """An exchange; what clients received is taken from ``received``, or added to it."""
        entry, config, folder = line["sent_to_client"], line["config"], self.folder / line["place"]
        key = (entry["file"], entry["sha256"])
        if key not in received:
            received[key] = read(folder, entry, line["compression"])
        probe = "rung" in config and isinstance(config.get("slot"), int)
        sent = read(folder, line["sent_by_client"], line["compression"])
        try:  # what a server makes of factors, an attacker there can make of them
            sent = expand(sent, {name: value.numpy() for name, value in received[key].items()})
        except Unfit as error:
            raise Damaged(f"the client {error}") from error
        return Observation(
            vantage=Vantage.CLIENT_EXAMPLE if line["place"] else Vantage.SERVER,
            source="probe" if probe else "update",
            rung=str(config["rung"]) if probe else "target",
            round=line["round"],
            client=line["client"],
            slot=config["slot"] if probe else self._place(line),
            sent=sent,
            received=received[key],
            point=str(config.get("point", "")) if probe else "update",
        )

    def _place(self, line: Line) -> int:
        return self.update_lines(line["round"]).index(line) if line["type"] == "train" else 0


def places(folder: Path) -> list[Path]:
    """The folders with a manifest each: this one or, where clients have folders of their own in it, all of theirs."""
    inner = sorted(path for path in folder.glob("client-*") if (path / MANIFEST).is_file())
    return [folder] if (folder / MANIFEST).exists() or not inner else inner


def is_recorded(folder: Path) -> bool:
    """Whether anything was ever written down there."""
    return all((place / MANIFEST).is_file() for place in places(folder))


def manifest(folder: Path) -> tuple[list[Line], list[str]]:
    """The rows of a manifest after its header, and a sentence for each that is damaged.

    Raises:
        BadInput: there is none, or it is in another format.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise BadInput(f"Expected recordings in {folder}, found no {MANIFEST}; run with --attack.")
    header, *lines = path.read_bytes().split(b"\n")
    first = _parsed(header) or {}
    if first.get("format") != FORMAT:
        found = first.get("format", "an older one or none")
        raise BadInput(f"Expected recordings in format {FORMAT}, got {found} in {path}; record them anew.")
    rows, damaged = [], []
    for number, line in enumerate(lines, start=2):
        row = _parsed(line)
        if row is not None and (is_exchange(row) or "skipped" in row or _forgotten(row)):
            rows.append(row)
        elif number == len(lines) + 1 and line:  # all others end with a line break
            damaged.append(f"Line {number} of {MANIFEST} was left out: it was cut short, or is being written.")
        elif line:
            damaged.append(f"Line {number} of {MANIFEST} was left out: it describes no exchange.")
    return rows, damaged


def is_exchange(row: Line) -> bool:
    """Whether a row of a manifest has all that reading an exchange relies on, in the right types."""
    numbers = [row.get("round"), row.get("client"), *(_entry(row, side).get("bytes") for side in _SIDES)]
    words = [row.get("type"), *(_entry(row, side).get(key) for side in _SIDES for key in ("file", "sha256"))]
    return (
        all(isinstance(number, int) and number >= 0 for number in numbers)
        and all(isinstance(word, str) for word in words)
        and isinstance(row.get("config"), dict)
        and row.get("compression") in COMPRESSIONS
    )


def forgotten(rows: Sequence[Line]) -> list[int]:
    """The rounds whose recordings were removed, ascending."""
    return sorted({number for row in rows for number in _forgotten(row)})


def _forgotten(row: Line) -> list[int]:
    found = row.get("forgotten")
    rounds = found.get("rounds") if isinstance(found, dict) else None
    return [number for number in rounds if isinstance(number, int)] if isinstance(rounds, list) else []


def _entry(row: Line, side: str) -> dict[str, Any]:
    entry = row.get(side)
    return entry if isinstance(entry, dict) else {}


def _placed(row: Line, place: str) -> Line:
    return row | {"id": place + exchange_id(row["sent_by_client"]["file"]), "place": place}


def _parsed(line: bytes) -> Line | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
