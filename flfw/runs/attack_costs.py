"""Seconds of an audit's attacks on one round, from attacks with few steps on victims as an audit grants them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from flfw.adversary.attack import Attack, NotApplicableError
from flfw.audit.probe import RUNGS
from flfw.inversion.client_models.batch_statistics import normalise_by_batch
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import VictimModel
from flfw.inversion.compute import StepSample
from flfw.nets import Tensors
from flfw.nets.training.local_steps import LocalSteps
from flfw.plans.run_plan import RunPlan, plan
from flfw.plugins import short_name
from flfw.recording.observation import Examples, Knowledge, Observation, Vantage
from flfw.rng import torch_generator
from flfw.runs.timing import at_length

MOST = 8
"""Greatest number of images in a measurement; more take time in proportion."""
ENOUGH_S = 1.0
"""Seconds for the steps of a measured attack, beside one step of each of its loops."""
_LONG_S = 0.5  # an attack that takes longer for one image is not measured for several, where that would say little more
_FIRST = 2  # iterations of the shortest search: one iteration has no parts, and each part takes its time to begin
_LENGTHS = ("iterations", "further_iterations")  # settings of an attack's searches, which are lowered together


def no_steps(attack: Attack) -> LocalSteps | None:
    """Return None: a message is the gradient of one step, or is attacked as if it were."""
    return None


@dataclass(frozen=True)
class TimedTarget:
    """Target of the measured attacks.

    Attributes:
        build: builds the attacker's model of a client.
        batch: number of examples behind a message.
        answer: computes a client's message for raw inputs and labels; its values do not matter.
        first: whether a process attacks it before any other, and then trains what it keeps for all targets.
        start: the initial private tensors, where they are granted.
        uploaded: an upload of the client, where it is granted.
        images: number of messages.
        local: the local steps behind a message, through which an attack searches; None: there is one.
    """

    build: Callable[[], VictimModel]
    batch: int
    answer: Callable[..., Tensors]
    first: bool = False
    start: Tensors | None = None
    uploaded: Tensors | None = None
    images: int = 1
    local: Callable[[Attack], LocalSteps | None] = no_steps


@dataclass(frozen=True)
class AttackSeconds:
    """Seconds of all attacks on a target: of the searches for its images, and of trainings on public data before."""

    searched: float = 0.0
    prepared: float = 0.0

    @property
    def total(self) -> float:
        """Both together."""
        return self.searched + self.prepared

    def __add__(self, other: AttackSeconds) -> AttackSeconds:
        """Add the seconds of further attacks."""
        return AttackSeconds(self.searched + other.searched, self.prepared + other.prepared)


def attack_seconds(run_plan: RunPlan, target: TimedTarget) -> AttackSeconds:
    """Measure the seconds of all attacks on one rung of one round; any examples do."""
    experiment = run_plan.experiment
    task, known = plan(experiment).task.load(experiment.data_root), target.build().known
    seen, labels, batch = list[Observation](), [], target.batch
    for slot in range(min(target.images, MOST)):
        x, y = task.examples("train", np.arange(slot * batch, (slot + 1) * batch))
        sent = {name: value.detach() for name, value in target.answer(x, y).items()}
        seen.append(Observation(Vantage.SERVER, "probe", RUNGS[-1], 0, slot, slot, sent, known))
        labels.append(y)
    attacks = run_plan.audit.reconstructions
    public = Examples(*task.public()) if any("public" in attack.uses for attack in attacks.values()) else None
    total = AttackSeconds()
    for name, attack in attacks.items():
        victim = target.build()
        if "batch_statistics" in attack.models:
            normalise_by_batch(victim)
        if (local := target.local(attack)) is not None:
            victim = SteppedVictim(victim, known, local, direct=True)
        beside = {
            "public": public if "public" in attack.uses else None,
            "start": target.start if "start" in attack.uses else None,
            "uploaded": target.uploaded if "uploads" in attack.uses else None,
        }
        granted = [Knowledge(victim, batch, y if attack.labels == "given" else None, **beside) for y in labels]
        measured = _sampled if attack.sampled else _extrapolated
        total += measured(run_plan, name, attack, seen, granted, target)
    return total


def _sampled(
    run_plan: RunPlan,
    name: str,
    attack: Attack,
    observation: list[Observation],
    granted: list[Knowledge],
    target: TimedTarget,
) -> AttackSeconds:
    """Measure one attack by a few steps of each of its loops."""
    sample = _steps_of(run_plan, attack, observation, granted)
    needs = attack.preparation
    searched = (sample.seconds - sample.learning) * target.images / len(observation)
    return AttackSeconds(searched, 0.0 if needs and needs.kept and not target.first else sample.learning)


def _extrapolated(
    run_plan: RunPlan,
    name: str,
    attack: Attack,
    observation: list[Observation],
    granted: list[Knowledge],
    target: TimedTarget,
) -> AttackSeconds:
    """Measure one attack by few of its iterations; its training before them, if any, is the shortest there is."""
    needs, chosen = attack.preparation, vars(attack.settings)
    lengths = {setting: chosen[setting] for setting in _LENGTHS if setting in chosen}
    whole = max(lengths.values(), default=0)

    def seconds(iterations: int, images: int, prepared: int = 1) -> float:
        lowered = {setting: max(1, round(count * iterations / whole)) for setting, count in lengths.items()}
        lowered |= {needs.setting: prepared} if needs else {}
        assigned = [f"{short_name(name)}.{setting}={value}" for setting, value in lowered.items()]
        trial = run_plan.replaced(set=(*run_plan.experiment.set, *assigned)).audit.reconstructions[name]
        return _steps_of(run_plan, trial, observation[:images], granted[:images]).seconds

    def searched(images: int) -> float:
        return at_length(lambda n: seconds(n, images), whole, first=_FIRST) if whole > 1 else seconds(whole, images)

    alone = searched(1)
    measured = 1 if alone > _LONG_S else len(observation)
    of_measured = alone if measured == 1 else searched(measured)
    # Attacks on public images, for a training, do not grow with the number of victims.
    each = (of_measured - alone) / (measured - 1) if needs and measured > 1 else of_measured / measured
    all_images = of_measured + (target.images - measured) * max(each, 0.0)
    if needs is None or (needs.kept and not target.first):
        return AttackSeconds(all_images)
    few, steps = min(whole, 1), chosen[needs.setting]
    shortest = seconds(few, 1)
    trained = shortest
    if steps > 1:  # a network that learnt for one step has been kept, if any is
        trained = at_length(lambda n: seconds(few, 1, n), steps, calls=1, first=2)
    return AttackSeconds(all_images, max(trained - shortest, 0.0))


def _steps_of(
    run_plan: RunPlan, attack: Attack, observation: list[Observation], granted: list[Knowledge]
) -> StepSample:
    """Run an attack for a few steps of those loops that are counted; the other loops run whole."""
    rngs = [torch_generator(run_plan.experiment.seed, "estimate", o.slot) for o in observation]
    with StepSample(ENOUGH_S) as sample, suppress(NotApplicableError):
        attack.run(observation, granted, rngs)
    return sample
