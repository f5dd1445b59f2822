"""Gradients of single examples, recorded by the client that computed them: leakage of type 2 in the Fed-CDP paper.

No server sees them. Each client has its own folder below the folder of its site, in the format of all recordings
(`flfw.recording.format`), so that `flfw.recording.reader` reads it with the same checks:

    client-003/manifest.jsonl, manifest.head
    client-003/received/SHA256.safetensors
    client-003/round-0002/client-003-000.safetensors               of client 3's first victim, after round 2
    client-003/round-0002/client-003-000-undefended.safetensors    of the same victim, for a control

File names identify the exchange, so a run that continues from a checkpoint overwrites its earlier files.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from flfw import __version__
from flfw.errors import InputError
from flfw.nets.net import Tensors
from flfw.recording import format as file_format
from flfw.recording.format import MANIFEST, Line, exchange_id
from flfw.recording.manifest import SIDES, is_exchange, read_manifest, rewrite
from flfw.recording.reader import is_recorded, places


def record_gradient(
    folder: Path,
    client: int,
    config: Mapping[str, Any],
    received: Mapping[str, np.ndarray],
    gradient: Tensors,
    compression: str = "none",
) -> None:
    """Record the gradient of one example, in place of an earlier one of the same round, victim and control.

    Several processes may do this for one client at the same time.

    Args:
        folder: folder of the site; it and the client's folder in it are made for their owner only.
        client: partition of the client.
        config: configuration of the probe's message; ``round``, ``own_slot`` and ``control`` name the file.
        received: the arrays of the probe's message.
        gradient: the gradient that the observer reads.
        compression: one of `flfw.recording.format.COMPRESSIONS`.
    """
    client_folder = folder / f"client-{client:03d}"
    for made in (folder, client_folder):
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
    at, before = file_format.received_file(file_format.PlainTensors.of(received), compression)
    after = file_format.PlainTensors.of({name: value.numpy() for name, value in gradient.items()}).encoded(
        compression, received
    )
    control = "" if config["control"] == "target" else f"-{config['control']}"
    sent = f"round-{config['round']:04d}/client-{client:03d}-{config['own_slot']:03d}{control}{after.suffix}"
    line: Line = {"type": "train.probe", "round": config["round"], "client": client, "config": dict(config)}
    line |= {"metrics": {}, "compression": compression}
    with _alone(client_folder):
        rows = _rows(client_folder)
        stored = {row[SIDES[0]]["file"]: row[SIDES[0]] for row in rows}
        # Another version may have encoded what is stored otherwise.
        line |= {SIDES[0]: stored.get(at, before.entry(at)), SIDES[1]: after.entry(sent)}
        new = {sent: after} if at in stored else {at: before, sent: after}
        for file, encoded in new.items():
            file_format.write(client_folder / file, encoded.data)
        file_format.bring_to_disk([client_folder / file for file in new])  # at once, since no checkpoint waits for them
        kept = [row for row in rows if exchange_id(row["sent_by_client"]["file"]) != exchange_id(sent)]
        _write(client_folder, [*kept, line])


def forget_after(folder: Path, server_round: int) -> None:
    """Remove the recordings of later rounds, which a run that continues from this round writes again.

    Args:
        folder: as for `record_gradient`; need not exist.
        server_round: round of the checkpoint from which the run continues; -1: there is none.
    """
    for client_folder in places(folder) if is_recorded(folder) else ():
        with _alone(client_folder):
            _write(client_folder, [row for row in _rows(client_folder) if row["round"] <= server_round])


def _rows(client_folder: Path) -> list[Line]:
    """Return the rows of a client's manifest.

    Raises:
        InputError: it is damaged; it is always written whole.
    """
    if not (client_folder / MANIFEST).is_file():
        return []
    rows, damaged = read_manifest(client_folder)
    if damaged:
        raise InputError(f"Expected {client_folder / MANIFEST} as it was written: {damaged[0]} Restore it.")
    return [row for row in rows if is_exchange(row)]


def _write(client_folder: Path, rows: Sequence[Line]) -> None:
    rewrite(client_folder, [{"format": file_format.FORMAT, "flfw": __version__}, *rows])
    file_format.sweep(client_folder, {row[side]["file"] for row in rows for side in SIDES})


@contextmanager
def _alone(client_folder: Path) -> Iterator[None]:
    """Wait until no other process of this client writes here."""
    handle = os.open(client_folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
