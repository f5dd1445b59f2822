"""Methods whose clients compute nothing, so that a round costs what the machinery around the training costs.

The weights of the broadcast come back as they were sent, and the server takes their mean. `WATCH` measures the
processor time of the parts of a round in this process.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

from flwr.app import Context, Message

from flfw.client import FederatedClient
from flfw.client.context import ClientContext
from flfw.nets import Net, Tensors
from flfw.nets.hypernetwork import GeneratedNet
from flfw.nets.training.optimisers import LocalTraining
from flfw.server.aggregation import Update, weighted_mean
from flfw.server.strategy import FederatedStrategy


@final
class Stopwatch:
    """Stopwatch of the processor time of this process, by part; a part within another is counted in both.

    Attributes:
        seconds: by the name of the part, since `reset`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def reset(self) -> None:
        """Forget all parts."""
        self.seconds.clear()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the processor time of a block to a part."""
        started = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - started

    def each(self, name: str, values: Iterable[Update]) -> Iterator[Update]:
        """Yield values, and add the processor time of getting each of them to a part."""
        waiting = iter(values)
        while True:
            with self.part(name):
                value = next(waiting, None)
            if value is None:
                return
            yield value

    def app(self, name: str, call: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
        """Return a client app whose calls are counted as a part."""

        def timed(message: Message, context: Context) -> Message:
            with self.part(name):
                return call(message, context)

        return timed


WATCH = Stopwatch()


@final
class StillClient(FederatedClient):
    """Client that sends the weights that it received."""

    def __init__(self, ctx: ClientContext) -> None:
        with WATCH.part("model"):
            super().__init__(ctx)

    def fit_named(self, received: Any, version: int) -> tuple[Tensors, dict[str, Any]]:
        """Do one round, and count its time."""
        with WATCH.part("fit"):
            return super().fit_named(received, version)

    def train(self) -> dict[str, float]:
        """Return a loss of 0."""
        return {"loss": 0.0}

    def accuracy(self, part: str = "test") -> float:
        """Return 0."""
        return 0.0


@final
class StillMean(FederatedStrategy):
    """Weighted averaging of whole models."""

    Settings = LocalTraining
    client = "benchmarks.still_method:StillClient"

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the models, and count the time of reading them and that of both."""
        with WATCH.part("aggregate"):
            return weighted_mean(WATCH.each("updates", updates))


@final
class StillHypernetwork(FederatedStrategy):
    """Weighted averaging of hypernetworks of HyperFL's size."""

    Settings = LocalTraining
    client = "benchmarks.still_method:StillClient"
    downloads = ("hypernet.*",)
    uploads = ("hypernet.*",)

    @classmethod
    def build_model(cls, net: Net, settings: LocalTraining) -> GeneratedNet:
        """Build HyperFL's hypernetwork."""
        return GeneratedNet(net, 64, 128, "fan_in")

    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Average the hypernetworks, and count the time of reading them and that of both."""
        with WATCH.part("aggregate"):
            return weighted_mean(WATCH.each("updates", updates))
