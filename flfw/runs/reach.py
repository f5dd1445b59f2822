"""Whether a run can learn, before it is trained, and whether it did.

The reach of a private experiment says how far clipped steps can move a model, and what noise adds.

Three numbers tell whether a model can be expected to learn. Clipped steps are short: their lengths add up to a largest
movement, for any data. Noise is added to each weight: where its deviation in one round is more than twice the weights
themselves, a round is mostly noise. And all noise has a length beside that of what can be learnt, which neither lr nor
the number of steps changes. All follow from the settings.

`reach.json` in a run's folder keeps them for the tables.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log2, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from flfw.dp.run_accountant import schedules
from flfw.dp.settings import DPSettings, DPSGDSettings
from flfw.files.sealed import write_atomic
from flfw.files.tensor_names import matches
from flfw.inversion.closed_form.linear import FirstLayer
from flfw.plans.run_plan import RunPlan
from flfw.privacy.calibration import unit_signal
from flfw.privacy.mechanism import ClientSchedule
from flfw.rng import initialising
from flfw.task.client_plan import ClientPlan
from flfw.task.task import Task

LEAST_MOVEMENT = 0.1  # of the length of the first weights, below which a model cannot leave its start
_PLATEAU = (0.99, 1.02)  # of the loss of guessing
_ABOVE_GUESSING = 0.05  # accuracy
_SURE = 1.645  # deviations of an accuracy by chance: one guesser in twenty is above
_ALL_CLIPPED = 0.999
MOST_NOISE = 2.0  # of the root mean square of the first weights, above which a round is mostly noise


@dataclass(frozen=True)
class Reach:
    """Largest movement and noise of a private experiment, for the tensors that are sent.

    Attributes:
        steps: clipped steps, or clipped updates, one after the other in the whole run.
        movement: largest length (L2) of all of them together, without noise.
        start: length of the first weights.
        noise: deviation of the noise on a weight in one round, after the mean over the clients.
        weight: root mean square of the first weights.
        share: length of the noise of all rounds over what they can be expected to teach, for any data; times
            sqrt(2 ln c), as the largest noise of c classes' scores is that many deviations.
        minority: the same over what all classes but the largest can teach, times the bits of the odds against them,
            which they must outweigh; 0: no class has more than half of the examples.
    """

    steps: int
    movement: float
    start: float
    noise: float
    weight: float
    share: float
    minority: float = 0.0

    @property
    def sentence(self) -> str:
        """Both numbers in a sentence."""
        return (
            f"{self.steps:,} clipped steps move the weights by at most {self.movement:.2g} (they begin at a length of "
            f"{self.start:.2g}); noise of {self.noise:.2g} a weight and round (weights of {self.weight:.2g})"
        )

    @property
    def obstacle(self) -> str:
        """Reason that the model cannot be expected to learn; empty: these numbers show none."""
        if self.movement < LEAST_MOVEMENT * self.start:
            return f"its steps move the weights by at most {self.movement:.2g} of a length of {self.start:.2g}"
        if self.noise > MOST_NOISE * self.weight:
            return f"each round adds noise of {self.noise:.2g} to weights of {self.weight:.2g}"
        if self.share > 1:
            return f"the noise of all rounds outweighs what can be learnt {self.share:.1f} times"
        if self.minority > 1:
            return f"the noise of all rounds outweighs what all but the largest class teach {self.minority:.1f} times"
        return ""


def reach(run_plan: RunPlan, task: Task) -> Reach | None:
    """Compute the reach of a run; None: its method neither clips nor adds noise.

    Args:
        run_plan: of the run.
        task: its task.
    """
    experiment = run_plan.experiment
    chosen: Any = run_plan.client.settings
    if not isinstance(chosen, DPSettings):
        return None
    run = max(schedules(run_plan.client, task.split), key=lambda one: one.examples)
    sent, lr, cohort = run_plan.client.sharing.uploads, experiment.lr, run_plan.client.rounds.per_round
    weights = first_weights(run_plan.client)
    groups = sqrt(chosen.groups(run.tensors, sent))
    start, count = float(weights.norm()), len(weights)
    movement, noise, steps = (
        _of_steps(chosen, lr, run, cohort) if chosen.clips_examples else _of_updates(chosen, run, cohort)
    )
    signal = movement * groups * (unit_signal(task.dataset.classes) if chosen.clips_examples else 1.0)
    share = noise * sqrt(run.rounds * count * 2 * log(max(2, task.dataset.classes))) / signal
    return Reach(steps, movement * groups, start, noise, start / sqrt(count), share, share * minority_price(task))


def minority_price(task: Task) -> float:
    """Return how many times less noise the smaller classes bear than equal ones would; 0: no class has more than half.

    Classes with shares s of the examples teach the length of (s), that is `unit_signal` where all are equal.
    """
    labels, classes = task.dataset.train_y, task.dataset.classes
    counted = isinstance(labels, np.ndarray) and not task.dataset.is_regression
    *others, largest = np.sort(np.bincount(labels)) / len(labels) if counted else [0.0]
    if not 0.5 < largest < 1:
        return 0.0
    rest = float(np.linalg.norm(others)) * sqrt(classes / (classes - 1))
    return unit_signal(classes) / rest * log2(largest / (1 - largest))


def first_weights(plan: ClientPlan) -> torch.Tensor:
    """Return the first weights, of all tensors that are sent, in one vector."""
    with initialising(plan.seed, "model"):
        model = plan.build_model()
    return torch.cat([p.detach().flatten() for n, p in model.named_parameters() if matches(n, plan.sharing.uploads)])


def _of_steps(chosen: DPSettings, lr: float, run: ClientSchedule, cohort: int) -> tuple[float, float, int]:
    """Return movement (of one group), noise and number of noisy steps.

    A step moves the weights by at most lr C, and with momentum by up to 1 / (1 - momentum) times that in the end. The
    noise of a round adds up over its steps, and is divided by the root of the clients, each of which draws its own.
    """
    assert isinstance(chosen, DPSGDSettings)
    lasting = lr / (1 - chosen.momentum)
    steps = run.rounds * run.local_steps
    batch = min(run.batch_size, run.examples)
    each = lasting * chosen.clip * chosen.sum_noise_multiplier(batch) / batch
    return steps * lasting * chosen.clip, each * sqrt(run.local_steps / cohort), steps


def _of_updates(chosen: DPSettings, run: ClientSchedule, cohort: int) -> tuple[float, float, int]:
    """Return movement (of one group), noise and number of clipped updates; the server's mean moves no farther."""
    std = chosen.noise_multiplier * chosen.clip
    many = sqrt(cohort) if chosen.update_deviation else cohort  # own noise of each, or one draw on the sum
    return run.rounds * chosen.clip, std / many, run.rounds


