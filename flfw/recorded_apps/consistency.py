"""Check that the truth, trained on as described, gives the recorded updates; where it does not, the likely cause.

The training is repeated here with PyTorch's optimisers. It shares no code with the unrolled steps of an attack, so each
of the two tests the other. Other descriptions are tried where the given one does not explain an update.
"""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot
from torch.nn.utils import clip_grad_norm_

from flfw.audit.measures.agreement import TOLERANCE, Agreement, Outcome, agreement, resolution
from flfw.audit.reconstruction.reconstruction_evidence import ControlResult
from flfw.errors import InputError
from flfw.nets.inputs import InputSpec
from flfw.nets.net import Tensors, numel
from flfw.recorded_apps.case import ForeignCase, Victim
from flfw.recorded_apps.defence import DescribedDefence
from flfw.recorded_apps.description import SENDS, TrainingDescription
from flfw.recorded_apps.knowledge import changed, named
from flfw.recorded_apps.residuals import Residuals, with_another
from flfw.recording.observation import Observation, Truth
from flfw.rng import initialising, numpy_generator, torch_generator

DRAWS = (10, 40)
"""Number of recomputations of a training with random draws; the second if the first do not agree."""

_FEWER_DRAWS = 4  # for other descriptions

# Of another description: steps, examples in all of them, and numbers that are kept.
_MOST_STEPS, _MOST_EXAMPLES, _MOST_NUMBERS = 120, 40_000, 200_000_000
_STEPS = (*range(1, 11), 12, 15, 16, 18, 20, 24, 25, 30, 32, 35, 40, 45, 48, 50, 60, 64, 70, 75, 80, 90, 96, 100, 120)
_ULPS = 4  # by which weights are moved to see what rounding does to the training
_NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "inputs left in [0, 1]": ((0.0,), (1.0,)),
    "inputs from 0 to 255": ((0.0,), (1 / 255,)),
    "inputs in [-1, 1]": ((0.5,), (0.5,)),
    "MNIST's normalisation": ((0.1307,), (0.3081,)),
    "CIFAR-10's normalisation": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "ImageNet's normalisation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Usual means and deviations: one for all channels, or one for each of three."""

_MOST_OTHERS = 32  # clients whose data are tried


@final
class Retraining:
    """Training of a copy of a network as described, step by step.

    Args:
        net: the network.
        received: the tensors that the client had received, by the network's names.
        truth: the client's examples.
        training: the description; its epochs are repeated for ever.
        inputs: the input space.
        seed: seed of the training's random draws.
        draw: number of the repetition; each has draws of its own.

    Attributes:
        steps: number of steps so far.
        gradient: gradient of the first step.
    """

    def __init__(
        self,
        net: nn.Module,
        received: Tensors,
        truth: Truth,
        training: TrainingDescription,
        inputs: InputSpec,
        seed: int = 0,
        draw: int = 0,
    ) -> None:
        self._model, self._truth, self._training, self._inputs = copy.deepcopy(net), truth, training, inputs
        self._model.load_state_dict({**self._model.state_dict(), **received})
        self._model.train(training.mode == "train")
        self._moving = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._before = {name: parameter.detach().clone() for name, parameter in self._moving.items()}
        self._optimiser = _optimiser(training, list(self._moving.values()))
        self._rng = torch_generator(seed, "consistency", draw)
        self._batches = self._epochs()
        with initialising(seed, "consistency", draw):
            self._state = torch.get_rng_state()
        self.steps = 0
        self.gradient: Tensors = {}

    def step(self) -> None:
        """Take the next step."""
        training, (x, y) = self._training, next(self._batches)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(self._state)  # dropout draws from the global generator
            loss = training.loss(self._model(self._inputs.normalise(x)), y)
            self._state = torch.get_rng_state()
            if training.proximal:
                way = sum((p - self._before[name]).square().sum() for name, p in self._moving.items())
                loss = loss + training.proximal / 2 * way
            self._optimiser.zero_grad()
            loss.backward()
        self.gradient = self.gradient or {name: _gradient(p) for name, p in self._moving.items()}
        if training.clip:
            clip_grad_norm_(list(self._moving.values()), training.clip)
        self._optimiser.step()
        self.steps += 1

    @property
    def change(self) -> Tensors:
        """Change of the trained weights so far."""
        return {name: (p.detach().double() - self._before[name].double()).float() for name, p in self._moving.items()}

    def result(self, training: TrainingDescription) -> Tensors:
        """Return the change of the weights so far or, where gradients are sent, the gradient of these steps."""
        if training.sends != "gradient":
            return self.change
        travelled = -self.steps * (training.lr or 1.0)
        return self.gradient if self.steps == 1 else {name: way / travelled for name, way in self.change.items()}

    def finished(self) -> Tensors:
        """Take the described number of steps, and return their `result`."""
        for _ in range(len(self._training.batches(len(self._truth.labels)))):
            self.step()
        return self.result(self._training)

    def _epochs(self) -> Iterator[tuple[Tensor, Tensor]]:
        training, count = self._training, len(self._truth.labels)
        while True:
            for indices in training.batches(count, self._rng):
                x, y = self._truth.samples[list(indices)], self._truth.labels[list(indices)]
                yield x if training.augment is None else training.augment(x.clone(), self._rng), y


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()


