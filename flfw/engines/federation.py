"""Server side of a run: node assignment, training rounds, probes for the audit, evaluation and ``training.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from flfw.adversary.malicious_server import tampered
from flfw.audit import probe
from flfw.audit.controls import control_probe_sets
from flfw.audit.jobs import EASY, ProbeSet, round_probe_sets
from flfw.audit.queue import Queue
from flfw.dp.releases import Releases, RunBudgetExceededError
from flfw.engines import machine
from flfw.engines.branches import summable
from flfw.engines.layout import registered_nodes
from flfw.errors import InputError, RunError
from flfw.files.progress import Steps
from flfw.files.provenance import code_hash
from flfw.files.result_file import finite
from flfw.files.sealed import drop_unfinished, write_atomic
from flfw.inversion.compute import watched
from flfw.messages.client_info import too_few_volunteered
from flfw.messages.inprocess import has_one_disk, representatives
from flfw.messages.streaming import StreamingGrid
from flfw.messages.wire import broadcast
from flfw.plans.run_plan import RunPlan
from flfw.recording.client_examples import forget_after
from flfw.recording.grid import RecordingGrid, carries_arrays
from flfw.rng import initialising
from flfw.server.aggregation import MovingAverage
from flfw.server.central import central_accuracy
from flfw.server.checkpoint import Checkpoints, server_lock
from flfw.server.client_directory import Failure, FailurePolicy, NodeAssignment, Requirements
from flfw.server.context import ServerContext
from flfw.server.history import EarlyStopping
from flfw.server.robust import RobustMean
from flfw.server.strategy import FederatedStrategy
from flfw.task.client_plan import ClientPlan

if TYPE_CHECKING:
    from flfw.dp.canary_audit import CanaryScorer

_RECORDED_BYTES = 20_000_000_000  # of recordings: a run left alone fills no disk, and what is left out is said
_JOIN_S, _JOIN_S_EACH = 120.0, 10.0  # for sites that connect anew, and for SuperNodes that start one after the other


def federate(grid: Grid, run: RunPlan) -> None:
    """Carry out a run on the nodes of a grid, from its folder's last checkpoint if there is one.

    Writes ``training.json`` there or, after a failure, ``failure.txt``, which a caller of Flower's commands can read.

    Raises:
        InputError: the folder holds another experiment, a damaged one, or a run that is at work.
        RunError: a client failed and the run does not tolerate it, or the server could not go on.
    """
    folder = run.engine.out
    assert folder is not None, "the engine names the folder"
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True, mode=0o700)
    failure_file = folder / "failure.txt"
    try:
        machine.check_server(run.engine, run.audit.settings.attack_gpus, run.client.real)
        with server_lock(folder):
            failure_file.unlink(missing_ok=True)  # from an earlier attempt
            Federation(grid, run, folder).run()
    except OSError as error:
        with suppress(OSError):  # the disk may be full
            failure_file.write_text(f"{error}\n")
        raise RunError(f"The server could not go on: {error}.") from error
    except (InputError, RunError) as error:
        failure_file.write_text(f"{error}\n")
        raise


@final
class Federation:
    """Server side of one run.

    Args:
        grid: connection to the nodes.
        run: plan of the run.
        folder: folder of the run.
    """

    def __init__(self, grid: Grid, run: RunPlan, folder: Path) -> None:
        self._client_plan, self._audit, self._engine, self._folder = run.client, run.audit, run.engine, folder
        self._rounds = run.client.rounds.rounds
        plan = run.client
        drop_unfinished(folder / "checkpoint")
        self._checkpoints = Checkpoints(folder, run.experiment, folder / "state" if has_one_disk(grid) else None)
        self._queue = Queue(folder / "queue")
        self._releases, self._budget_spent = Releases(plan, folder / "checkpoint"), False
        self._strategy = _strategy(run, stamp={"experiment": self._checkpoints.id, "code": code_hash()})
        self._strategy.before_round, self._strategy.cohort_key = self._begin_round, self._releases.cohort_key()
        self._strategy.ctx = ServerContext(plan, machine.server_device(run.engine))
        self._average, self._patience = MovingAverage(plan.rounds.ema), EarlyStopping(plan.rounds.patience)
        self._strategy.on_update = self._canary_scorer = _canary_scorer_of(plan)

        audit, attacks = run.audit, run.audit.reconstructions
        self._probed = bool(audit.audited) and bool(attacks or audit.record)
        self._records_uploads = audit.records_uploads
        self._grid: Grid = StreamingGrid(grid)
        self._recorder: RecordingGrid | None = None
        if audit.audited and self._strategy.uploads:  # else nothing leaves a client that could be attacked
            self._grid = self._recorder = self._recorder_around(self._grid)
        self._grid = tampered(self._grid, plan.task)
        required = Requirements(code_hash(), *plan.task.input_space)
        keys, alike = registered_nodes(run.federation, plan.rounds.clients), representatives(grid)
        clients = plan.rounds.clients
        wait = min(run.engine.round_deadline, max(_JOIN_S, _JOIN_S_EACH * clients))
        self._assignment = NodeAssignment(
            self._grid, self._strategy.client_directory, clients, wait, required, keys, alike
        )

    def run(self) -> None:
        """Carry out the run, from node assignment to ``training.json``."""
        strategy = self._strategy
        without_gpu = self._assign_nodes()
        if last := self._checkpoints.last:
            strategy.restore(last, self._checkpoints.history)
            self._average.tensors = dict(last.average)
            if self._canary_scorer and last.scores is not None:
                self._canary_scorer.restore(last.scores, last.noise)
            self._announce_again(last.round)
        if self._recorder and self._audit.record:
            _warn(f"what clients send in rounds {self._audit.probes.audit_rounds} is recorded in {self._folder}")
        with Steps("round", self._rounds, strategy.rounds_before) as self._steps, watched(self._steps.part):
            done, arrays = self._run_rounds(last.arrays if last else self._first_broadcast())
        arrays, allowed = self._average.evaluated(arrays), self._releases.may_evaluate(done)
        final, failed = strategy.evaluate_all(self._grid, arrays, done) if allowed else ([], [])
        evaluates_here = self._client_plan.privacy.metrics != "all"
        self._write(
            final=final,
            central=central_accuracy(strategy.ctx, arrays) if evaluates_here and strategy.ctx else None,
            final_failed=[asdict(failure) for failure in failed],
            code=self._checkpoints.code,
            resumed=self._checkpoints.resumed,
            requested_rounds=self._releases.rounds,
            evaluations=self._releases.evaluations,
            summed=self._releases.summed,
            budget_spent=self._budget_spent,
            engine=self._engine.engine,
            without_gpu=without_gpu,
            scores=self._canary_scorer.scores.tolist() if self._canary_scorer else None,
            residual=self._canary_scorer.noise_found if self._canary_scorer else None,
        )

    def _recorder_around(self, grid: Grid) -> RecordingGrid:
        """Put a recorder around the grid; of earlier recordings it keeps those up to the last checkpoint."""
        last = self._checkpoints.last
        forget_after(self._folder / "examples", last.round if last else -1)
        return RecordingGrid(
            grid,
            self._folder / "observations",
            should_record=self._should_record,
            resume_at=last.recordings if last else None,
            overwrite=True,
            compression="compact",
            limit_bytes=_RECORDED_BYTES,
        )

    def _should_record(self, message: Message, reply: Message) -> bool:
        """Return whether to record an exchange: a usable probe, or an upload, never an evaluation.

        Uploads are recorded as `AuditPlan.records_uploads` says: those of audited rounds and, with patience, of a round
        that may be the last.
        """
        if probe.is_usable_probe(message, reply):
            return True
        if not self._records_uploads or message.metadata.message_type != "train":
            return False
        server_round: Any = message.content.config_records["config"]["round"]
        return server_round in self._audited(server_round) and carries_arrays(message, reply)

    def _assign_nodes(self) -> bool:
        """Learn which node is which client; return whether a client with a share of a GPU sees no GPU."""
        answers = self._assignment.begin()
        if self._audit.record:
            needed = probe.needed(self._audit.probes, self._client_plan.rounds.clients)
            if line := too_few_volunteered(answers, needed):
                _warn(f"{line}: nobody is probed")  # an audit of some would count the others as protected
            self._probed = not line
        return self._client_plan.on_gpu and not all(answer.gpu for answer in answers)

    def _first_broadcast(self) -> ArrayRecord:
        """Return the first broadcast; an audited run first probes its fresh controls here."""
        if self._recorder and self._probed:
            sent = probe.send_control_probes(
                self._grid, self._strategy, self._audit.probes.images, self._client_plan.task
            )
            self._note_probes(0, sent)
            self._queue.announce(EASY)
        with initialising(self._client_plan.seed, "model"):
            model = self._strategy.build_model(self._client_plan.task.build_net(), self._strategy.settings)
        return broadcast(model, self._strategy.shared(model, self._strategy.settings).downloads)

    def _run_rounds(self, arrays: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Let Flower run the rounds that are left; return the last one and its model."""
        before, rounds = self._strategy.rounds_before, self._rounds
        if self._is_last(before):
            return before, arrays
        deadline, left = self._engine.round_deadline, rounds - before
        try:
            # Flower's own loop: configure_train and aggregate_train of `flfw.server.strategy`, then `_after_round`.
            result = self._strategy.start(self._grid, arrays, left, timeout=deadline, evaluate_fn=self._after_round)
        except _Ended as ended:
            return ended.round, ended.arrays
        return rounds, result.arrays

    def _begin_round(self, server_round: int, arrays: ArrayRecord) -> int:
        """Note a round before it is sent, and return the number of the attempt at it.

        Training ends where the budget does not allow for it. Sites that came late take part from this round on.
        """
        self._steps.note(f"client {late.partition} has joined" for late in self._assignment.late())
        try:
            return self._releases.ask(server_round)
        except RunBudgetExceededError as spent:
            if server_round == 1:
                raise RunError(f"The run cannot begin again: {spent}.") from spent
            self._budget_spent = True
            raise _Ended(server_round - 1, arrays) from spent

    def _is_last(self, server_round: int) -> bool:
        """Return whether no round follows. While a round is under way: whether it may be the last."""
        return server_round == self._rounds or self._patience.is_over(self._strategy.history.clients, server_round)

    def _audited(self, server_round: int) -> tuple[int, ...]:
        """Return the audited rounds as they are known in a round, since it may be an early last one."""
        return self._audit.audited_by(server_round if self._is_last(server_round) else self._rounds)

    def _after_round(self, flower_round: int, arrays: ArrayRecord) -> None:
        """Report a round, probe, save a checkpoint: Flower's `evaluate_fn`, after each round and before the first."""
        done = flower_round + self._strategy.rounds_before
        if self._checkpoints.last and done == self._checkpoints.last.round:
            return  # Flower calls this before its first round, too: an earlier process finished it
        if done:
            row = self._strategy.history.rounds[-1]
            self._steps.done(_line(row))
            self._steps.note(f"client {failure['client']} dropped: {failure['reason']}" for failure in row["failed"])
        if self._recorder and self._probed and done in self._audited(done):
            for probe_set in round_probe_sets(self._audit.probes, self._audit.record, done):
                self._send_probes(done, probe_set, arrays)
                self._queue.announce(probe_set)
                attacks, adaptation = self._audit.reconstructions.values(), self._audit.settings.adaptation
                # Attacked on demand: not announced.
                for beside in control_probe_sets(self._client_plan, attacks, adaptation, probe_set):
                    self._send_probes(done, beside, arrays)
        self._average.follow(done, arrays)
        snapshot = self._strategy.snapshot(done, arrays, self._recorder.mark if self._recorder else None)
        snapshot = replace(snapshot, average=self._average.tensors)
        if self._canary_scorer:
            snapshot = replace(snapshot, scores=self._canary_scorer.scores, noise=self._canary_scorer.noise)
        self._checkpoints.save(snapshot, self._strategy.history.rows_of(done))
        if done < self._rounds and self._is_last(done):
            raise _Ended(done, arrays)

    def _send_probes(self, done: int, probe_set: ProbeSet, arrays: ArrayRecord) -> None:
        images, clients = self._audit.probes.images, self._client_plan.rounds.clients
        self._note_probes(done, probe.send_probes(self._grid, self._strategy, images, clients, probe_set, arrays))

    def _announce_again(self, done: int) -> None:
        """Announce the probes that were recorded before this process began."""
        if self._recorder and self._probed:
            self._queue.announce(EASY)
            for server_round in (r for r in self._audited(done) if r <= done):
                for probe_set in round_probe_sets(self._audit.probes, self._audit.record, server_round):
                    self._queue.announce(probe_set)

    def _note_probes(self, done: int, failed: Iterable[Failure]) -> None:
        for failure in failed:
            self._steps.note([f"probe of {failure}"])
            self._strategy.history.probes.append({"round": done, **asdict(failure)})

    def _write(self, **more: Any) -> None:
        training = finite({**self._strategy.history.lists(), **more}, [])
        write_atomic(self._folder / "training.json", json.dumps(training).encode())