def keep(folder: Path, seen: Reach | None, task: Task) -> None:
    """Write ``reach.json`` into a run's folder: the reach, the number of classes, and the largest class's share."""
    labels = np.bincount(task.dataset.train_y)
    stored = {
        "sentence": seen.sentence if seen else "",
        "obstacle": seen.obstacle if seen else "",
        "classes": task.dataset.classes,
        "largest_class": float(labels.max() / labels.sum()),
    }
    write_atomic(folder / "reach.json", (json.dumps(stored, indent=1) + "\n").encode())


def uninformative(folder: Path) -> str:
    """Return why a finished run says nothing of its method; empty if nothing shows that, or its reach was not kept.

    An obstacle alone is no proof: a simple model may learn under noise far above its weights. So the accuracy must be
    that of guessing as well, up to 5 points above the share of the largest class.
    """
    path = folder / "reach.json"
    if not path.exists():
        return ""
    stored, result = json.loads(path.read_text()), json.loads((folder / "result.json").read_text())
    accuracy = (result.get("final") or {}).get("acc_global")
    guessed = accuracy is not None and accuracy <= stored["largest_class"] + _ABOVE_GUESSING
    if stored["obstacle"] and guessed:
        return f"{stored['obstacle']}, and the accuracy is that of guessing"
    loss, guessing = (result.get("rounds") or [{}])[-1].get("loss"), log(stored["classes"])
    if isinstance(loss, int | float) and _PLATEAU[0] * guessing <= loss <= _PLATEAU[1] * guessing:
        return f"its loss after training is {loss:.3f}, as by guessing among {stored['classes']} classes"
    return ""


def foreseen(run_plan: RunPlan, task: Task) -> list[str]:
    """Return notes on attacks that can give nothing, and on a run that cannot be expected to learn."""
    first, net = FirstLayer.of(run_plan.client.model, run_plan.task.input_space[0]), run_plan.experiment.net
    needs = f"gives nothing on net={net}: it needs a fully connected first layer, as of --net mlp, got {first.kind}."
    attacks = {} if first.dense else run_plan.audit.reconstructions
    notes = [f"Attack {name} {needs}" for name, attack in attacks.items() if attack.reads_first_layer]
    seen = reach(run_plan, task) if task.has_data else None
    if seen and seen.obstacle:
        notes.append(
            f"The model may not learn: {seen.obstacle}. More examples, clients or rounds, a larger epsilon or bound, "
            "or a smaller network help."
        )
    return notes


def notes_on_learning(rounds: Sequence[Mapping[str, Any]], final: Mapping[str, Any], task: Task) -> list[str]:
    """Return notes on a training that came to nothing: losses that are not finite, guesses, updates that were all cut.

    Args:
        rounds: rows of rounds.csv, if clients reported exact losses.
        final: accuracies after the last round.
        task: of the run.
    """
    notes = []
    broken = [row["round"] for row in rounds if row["loss"] is None and row["acc_global"] is not None]
    if broken:
        notes.append(f"The loss was not finite from round {broken[0]} on: this run diverged. A smaller --lr may help.")
    if task.has_data and not task.dataset.is_regression and not broken:
        notes += _of_guesses(final, task)
    cut = [row["extra"]["clipped"] for row in rounds if "clipped" in row["extra"]]
    if cut and min(cut) >= _ALL_CLIPPED:
        notes.append(
            "Everything was clipped in every round: the bound alone sets how far the model moves. A larger lr or clip "
            "moves it farther."
        )
    return notes


def _of_guesses(final: Mapping[str, Any], task: Task) -> list[str]:
    """Hold accuracies against always naming the most frequent class: of each asked client's tests, and of all tests."""
    labels = task.dataset.test_y
    if not isinstance(labels, np.ndarray):  # generated row by row, for up to millions of clients
        return []
    asked = [task.split.test[row["client"]] for row in final["per_client"] if row.get("acc_local") is not None]
    own, every = [np.bincount(labels[places]) for places in asked if len(places)], [np.bincount(labels)]
    for key, when, parts in (("acc_local", "after local training", own), ("acc_central", "of the model", every)):
        if (accuracy := final.get(key)) is None or not parts:
            continue
        best, tests = fmean(counts.max() / counts.sum() for counts in parts), sum(map(np.sum, parts))
        if accuracy <= best + _SURE * sqrt(best * (1 - best) / tests):
            return [
                f"Accuracy {when} is not clearly above that of always naming the most frequent class ({best:.3f}): "
                "perhaps nothing was learnt that helps."
            ]
    return []
