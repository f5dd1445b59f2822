"""Reader of the recordings of `flfw.recording.grid`; each file is checked, and damaged files are left out and named."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from flfw.errors import InputError
from flfw.messages.factored_upload import Unfit, expand
from flfw.nets.net import Tensors
from flfw.recording.format import MANIFEST, CorruptRecordingError, Line, exchange_id, read
from flfw.recording.manifest import SIDES, forgotten, is_exchange, read_manifest
from flfw.recording.observation import Observation, Vantage

_Received = dict[tuple[str, str], Tensors]


@final
@dataclass
class Recordings:
    """Recorded exchanges of a run.

    Args:
        folder: folder of a `flfw.recording.grid.RecordingGrid`, or folder with a folder for each client
        (`flfw.recording.client_examples`).

    Attributes:
        lines: the manifest's lines of the recorded exchanges, in order. ``id`` and ``place`` are added: ``id`` names
            the exchange, and ``place`` is the client's folder, if there is one.
        skipped: the manifest's lines of exchanges that were not recorded, with the reason as ``skipped``.
        forgotten: the rounds whose recordings were removed.
        refused: recordings that could not be used, one sentence each; it grows as files are read.

    Raises:
        InputError: there are none, or they are in another format.
    """

    folder: Path
    lines: list[Line] = field(init=False)
    skipped: list[Line] = field(init=False)
    forgotten: list[int] = field(init=False)
    refused: list[str] = field(init=False)
    _last: tuple[str, Tensors] | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        rows, self.lines, self.refused = [], [], []
        for folder in places(self.folder):
            entries, damaged = read_manifest(folder)
            place = "" if folder == self.folder else f"{folder.name}/"
            rows += entries
            for row in filter(is_exchange, entries):
                self.lines.append(row | {"id": place + exchange_id(row["sent_by_client"]["file"]), "place": place})
            self.refused += [f"{place}{sentence}" for sentence in damaged]
        self.skipped = [row for row in rows if "skipped" in row]
        self.forgotten = forgotten(rows)

    @property
    def stored_bytes(self) -> int:
        """Total size of the recorded files on disk in bytes, each file counted once."""
        files = {self.folder / line["place"] / line[side]["file"] for line in self.lines for side in SIDES}
        return sum(path.stat().st_size for path in files if path.is_file())

    def summary(self, refused: Sequence[str]) -> dict[str, Any]:
        """Return the ``recordings`` of result.json; ``refused``: sentences about recordings an audit could not use."""
        return {
            "exchanges": len(self.lines),
            "bytes": self.stored_bytes,
            "refused": list(refused),
            "skipped": len(self.skipped),
        }

    def remarks(self, refused: Sequence[str]) -> list[str]:
        """Return a report's sentences about recordings that are missing or of no use, and statistics left out."""
        reasons = Counter(str(line["skipped"]) for line in self.skipped)
        sentences = [f"Exchanges that were not recorded: {count}, because {why}." for why, count in reasons.items()]
        if refused:
            sentences.append(f"Recordings and statistics that could not be used: {len(refused)}; the rest was audited.")
        return sentences

    def probe_lines(
        self,
        control: str,
        server_round: int,
        batch: int | None = None,
        steps: int | None = None,
        point: str | None = None,
    ) -> list[Line]:
        """Return the manifest's lines of the probes of one control and round, by slot; no tensors are read.

        Args:
            control: ``target``, or a control such as ``easy``.
            server_round: the round after which the probes were sent.
            batch: select probes with this number of examples.
            steps: select probes with this number of local steps.
            point: select probes of this point of a curve, or of no curve (``target``).
        """

        def meant(line: Line) -> bool:
            config = line["config"]
            return (
                config.get("control") == control
                and line["round"] == server_round
                and _slot(config) is not None
                and (batch is None or config.get("batch") == batch)
                and (steps is None or config.get("steps", 1) == steps)
                and (point is None or config.get("point", control) == point)
            )

        return sorted(filter(meant, self.lines), key=lambda line: line["config"]["slot"])

    def probes(self, control: str, server_round: int, **selected: Any) -> list[Observation]:
        """Read the probes of one control and round, by slot; see `probe_lines`.

        Clients that received the same tensors share them in memory. Damaged probes are left out, see `refused`.
        """
        return self._observations(self.probe_lines(control, server_round, **selected))

    def update_lines(self, server_round: int) -> list[Line]:
        """Return the manifest's lines of the updates of a round, by client; no tensors are read."""
        lines = [line for line in self.lines if line["type"] == "train" and line["round"] == server_round]
        return sorted(lines, key=lambda line: (line["client"], line["id"]))

    def updates(self, server_round: int) -> list[Observation]:
        """Read the updates of a round, by client; slots count all recorded updates, damaged or not."""
        return self._observations(self.update_lines(server_round))

    def observation(self, exchange: str) -> Observation:
        """Read one exchange by the ``id`` of its line.

        Raises:
            InputError: no exchange has that id, or it is refused.
        """
        (observation,) = self.observations([exchange])
        if observation is None:
            raise InputError(f"Expected an intact recording in {self.folder}: {self.refused[-1]}")
        return observation

    def observations(self, exchanges: Sequence[str]) -> list[Observation | None]:
        """Read several exchanges by their ids; equal received tensors are shared. None for refused exchanges."""
        by_id = {line["id"]: line for line in self.lines}
        received: _Received = {}
        return [self._or_refused(by_id.get(exchange), exchange, received) for exchange in exchanges]

    def received(self, exchange: str, names: Sequence[str]) -> Tensors | None:
        """Read some of the tensors that a client received; None: not all of them were sent, or the file is damaged."""
        line = next((line for line in self.lines if line["id"] == exchange), None)
        if line is None:
            return None
        if self._last is None or self._last[0] != line["sent_to_client"]["sha256"]:
            try:
                tensors = read(self.folder / line["place"], line["sent_to_client"], line["compression"])
            except CorruptRecordingError:  # it is in `refused`: the attack could not read it either
                return None
            self._last = line["sent_to_client"]["sha256"], tensors
        held = self._last[1]
        return {name: held[name] for name in names} if all(name in held for name in names) else None

    def _observations(self, lines: Sequence[Line]) -> list[Observation]:
        received: _Received = {}
        observed = [self._or_refused(line, line["id"], received) for line in lines]
        return [observation for observation in observed if observation is not None]

    def _or_refused(self, line: Line | None, exchange: str, received: _Received) -> Observation | None:
        try:
            if line is None:
                raise CorruptRecordingError(f"{MANIFEST} does not name it")
            return self._read(line, received)
        except CorruptRecordingError as error:
            sentence = f"{exchange} was left out: {error}."
            self.refused = [*(earlier for earlier in self.refused if earlier != sentence), sentence]
            return None

    def _read(self, line: Line, received: _Received) -> Observation:
        """Read an exchange; ``received`` caches the tensors that clients received."""
        entry, config, folder = line["sent_to_client"], line["config"], self.folder / line["place"]
        key = (entry["file"], entry["sha256"])
        if key not in received:
            received[key] = read(folder, entry, line["compression"])
        slot = _slot(config)
        sent = read(folder, line["sent_by_client"], line["compression"], received[key])
        try:  # an attacker at the server can expand factors as the server does
            sent = expand(sent, {name: value.numpy() for name, value in received[key].items()})
        except Unfit as error:
            raise CorruptRecordingError(f"the client {error}") from error
        return Observation(
            vantage=Vantage.CLIENT_EXAMPLE if line["place"] else Vantage.SERVER,
            source="update" if slot is None else "probe",
            control="target" if slot is None else str(config["control"]),
            round=line["round"],
            client=line["client"],
            slot=self._place(line) if slot is None else slot,
            sent=sent,
            received=received[key],
            point="update" if slot is None else str(config.get("point", "")),
        )

    def _place(self, line: Line) -> int:
        return self.update_lines(line["round"]).index(line) if line["type"] == "train" else 0


def _slot(config: Mapping[str, Any]) -> int | None:
    """Return the slot of a probe; None: it is none of this project's."""
    slot = config.get("slot")
    return slot if "control" in config and type(slot) is int and slot >= 0 else None


def examples_in(line: Line) -> int:
    """Return the number of examples that a client reported with its upload, its weight in a mean; 1: it reports none.

    Args:
        line: the manifest's line of the upload.
    """
    return int(line["metrics"].get("num-examples", 1))


def places(folder: Path) -> list[Path]:
    """Return the folders that have a manifest: this one or, if clients have their own folders in it, all of these."""
    inner = sorted(path for path in folder.glob("client-*") if (path / MANIFEST).is_file())
    return [folder] if (folder / MANIFEST).exists() or not inner else inner


def is_recorded(folder: Path) -> bool:
    """Return whether the folder has recordings."""
    return all((place / MANIFEST).is_file() for place in places(folder))