class _Ended(Exception):
    """Exception that ends Flower's loop over the rounds early; Flower fixes the number of rounds at the start.

    It is raised before a round is sent (the budget is spent), or after a round's checkpoint is saved, in Flower's
    evaluation on the server (the round was the last). So a run that is killed here resumes from the same round, and
    comes to the same end.
    """

    def __init__(self, server_round: int, arrays: ArrayRecord) -> None:
        super().__init__(f"round {server_round} was the last")
        self.round, self.arrays = server_round, arrays


def _strategy(run: RunPlan, stamp: dict[str, Any]) -> FederatedStrategy:
    engine, plan, rounds = run.engine, run.client, run.client.rounds
    tolerance = FailurePolicy(
        "drop" if rounds.drops_failures else "fail",
        rounds.min_clients,
        engine.round_deadline,
        replaces_the_dead=engine.engine != "flwr",
    )
    drawing = {"sample": rounds.sample, "sampling": rounds.sampling, "seed": plan.seed}
    strategy = run.strategy(plan.settings, **drawing, tolerance=tolerance)
    strategy.stamp, strategy.summed = stamp, summable(plan, engine.engine, run.audit.sees_updates)
    if rounds.robust_rule != "none":
        strategy.robust = RobustMean(rounds.robust_rule, rounds.byzantine_clients)
    return strategy


def _canary_scorer_of(plan: ClientPlan) -> CanaryScorer | None:
    if not plan.privacy.canaries:
        return None
    from flfw.dp.canary_audit import CanaryScorer  # an accountant is needed only then

    return CanaryScorer(plan, plan.task.load(plan.task.data.data_root))


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


def _line(row: dict[str, Any]) -> str:
    shown = {"loss": row["loss"], "acc before": row["acc_global"], "acc after": row["acc_local"], **row["extra"]}
    numbers = "  ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)
    return f"{numbers}  {row['seconds']:.1f} s"