def _optimiser(training: TrainingDescription, parameters: list[Tensor]) -> torch.optim.Optimizer:
    lr, decay = 1.0 if training.lr is None else training.lr, training.weight_decay
    if training.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, lr, momentum=training.momentum, weight_decay=decay, nesterov=training.nesterov
        )
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.AdamW
    return kind(parameters, lr, betas=training.betas, eps=training.epsilon, weight_decay=decay)


def squared(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean squared error of the scores from one-hot labels."""
    return mse_loss(scores, one_hot(labels, scores.shape[-1]).to(scores.dtype))


def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross entropy with labels smoothed by 0.1."""
    return cross_entropy(scores, labels, label_smoothing=0.1)


def summed(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the sum of the examples' cross entropies."""
    return cross_entropy(scores, labels, reduction="sum")


@final
@dataclass(frozen=True)
class Alternative:
    """A description other than the given one.

    Attributes:
        name: the difference, in words; empty: none but perhaps the steps and the sent tensors.
        training: the training.
        truth: the examples.
        inputs: the input space.
        any_steps: whether other numbers of steps and other sent tensors are tried with it.
    """

    name: str
    training: TrainingDescription
    truth: Truth
    inputs: InputSpec
    any_steps: bool = False


Others: TypeAlias = Mapping[int, Truth]
"""The data of other clients, by their numbers."""


def _alternatives(
    training: TrainingDescription, truth: Truth, inputs: InputSpec, others: Others, modes: bool
) -> Iterator[Alternative]:
    """Yield the fixed list of other descriptions.

    Args:
        training: the given description.
        truth: the given examples.
        inputs: the given input space.
        others: the data of other clients.
        modes: whether the network computes differently in training and evaluation.
    """
    for name, other in _optimisers(training):
        yield Alternative(name, other, truth, inputs, any_steps=True)
    for client, held in list(others.items())[:_MOST_OTHERS]:
        yield Alternative(f"the data of client {client}", training, held, inputs)
    for name, samples in _turned(truth.samples):
        yield Alternative(name, training, replace(truth, samples=samples), inputs)
    for name, (mean, std) in _NORMALISATIONS.items():
        channels = inputs.shape[0] if len(inputs.shape) > 1 else 1
        if len(mean) in (1, channels):
            space = InputSpec.from_constants(inputs.shape, mean, std)
            yield Alternative(name, training, truth, space)
    if modes:
        mode = "eval" if training.mode == "train" else "train"
        yield Alternative(f"the network in mode {mode}", replace(training, mode=mode), truth, inputs)
    losses: dict[str, Any] = {"squared errors": squared}
    losses |= {"squared errors of probabilities": lambda scores, labels: squared(scores.softmax(-1), labels)}
    losses |= {"labels smoothed by 0.1": smoothed, "the sum of the examples' losses": summed}
    losses |= {"cross entropy": cross_entropy}
    for name, loss in losses.items():
        if loss is not training.loss:
            yield Alternative(name, replace(training, loss=loss), truth, inputs)
    for decay in (1e-4, 5e-4, 1e-3, 1e-2):
        yield Alternative(f"weight decay {decay:g}", replace(training, weight_decay=decay), truth, inputs)


def _optimisers(training: TrainingDescription) -> Iterator[tuple[str, TrainingDescription]]:
    """Yield optimisers; where the given one is another, the settings that only it has are dropped."""
    yield "", training
    if training.order is None and training.batch_size:
        yield "all examples in every step", replace(training, batch_size=0)
    bare = replace(training, optimiser="sgd", momentum=0.0, nesterov=False)
    yield "plain SGD", replace(bare, weight_decay=0.0, clip=0.0, proximal=0.0)
    yield "momentum 0.9", replace(bare, momentum=0.9)
    yield "Nesterov's momentum 0.9", replace(bare, momentum=0.9, nesterov=True)
    yield "Adam", replace(bare, optimiser="adam")
    yield "AdamW with weight decay 0.01", replace(bare, optimiser="adamw", weight_decay=0.01)


def _turned(samples: Tensor) -> Iterator[tuple[str, Tensor]]:
    if samples.dim() != 4:
        return
    yield "images flipped left to right", samples.flip(-1)
    yield "images flipped upside down", samples.flip(-2)
    if samples.shape[-1] == samples.shape[-2]:
        yield "images with rows and columns exchanged", samples.transpose(-1, -2)
        yield "images turned by a quarter", torch.rot90(samples, 1, (-2, -1))
    if samples.shape[1] == 3:
        yield "channels in the order blue, green, red", samples.flip(1)
    yield "images inverted", 1 - samples


class _TooLong(RuntimeError):
    """Error: a training takes too long to be repeated, or messages too much memory."""


@final
@dataclass(frozen=True)
class UpdateCheck:
    """Comparison of one recorded update with the truth.

    Attributes:
        client: its client's number in the recordings.
        outcome: ``passed``, ``failed`` or ``not possible``.
        numbers: the comparison; None: nothing was recomputed.
        words: the result in words.
        cause: the likely cause of a failure, a sentence; empty: there is none.
    """

    client: int
    outcome: Outcome
    numbers: Agreement | None
    words: str
    cause: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the check as result.json holds it."""
        pair = (None, None) if self.numbers is None else (self.numbers.cosine, self.numbers.ratio)
        record = {"client": self.client, "outcome": self.outcome, "cosine": pair[0], "ratio": pair[1]}
        return record | {"words": self.words, "cause": self.cause}


@final
class Consistency:
    """Checks of an audit's updates.

    Args:
        case: the setting.
        net: the network.
        truths: the data of all clients, by their numbers.
        seconds: longest time of the repetitions of a random training.

    Attributes:
        residuals: what a described random defence leaves of the updates.
    """

    def __init__(self, case: ForeignCase, net: nn.Module, truths: Mapping[int, Truth], seconds: float) -> None:
        self._case, self._net, self._truths, self._seconds = case, net, truths, seconds
        self.residuals = Residuals()

    def checked(
        self, victims: Sequence[Victim], seen: Sequence[Observation | None]
    ) -> tuple[ControlResult, list[UpdateCheck]]:
        """Check the updates of a round; return the control, and the result for each readable update.

        Args:
            victims: the updates.
            seen: their observations as they were recorded; None for a refused one.
        """
        started = time.monotonic()
        checks: list[UpdateCheck] = []
        for v, o in zip(victims, seen, strict=True):
            if o is not None:  # a cause is searched for once, since all clients usually share it
                checks.append(self._check(v, o, not any(check.cause for check in checks)))
        return summarised(checks, time.monotonic() - started), checks

    def _check(self, v: Victim, observation: Observation, explain: bool) -> UpdateCheck:
        training, client = self._case.described(observation, v.behind), v.line["client"]
        observed = named(self._net, observation)
        if reason := self._unanswerable(observed, training, len(v.behind.labels)):
            return UpdateCheck(client, "not possible", None, reason)
        try:
            numbers = self._compared(observation, observed, v.behind, training)
        except _TooLong as error:
            return UpdateCheck(client, "not possible", None, str(error))
        except Exception as error:  # the network, the loss and the augmentation are the caller's code
            reason = f"it cannot be recomputed ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
            return UpdateCheck(client, "not possible", None, reason)
        if numbers is None:
            return UpdateCheck(
                client, "passed", None, f"The rest of it is held against the noise of {self._case.defence.words}."
            )
        if numbers.outcome != "failed":
            return UpdateCheck(client, numbers.outcome, numbers, numbers.impossible or numbers.sentence)
        if self._case.defence.known:
            return UpdateCheck(client, "failed", numbers, numbers.sentence, "The training or the defence is another.")
        others = {other: held for other, held in self._truths.items() if other != client}
        cause = self._cause(observed, training, v.behind, others, numbers) if explain else ""
        return UpdateCheck(client, "failed", numbers, numbers.sentence, cause)

    def _compared(
        self, observation: Observation, observed: Observation, truth: Truth, training: TrainingDescription
    ) -> Agreement | None:
        """Compare an update with repetitions: with one or, if the training is random, with as many as are needed.

        None: a known defence adds noise, and what it leaves of the update is kept for `departure`.

        Raises:
            _TooLong: the repetitions would take too much time.
        """
        setting = (self._net, observed.received, truth, training, self._case.inputs, self._case.seed)
        maximum = max(_FEWER_DRAWS, _MOST_NUMBERS // numel(observed.received))  # all are kept in memory
        # One in fifty updates is farther off than ten repetitions; hardly one is farther off than forty.
        numbers_of_draws = [min(draws, maximum) for draws in DRAWS] if self._draws(training, truth) else [1]
        started = time.monotonic()
        recorded = self._moved(observed, training)
        change = Retraining(*setting).finished()
        again = [self._defended(change)]
        needed = (time.monotonic() - started) * numbers_of_draws[0]
        if len(numbers_of_draws) > 1 and needed > self._seconds:
            raise _TooLong(f"{numbers_of_draws[0]} repetitions of the training would take about {needed:.0f} s")
        rng = numpy_generator(self._case.seed, "exchanged", observation.round, observation.slot)
        if self._case.defence.known:
            another = with_another(truth, self._case.public, rng)
            other = Retraining(
                self._net, observed.received, another, training, self._case.inputs, self._case.seed
            ).finished()
            if self._case.defence.is_random(change):
                if (1 + len(self.residuals.rests)) * numel(recorded) > _MOST_NUMBERS:
                    kept = f"{_MOST_NUMBERS:,} numbers of messages are kept at most: audit fewer victims or rounds"
                    raise _TooLong(kept)
                self._keep(recorded, change, other, observed if training.sends == "weights" else None)
                return None
            differs = any(not torch.equal(value, again[0][n]) for n, value in self._defended(other).items())
            self.residuals.told.append(inf if differs else 0.0)  # without noise, whoever has the data can compute it

        def repeated(draws: int) -> Agreement:
            more = (Retraining(*setting, draw).finished() for draw in range(len(again), draws))
            again.extend([self._defended(one) for one in more])
            return agreement(recorded, again, self._rounding(observation, observed, truth, training, again))

        result = repeated(numbers_of_draws[0])
        more = numbers_of_draws[-1] > numbers_of_draws[0] and needed * DRAWS[-1] / DRAWS[0] <= self._seconds
        return repeated(numbers_of_draws[-1]) if result.outcome == "failed" and more else result

    def sent_again(self, v: Victim, observation: Observation, defence: DescribedDefence) -> Observation:
        """Return an update as its client would have sent it behind another defence, under the network's names.

        Args:
            v: the update.
            observation: the update as it was recorded.
            defence: the other defence, or none.
        """
        observed, training = named(self._net, observation), self._case.described(observation, v.behind)
        rng = torch_generator(self._case.seed, "control", observation.round, observation.slot)
        repeated = Retraining(self._net, observed.received, v.behind, training, self._case.inputs, self._case.seed)
        change = defence.applied(repeated.finished(), rng)
        if training.sends == "weights":
            change = {name: observed.received[name] + way for name, way in change.items()}
        elif training.sends == "negative delta":
            change = {name: -way for name, way in change.items()}
        return replace(observed, sent={**observed.sent, **{n: change[n] for n in observed.sent if n in change}})

    def _defended(self, change: Tensors) -> Tensors:
        return self._case.defence.applied(change, torch_generator(self._case.seed, "defence"))

    def _keep(self, recorded: Tensors, change: Tensors, other: Tensors, weights: Observation | None) -> None:
        """Keep a message of a random defence beside the updates of its data and of other data."""
        operator = self._case.defence.operator()
        assert operator is not None, "a described defence has one"
        unit = operator.noise or 1.0  # without noise in its model, what is left is not like noise
        shown, constants = operator.undo(recorded), operator.read(recorded)
        each = [shown, *(operator.apply(one, shown, constants) for one in (change, other))]
        self.residuals.add(*({name: one[name] / unit for name in shown} for one in each))
        if weights is None:
            return
        for name in shown:
            step = torch.finfo(torch.float32).eps * float(weights.sent[name].abs().max()) / unit
            self.residuals.resolution[name] = max(step, self.residuals.resolution.get(name, 0.0))

    def _unanswerable(self, observed: Observation, training: TrainingDescription, count: int) -> str:
        defence = self._case.defence
        if defence.acts and not defence.known:
            return f"the clients use {defence.name}, which changes the updates in a way that is not described"
        random = training.is_random(count) or (training.mode == "train" and self._case.draws)
        if defence.known and random:
            return f"the training is random, and cannot be told from {defence.name}"
        if not training.known:
            return "the optimiser and its learning rate are not described"
        missing = [name for name, _ in self._net.named_parameters() if name not in observed.received]
        if missing:
            return f"the server did not send {', '.join(missing[:4])}{' and others' * (len(missing) > 4)}"
        return ""

    def _draws(self, training: TrainingDescription, truth: Truth) -> bool:
        return training.is_random(len(truth.labels)) or (training.mode == "train" and self._case.draws)

    def _moved(self, observed: Observation, training: TrainingDescription) -> Tensors:
        trained = {name for name, parameter in self._net.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in changed(observed, training).items() if name in trained}

    def _rounding(
        self,
        observation: Observation,
        observed: Observation,
        truth: Truth,
        training: TrainingDescription,
        again: Sequence[Tensors],
    ) -> float:
        """Estimate the share of an update that rounding may change: of the sent weights, and within the training."""
        steps = len(training.batches(len(truth.labels)))
        weights, received, types = observed.sent, observed.received, {}
        if training.sends == "weights":
            kinds = {value.dtype for value in observation.sent.values() if value.is_floating_point()}
            types = dict.fromkeys(weights, max(kinds, key=lambda kind: torch.finfo(kind).eps))
        elif training.sends != "gradient":
            moved = changed(observed, training)
            weights = {name: received[name] + way for name, way in moved.items() if name in received}
        sent = 0.0 if training.sends == "gradient" else resolution(weights, received, again[0], steps, types)
        if len(again) > 1:
            return sent
        rng = torch_generator(self._case.seed, "rounding")
        nearby = {name: _nudged(value, rng) for name, value in received.items()}
        beside = Retraining(self._net, nearby, truth, training, self._case.inputs, self._case.seed)
        return hypot(sent, agreement(self._defended(beside.finished()), again).off)

    def _cause(
        self, observed: Observation, training: TrainingDescription, truth: Truth, others: Others, given: Agreement
    ) -> str:
        """Return a sentence on the first other description that explains an update, else on the nearest."""
        pointing, nearest, tried = "", (0.8 * given.off, ""), False  # much nearer than the given one
        rounding = given.tolerance - TOLERANCE
        modes = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self._net.modules())
        modes = modes or self._case.draws
        explaining: list[tuple[bool, float, str, Agreement]] = []
        for other in _alternatives(training, truth, self._case.inputs, others, modes):
            for name, more_steps, numbers in self._tried(observed, other, training, rounding):
                tried = True
                if numbers.outcome != "failed" and not numbers.impossible and numbers.off < given.off:
                    explaining.append((more_steps, numbers.off, name, numbers))
                if numbers.points and not pointing and training.lr is not None:
                    rate = f"{training.lr * numbers.ratio:.3g}"
                    pointing = f"Its direction agrees with {name}, its length with a learning rate of about {rate}."
                nearest = min(nearest, (numbers.off, f"{name} ({numbers.numbers})"))
            if explaining and given.recomputations == 1:  # of random ones many agree; the nearest is meant
                break
        if explaining:
            *_, name, numbers = min(explaining, key=lambda result: result[:2])
            return f"Another description explains it: {name} ({numbers.numbers})."
        if not tried:
            return "No other description was tried: the training is too long."
        near = f"the nearest is {nearest[1]}" if nearest[1] else "none comes much nearer"
        return (pointing if given.recomputations == 1 else "") or (
            f"No other description that was tried explains it; {near}."
        )

    def _tried(
        self, observed: Observation, other: Alternative, training: TrainingDescription, rounding: float
    ) -> Iterator[tuple[str, bool, Agreement]]:
        """Yield comparisons with an alternative: its name, whether the number of steps differs, and the result."""
        try:
            batches = other.training.batches(len(other.truth.labels))
        except InputError:  # an order of other examples
            return
        described, largest = len(batches), max(map(len, batches))
        draws = _FEWER_DRAWS if self._draws(other.training, other.truth) else 1
        recorded = {sends: self._moved(observed, replace(training, sends=sends)) for sends in SENDS}
        room = min(_MOST_EXAMPLES // largest, _MOST_NUMBERS // numel(observed.received)) // draws
        if described > max(room, _MOST_STEPS):
            return
        last = max(described, min(room, _MOST_STEPS // draws)) if other.any_steps else described
        setting = (self._net, observed.received, other.truth, other.training, other.inputs, self._case.seed)
        try:
            runs = [Retraining(*setting, draw) for draw in range(draws)]
            for step in range(1, last + 1):
                for run in runs:
                    run.step()
                compared = step == described or (other.any_steps and step in _STEPS)
                for sends in SENDS if compared else ():
                    form = replace(other.training, sends=sends)
                    numbers = agreement(recorded[sends], [run.result(form) for run in runs], rounding)
                    yield _name(other, form, training, step, described), step != described, numbers
        except Exception:  # a description that the caller's code cannot carry out explains nothing
            return


def summarised(checks: Sequence[UpdateCheck], seconds: float) -> ControlResult:
    """Sum up the checks of some updates as a control; a check that was not possible is not a pass."""
    took = round(seconds, 3)
    if not checks:
        return ControlResult(None, None, took, failure_reason="none of the updates could be read")
    failed = [check for check in checks if check.outcome == "failed"]
    if failed:
        worst = next(check for check in failed if check.cause)
        share = f"{len(failed)} of {len(checks)} updates" if len(checks) > 1 else "the update"
        return ControlResult(None, False, took, reason=f"{share} of client {worst.client}: {worst.words} {worst.cause}")
    unknown = [check for check in checks if check.outcome == "not possible"]
    if unknown:
        return ControlResult(None, None, took, failure_reason=f"the check is not possible: {unknown[0].words}")
    worst = max(checks, key=lambda check: check.numbers.off if check.numbers else 0.0)
    return ControlResult(None, True, took, reason=f"All of {len(checks)} agree; the worst: {worst.words}")


def _name(
    other: Alternative, form: TrainingDescription, training: TrainingDescription, step: int, described: int
) -> str:
    parts = [other.name] if other.name else []
    if step != described:
        parts.append(f"{step} step{'s' if step > 1 else ''} (described: {described})")
    if form.sends != training.sends:
        parts.append(f"{form.sends} sent")
    return ", ".join(parts) or "the given one"


def _nudged(value: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Move a tensor by a few units in the last place."""
    if not value.is_floating_point():
        return value
    return value * (1 + _ULPS * torch.finfo(value.dtype).eps * torch.randn(value.shape, generator=rng))
