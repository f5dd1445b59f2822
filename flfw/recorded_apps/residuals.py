"""What a described random defence leaves of the messages of a foreign app: noise of its law, and nothing of the data.

All is in deviations of the described noise. A message m of data with the update a is a + N(0, 1), entry by entry. Had
other data with the update b been used in place of the true ones, then (m - b) . (a - b) / |a - b| would be N(0, 1); so
a large value says that the message tells the two apart, and the values of all messages and rounds add up.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import final

import numpy as np
import torch

from flfw.audit.measures.identification import Identified, convolved
from flfw.audit.measures.public import PublicData
from flfw.nets.net import Tensors
from flfw.recording.observation import Truth

EXCHANGED = "the same data with one example exchanged for a public one"
_SHOWN = 3.0  # deviations from nothing, from which on the messages show that the updates are in them


@final
@dataclass
class Residuals:
    """Messages in deviations of the described noise, beside the updates of their data and of other data.

    Attributes:
        rests: what the true data leave of each message.
        resolution: of each tensor, the largest step of the numbers in which it is sent.
        signal: squared length of all true updates together.
        found: inner product of all messages with their true updates.
        along: of each message, what is left of it along its update, and then along the difference from the other one.
        told: of each message, how far it is from that of the other data, along that difference.
    """

    rests: list[Tensors] = field(default_factory=list)
    resolution: dict[str, float] = field(default_factory=dict)
    signal: float = 0.0
    found: float = 0.0
    along: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)

    def add(self, message: Tensors, update: Tensors, other: Tensors) -> None:
        """Add a message, the update of its data and that of other data, all in deviations of the noise."""
        rest = {name: value - update[name] for name, value in message.items()}
        apart = {name: update[name] - other[name] for name in message}
        self.rests.append(rest)
        self.signal += _inner(update, update, message)
        self.found += _inner(message, update, message)
        for way in (update, apart):
            length = _inner(way, way, message) ** 0.5
            self.along.append(_inner(rest, way, message) / length if length else 0.0)
        length = _inner(apart, apart, message) ** 0.5
        self.told += [_inner(rest, apart, message) / length + length] if length else [0.0]

    def departure(self) -> str:
        """Say what tells the rests from the described noise; empty: no test does."""
        from scipy.stats import norm

        from flfw.audit.measures.noise import LEVEL, departure_of_residuals

        if not self.rests:
            return ""
        names = {name: None for rest in self.rests for name in rest}
        if any(len(rest) < len(names) for rest in self.rests):
            return "some messages lack tensors that others have"
        stacked = {name: torch.stack([rest[name] for rest in self.rests]) for name in names}
        if found := departure_of_residuals(stacked, self.resolution):
            return found
        each = [self.along[0::2], self.along[1::2]]
        together = [sum(values) / len(values) ** 0.5 for values in each]
        largest = max(map(abs, [*self.along, *together]))
        if 2 * (len(self.along) + 2) * norm.sf(largest) < LEVEL:
            return f"it points along the update of the data ({largest:.1f} deviations): they or the training are others"
        return ""

    @property
    def faint(self) -> bool:
        """True if the messages do not show the updates in the noise: they would look alike with none of the data."""
        return bool(self.rests) and self.found < _SHOWN * self.signal**0.5

    def exchanged(self) -> Identified | None:
        """Test whether any message, or all together, tell the true data from other data; None: none was tested."""
        from scipy.stats import norm

        if not self.told:
            return None
        count, largest = len(self.told), max(self.told)
        together = inf if largest == inf else sum(self.told) / count**0.5
        p = min(1.0, 2 * min(float(norm.sf(together)), count * float(norm.sf(largest))))
        better = sum(value > 0 for value in self.told)
        return Identified(better, count, convolved([np.array([0.5, 0.5])] * count), p)


def _inner(a: Tensors, b: Tensors, names: Tensors) -> float:
    return sum(float((a[name].double() * b[name].double()).sum()) for name in names)


def with_another(truth: Truth, public: PublicData, rng: np.random.Generator) -> Truth:
    """Return data with one example exchanged for a public one, of its class if there is any."""
    place, samples = int(rng.integers(len(truth.labels))), truth.samples.clone()
    alike = np.flatnonzero(public.labels == int(truth.labels[place]))
    samples[place] = torch.tensor(public.samples[rng.choice(alike if len(alike) else len(public.samples))])
    return replace(truth, samples=samples)
