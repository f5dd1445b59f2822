"""Server half of a method: Flower's Strategy with the functions that every method here needs.

A method subclasses `FederatedStrategy`, declares the shared tensors and combines the uploads. A round is here: it draws
a cohort (`flfw.server.cohorts`), maps nodes to partitions (`client_directory`) and adds to the history (`history`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flfw.files.sealed import JournalMark
from flfw.messages.replies import read_metrics
from flfw.messages.sharing import Sharing
from flfw.messages.wire import nbytes, of_kind, pack, unpack
from flfw.nets import Tensors
from flfw.server.aggregation import ArrivingUpdates, Update, update_of
from flfw.server.checkpoint import Snapshot
from flfw.server.client_directory import ClientDirectory, Failure, FailurePolicy, nonce
from flfw.server.cohorts import Sampling, drawn, drawn_last, in_turn, secretly_drawn
from flfw.server.history import History
from flfw.server.reply_reader import ReplyReader
from flfw.server.robust import RobustMean, change_and_bound, without_grown_counts, without_outliers
from flfw.task.method import Method

if TYPE_CHECKING:
    from flfw.server.context import ServerContext


class FederatedStrategy(Method, Strategy, ABC):
    """Base of the methods; a real Flower strategy, usable alone in another Flower app.

    Subclasses declare themselves (`flfw.task.method.Method`) and write `aggregate`; some also override `arrays_for`.

    Args:
        settings: the method's hyper-parameters, an instance of ``Settings``.
        sample: number of clients drawn in each round; 0: all.
        sampling: way of drawing them, see `flfw.server.cohorts`.
        seed: seed of the draw.
        tolerance: rules for clients that fail.

    Attributes:
        client_directory: the clients.
        round: number of the round that is combined.
        state: the server's own tensors beside the broadcast model, for methods that have any: kept in checkpoints,
            never sent.
        state_versions: for each client the last round from which its update was used: the version of its state to go
            on from.
        stamp: scalars that every message carries.
        rounds_before: number of rounds that an earlier process did; Flower itself always counts from 1.
        on_update: function of the tensors sent to a round's clients and of each update that is used; None: there is
            none.
        ctx: resources of the run's server: the experiment (``ctx.local.lr``), the method's model with its first
            numbers and without any (``ctx.model()``, ``ctx.blank``), the tensors sent down and up, the server's data
            and its device; see `flfw.server.context.ServerContext`. Runs and estimates set it. None in another app that
            uses the strategy alone; `require_context` is the same for methods that need it.
        before_round: function that is called with a round and its tensors before it is sent; it returns how often the
            round was asked for before. None: each round is asked for once.
        cohort_key: 32 secret bytes by which Poisson cohorts are drawn; empty: by the seed, which clients have.
        robust: replaces a round's updates by one that stands for all; None: they are aggregated as they are.
        summed: whether some updates may come as one sum; see `flfw.engines.branches.Adder`.
        round_metrics: figures that a method adds to the row of the current round.
    """

    def __init__(
        self,
        settings: Any = None,
        *,
        sample: int = 0,
        sampling: Sampling = "fixed",
        seed: int = 0,
        tolerance: FailurePolicy | None = None,
    ) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.sample, self.seed, self.round = sample, seed, 0
        self.sampling: Sampling = sampling
        self.client_directory = ClientDirectory(tolerance or FailurePolicy())
        self.state: Tensors = {}
        self.state_versions: dict[int, int] = {}
        self.history = History()
        self.stamp: dict[str, Any] = {}
        self.rounds_before = 0
        self.on_update: Callable[[Tensors, Update], None] | None = None
        self.ctx: ServerContext | None = None
        self.before_round: Callable[[int, ArrayRecord], int] | None = None
        self.cohort_key = b""
        self.robust: RobustMean | None = None
        self.summed = False
        self._attempt = 0
        self.round_metrics: dict[str, float] = {}
        self._requested: tuple[float, ArrayRecord, list[Message]] | None = None
        self._sent: ArrayRecord | None = None

    # --- what a method writes or overrides, in the order in which a round calls it ---

    def arrays_for(self, partition: int, arrays: ArrayRecord) -> ArrayRecord:
        """Choose the arrays for one client, with the names and shapes of ``arrays``; by default all get the same.

        Until `aggregate` has returned, the same client gets the same arrays again.
        """
        return arrays

    def check_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Refuse numbers in `Update.metrics` that `aggregate` cannot use; by default it reads none.

        Raises:
            UnusableReplyError: naming the number; the client then counts as failed in this round.
        """

    @abstractmethod
    def aggregate(self, updates: Iterable[Update]) -> Tensors:
        """Compute the next broadcast tensors from the clients' uploads, which come one at a time, by partition."""

    def aggregate_empty(self) -> Tensors:
        """Return the next broadcast tensors if no client was drawn: by default the same again."""
        return self.last_broadcast

    # --- what a method finds in `self`, beside the attributes ---

    @property
    def last_broadcast(self) -> Tensors:
        """Tensors that were sent to the clients of the current round."""
        assert self._sent is not None, "configure_train or aggregate_round comes first"
        return unpack(self._sent)

    def sent_to(self, partition: int) -> Tensors:
        """Return the tensors that one client of the current round was sent."""
        assert self._sent is not None, "configure_train or aggregate_round comes first"
        return unpack(self.arrays_for(partition, self._sent))

    @property
    def require_context(self) -> ServerContext:
        """Resources ``ctx`` of the run's server, for methods that need them."""
        if self.ctx is None:
            raise RuntimeError(f"Expected {type(self).__name__}.ctx, the ServerContext of a run, got none.")
        return self.ctx

    @property
    def sharing(self) -> Sharing:
        """Tensors sent down and up; for a strategy used alone, which has no model, the patterns that it declares."""
        return self.ctx.sharing if self.ctx else Sharing(self.downloads, self.uploads)

    @property
    def expected_cohort_size(self) -> int:
        """Number of clients in a round; under Poisson sampling the expected number."""
        return self.sample or len(self.client_directory.nodes)

    # --- a round: Flower's loop calls `configure_train` and `aggregate_train`, each followed here by its steps ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Build one train message for each client of the cohort."""
        server_round += self.rounds_before
        if not self.client_directory.nodes:  # used alone in another app, which never asks clients for their partitions
            self.client_directory.nodes = dict(enumerate(sorted(grid.get_node_ids())))
        self._attempt = self.before_round(server_round, arrays) if self.before_round else 0
        fit = [p for p in self.cohort(server_round) if p not in self.client_directory.excluded]
        messages = [self.create_message(p, self.arrays_for(p, arrays), "train", server_round, config) for p in fit]
        self._requested, self._sent = (time.monotonic(), arrays, messages), arrays
        return messages

    def cohort(self, server_round: int) -> list[int]:
        """Draw the partitions that take part in a round, ascending."""
        everyone = in_turn(self.client_directory.everyone, self.min_separation(self.settings), server_round)
        if self.cohort_key and self.sampling == "poisson" and 0 < self.sample < len(everyone):
            return secretly_drawn(everyone, self.sample, self.cohort_key, server_round, self._attempt)
        return drawn(everyone, self.sample, self.sampling, self.seed, server_round)

    def create_message(
        self, partition: int, arrays: ArrayRecord, kind: str, server_round: int, extra: Mapping[str, Any] | None = None
    ) -> Message:
        """Build a message to one client: the arrays, the round, and the version of its private state to start from."""
        config: dict[str, Any] = {
            "round": server_round,
            "client": partition,
            "state_version": self.state_versions.get(partition, 0),
        }
        config |= {**self.stamp, **(extra or {})}
        config["deadline"] = self.client_directory.tolerance.deadline
        if self.ctx and self.ctx.plan.real:
            config |= nonce()
        content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
        return self.client_directory.address(partition, content, kind, str(server_round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies in the order of the partitions: a list is sorted, an iterator must come sorted.

        A reply is checked when the method reads it: `_checked_updates` is a generator.

        Raises:
            RunError: a client failed and the run does not tolerate it, or too few are left.
        """
        server_round += self.rounds_before
        assert self._requested is not None, "configure_train comes first"
        started, broadcasted, messages = self._requested
        rows: list[dict[str, Any]] = []
        failed: list[Failure] = []
        updates = self._checked_updates(server_round, replies, rows, failed)
        self.round, self.round_metrics = server_round, {}
        arrays = pack(self.aggregate_round(broadcasted, updates, server_round) if messages else self.aggregate_empty())
        for _ in updates:  # reads the replies left by a method that combines nothing
            pass
        down = sum(nbytes(of_kind(m.content, ArrayRecord)["arrays"]) for m in messages)
        self._requested = None
        row = self.history.add(server_round, rows, failed, down, time.monotonic() - started, self.round_metrics)
        return arrays, MetricRecord({k: v for k, v in row.items() if isinstance(v, int | float)})

    def _checked_updates(
        self, server_round: int, replies: Iterable[Message], rows: list[dict[str, Any]], failed: list[Failure]
    ) -> Iterator[Update]:
        """Read the replies one by one; yield their updates and add their metrics to ``rows``.

        The check for enough replies is in here, so that it fails before anything is divided by their number.
        """
        assert self._requested is not None
        _, arrays, messages = self._requested
        when = f"round {server_round}"
        failed += self.client_directory.excluded_among(self.cohort(server_round))

        sent = self.last_broadcast if self.on_update else {}
        counted = self.ctx is None or self.ctx.plan.privacy.metrics != "none"
        uploads, form = self.sharing.uploads, self.factored_upload(self.settings)
        read = ReplyReader(arrays, uploads, form, counted=counted, check=self.check_metrics, summed=self.summed)
        received = self.client_directory.receive(messages, replies, when, read, failed)
        if self.ctx and self.ctx.plan.real:  # simulated clients run this project's code
            refuse = partial(self.client_directory.drop, when=when, failed=failed)
            earlier = self.history.first("num-examples") if self.ctx.plan.privacy.metrics == "all" else {}
            received = without_grown_counts(received, lambda one: one[1].get("num-examples", 1), earlier, refuse)
            if not self.bounds_updates(self.settings):  # else a client would change what becomes of another's update
                received = without_outliers(
                    received, lambda p, one: change_and_bound(cast(Tensors, one[0]), self.sent_to(p)), refuse
                )
        for partition, (tensors, metrics, size) in received:
            rows.append({"round": server_round, "client": partition, **metrics, "upload_bytes": size})
            self.state_versions[partition] = server_round
            if tensors is None:
                continue
            update = update_of(partition, tensors, metrics)
            if self.on_update:
                self.on_update(sent, update)
            yield update
        read.end()
        if messages or failed or self.sampling == "fixed":  # a Poisson cohort may be empty
            self.client_directory.check_enough(len(rows), failed, when)

    def aggregate_round(self, arrays: ArrayRecord, updates: Iterable[Update], server_round: int) -> Tensors:
        """Call `aggregate` for a round whose clients were sent these arrays."""
        self.round, self._sent, self.round_metrics = server_round, arrays, {}
        if self.robust:
            updates = [self.robust(list(updates), self.last_broadcast)]
        return self.aggregate(ArrivingUpdates(updates, self.summed))

    # --- calls of Flower's loop that have nothing to do here ---

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: clients evaluate within the train message, which saves sending the model twice."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None: there is nothing to combine; see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Do nothing: Flower would log the configuration here, but the run's own files hold it."""

    # --- after a round: its checkpoint; after the last one: the final evaluation ---

    def snapshot(self, server_round: int, arrays: ArrayRecord, recordings: JournalMark | None) -> Snapshot:
        """Return everything that a later process needs to go on after a round."""
        return Snapshot(server_round, arrays, dict(self.state), dict(self.state_versions), recordings)

    def restore(self, snapshot: Snapshot, history: Sequence[Mapping[str, Any]]) -> None:
        """Go on after a snapshot that another process took."""
        self.rounds_before = snapshot.round
        self.state, self.state_versions = dict(snapshot.state), dict(snapshot.state_versions)
        self.history = History()
        for rows in history:
            self.history.extend(rows)

    def evaluate_all(self, grid: Grid, arrays: ArrayRecord, last: int) -> tuple[list[dict[str, Any]], list[Failure]]:
        """Evaluate the last aggregate at the clients that ``final`` names; return the metrics by client, and failures.

        Both lists are empty with ``final=none``, and with ``metrics=none``: an answer would hold nothing. With
        ``metrics=private`` clients do not train, and there is no accuracy after local training.

        Raises:
            RunError: a client failed and the run does not tolerate it, or too few are left.
        """
        metrics, maximum = (
            (self.ctx.plan.privacy.metrics, self.ctx.plan.rounds.finally_asked) if self.ctx else ("all", None)
        )
        when, everyone = "the final evaluation", drawn_last(self.client_directory.everyone, maximum, self.seed)
        if metrics == "none" or not everyone:
            return [], []
        failed = self.client_directory.excluded_among(everyone)
        fit = [p for p in everyone if p not in self.client_directory.excluded]
        at_once = self.sample or len(everyone)  # the deadline is meant for this number of clients
        kind = "numbers" if self.ctx and self.ctx.task.dataset.is_regression else metrics
        rows: list[dict[str, Any]] = []
        for start in range(0, len(fit), at_once):
            now = fit[start : start + at_once]
            requested = [self.create_message(p, self.arrays_for(p, arrays), "evaluate", last + 1) for p in now]
            replies = grid.send_and_receive(requested, timeout=self.client_directory.tolerance.deadline)
            taken = self.client_directory.receive(
                requested, replies, when, partial(read_metrics, needed=_NEEDED[kind]), failed
            )
            rows += [{"client": partition, **answer} for partition, answer in taken]
        self.client_directory.check_enough(len(rows), failed, when, len(everyone))
        return rows, failed


_NEEDED = {"all": ("acc_global", "acc_local"), "private": ("acc_global",), "numbers": ("mae_global", "mae_local")}
