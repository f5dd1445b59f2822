"""Uploads of training as targets of an audit: their truth, which each client writes, and their probe sets.

An upload is made of many local steps on many examples. The client writes the examples, in the order of their first use,
and the places of each step's examples among them. An attacker is granted these places: they follow from the run's seed.
"""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from flfw.audit.jobs import UPLOAD, Exchange, ProbeSet
from flfw.recording.observation import Reconstruction, Truth, key

Noted = Sequence[tuple[np.ndarray, Tensor, Tensor]]
"""Batches of local training: indices in the data set, inputs and labels."""


def upload_key(server_round: int, client: int) -> str:
    """Return the file name of the truth of a client's upload."""
    return key(server_round, UPLOAD, client)


def truth_of_upload(noted: Noted, varied: bool) -> Truth:
    """Return the examples of local training, in the order of their first use, and the places of each step.

    Args:
        noted: the batches, in their order; Poisson batches may be empty.
        varied: whether images are varied anew each time; then every use is an example of its own.
    """
    places: dict[tuple[int, ...], int] = {}
    samples, labels, indices, order = [], [], [], []
    for step, (chosen, x, y) in enumerate(noted):
        row = []
        for i, index in enumerate(chosen.tolist()):
            name = (index, step) if varied else (index,)
            if name not in places:
                places[name] = len(places)
                samples.append(x[i].cpu())
                labels.append(int(y[i]))
                indices.append(index)
            row.append(places[name])
        order.append(row)
    width = max((len(row) for row in order), default=0)
    padded = torch.tensor([row + [-1] * (width - len(row)) for row in order], dtype=torch.int64).view(len(order), width)
    return Truth(torch.stack(samples), torch.tensor(labels), torch.tensor(indices), padded)


def truth_keys(probe_set: ProbeSet, exchange: Exchange) -> tuple[str, ...]:
    """Return the names of the files with the truth of an exchange: of a sum, those of its messages."""
    place = exchange.client if probe_set.source == "update" else exchange.slot
    return tuple(key(probe_set.round, probe_set.recorded, slot) for slot in exchange.slots or (place,))


def joined_truth(parts: Sequence[Truth], file: Path, out: Path, name: str) -> tuple[Truth, Path]:
    """Return the truth of one message, or of a sum; and its file, which is written into ``out/truth`` for a sum.

    Args:
        parts: the truth of each message.
        file: the file of the first one.
        out: the folder of the audit.
        name: name of the file for a sum.
    """
    if len(parts) == 1:
        return parts[0], file
    truth = Truth.joined(parts)
    truth.write(out / "truth", name)
    return truth, out / "truth" / f"{name}.safetensors"


def write_truth(folder: Path, server_round: int, client: int, noted: Noted, varied: bool) -> None:
    """Write the truth of an upload into the client's own folder; nothing where the client used no example."""
    if any(len(chosen) for chosen, _, _ in noted):
        truth_of_upload(noted, varied).write(folder, upload_key(server_round, client))


def uploads_probe_set(server_round: int, truths: Sequence[Truth]) -> ProbeSet:
    """Return the probe set of a round's uploads, with the largest numbers of examples and of steps among them."""
    batch = max(len(truth.labels) for truth in truths)
    return ProbeSet("target", server_round, "", batch, max(len(truth.steps or ((),)) for truth in truths), UPLOAD)


def opened(folder: Path, key: str) -> Truth:
    """Open the examples of one probe or upload; only this module does.

    Raises:
        ValueError: they are something else, or not finite.
    """
    return Truth.read(folder, key)


def read_truth(folder: Path, key: str) -> Truth | None:
    """Read the examples of one probe, for granting its labels and for the control; None if they cannot be read."""
    try:
        return opened(folder, key)
    except (OSError, SafetensorError, TypeError, ValueError):  # TypeError: a tensor has no axis
        return None


def label_accuracy(exchange: Exchange, truth: Truth, reconstruction: Reconstruction | None) -> float | None:
    """Return the share of a batch's labels that an attack inferred without a grant; order does not count."""
    if exchange.labels is not None or reconstruction is None or reconstruction.labels is None:
        return None
    both = Counter(truth.labels.tolist()) & Counter(reconstruction.labels.flatten().tolist())
    return both.total() / len(truth.labels)


def is_unusable(reconstruction: Reconstruction, truth: Truth) -> bool:
    """Return whether a reconstruction cannot be compared: it diverged, or it has another shape."""
    loss, samples = reconstruction.matching_loss, reconstruction.samples
    diverged = loss is not None and not isfinite(loss)
    return diverged or samples.shape != truth.samples.shape or not bool(samples.isfinite().all())
