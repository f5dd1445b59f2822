"""Cost of one message: the mechanism of a site's answer, by the site's own numbers and its own copy of the settings.

An answer that cannot be counted is refused. What is counted is one client alone, this site: the sampling of clients
gives no credit here, and copies of an example at other sites are those sites' to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from flfw import plugins
from flfw.combinations import check
from flfw.dp.budget import METRICS, BudgetExceededError
from flfw.dp.private_metrics import metrics_mechanism
from flfw.dp.reporting import PrivatelyReporting
from flfw.dp.run_accountant import mechanism_in
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.method import Method
from flfw.privacy.course import RunSchedule
from flfw.privacy.mechanism import Mechanism
from flfw.resolve import Resolved

TRAIN, PROBE, EVALUATE = "train", "train.probe", "evaluate"
_TARGET = "target"  # the rung of a probe that answers as training does


def cost(resolved: Resolved, kind: str, config: Mapping[str, Any], examples: int) -> Mechanism | None:
    """Return the mechanism of an answer's tensors; None: they say nothing of the data.

    Args:
        resolved: the experiment, as the message's run has it.
        kind: type of the message.
        config: the message's scalars.
        examples: number of this site's training examples, >= 1.

    Raises:
        BudgetExceededError: the answer has no epsilon, or none that this site can count.
        InputError: the data's shape cannot be read. The words of a `BudgetExceededError` leave the site, and these
            name files.
    """
    _require_own_code(resolved.experiment)
    _require_no_bare_metrics(resolved.experiment)
    _require_no_choice_of_data(resolved)
    _ = resolved.input_space  # outside of what follows: of a folder it is read from the data
    try:
        check(resolved)  # by the server's own check: what is sent is what is clipped, such as no buffers
        if kind == EVALUATE:
            return None
        schedule = _course_of_probe(resolved, config) if kind == PROBE else _course(resolved, examples)
        mechanism = mechanism_in(resolved, schedule)
    except InputError as error:
        raise BudgetExceededError(str(error)) from error
    return _counted(resolved, mechanism, probed=kind == PROBE)


def require_countable(resolved: Resolved, kind: str, config: Mapping[str, Any]) -> None:
    """Refuse, before any data are read, an answer that has no epsilon: nothing of the data may decide whether it fails.

    Raises:
        BudgetExceededError: see `cost` and `cost_of_metrics`.
    """
    cost(resolved, kind, config, 1)
    cost_of_metrics(resolved, kind)


def cost_of_metrics(resolved: Resolved, kind: str) -> Mechanism | None:
    """Return the mechanism of the numbers that an answer has beside its tensors; None: it has none.

    Raises:
        BudgetExceededError: they have no noise that this site can count.
    """
    if kind == PROBE or metrics_of(resolved.experiment) == "none":
        return None
    counted = cost(resolved, TRAIN, {}, 1)  # refused where nobody adds noise, or the server can repeat it
    if counted is None or not issubclass(resolved.client, PrivatelyReporting):
        raise BudgetExceededError(f"metrics of {resolved.experiment.method} have no noise that can be counted")
    return metrics_mechanism(resolved.experiment.metrics_noise, 1, counted.clipped)


def metrics_of(experiment: Experiment) -> str:
    """Return which numbers a run's clients send beside the tensors: all, private or none."""
    return str(getattr(experiment, "metrics", METRICS[0]))


def _require_own_code(experiment: Experiment) -> None:
    """Refuse plug-ins that only the server names: their deeds are not known here, and so neither is their cost."""
    named = [(plugins.METHOD, experiment.method), *((plugins.DEFENCE, name) for name in experiment.defences)]
    for kind, name in named:
        if name not in plugins.names(kind):
            raise BudgetExceededError(f"{name} is no plug-in of this project, so that its messages cannot be counted")


def _require_no_bare_metrics(experiment: Experiment) -> None:
    """Refuse numbers without noise beside the tensors."""
    if (metrics := metrics_of(experiment)) not in ("private", "none"):
        raise BudgetExceededError(f"metrics={metrics} cannot be counted; run with metrics=private or none")


def _require_no_choice_of_data(resolved: Resolved) -> None:
    """Refuse a method that some data are not fit for: whether this site's are is told by its answer, at no cost."""
    if resolved.method.check_client.__func__ is not Method.check_client.__func__:
        method = resolved.experiment.method
        raise BudgetExceededError(f"{method} looks whether this site's data are fit for it, which is not counted")


def _course(resolved: Resolved, examples: int) -> RunSchedule:
    """Return one round of this site alone."""
    experiment = resolved.experiment
    return _alone(resolved, examples, experiment.batch_size, experiment.local_epochs)


def _course_of_probe(resolved: Resolved, config: Mapping[str, Any]) -> RunSchedule:
    """Return the steps of a probe, all on the same examples, as a pass over them each."""
    if config.get("rung") != _TARGET:
        raise BudgetExceededError("a probe is answered only as training answers, so on the audit's target rung")
    batch, steps = config.get("batch"), config.get("steps")
    if not (isinstance(batch, int) and isinstance(steps, int) and batch >= 1 and steps >= 1):
        raise BudgetExceededError("a probe is of one example or more, and of one step or more")
    return _alone(resolved, batch, batch, steps)


def _alone(resolved: Resolved, examples: int, batch: int, epochs: int) -> RunSchedule:
    trained = {name: p.numel() for name, p in resolved.model.named_parameters() if p.requires_grad}
    return RunSchedule(
        rounds=1,
        max_participations=1,
        clients=1,
        cohort_size=1,
        poisson=False,
        min_examples=examples,
        max_examples=examples,
        batch_size=batch,
        epochs=epochs,
        max_copies=1,
        tensors=trained,
    )


def _counted(resolved: Resolved, mechanism: Mechanism | None, probed: bool) -> Mechanism:
    """Return a mechanism for which an epsilon can be counted here, or refuse."""
    method, source = resolved.experiment.method, getattr(resolved.settings, "noise_source", "secure")
    if mechanism is None:
        raise BudgetExceededError(f"{method} adds no noise that can be counted")
    if mechanism.void:
        raise BudgetExceededError(mechanism.void[0].lower() + mechanism.void[1:])
    if mechanism.noised_by != "client":
        raise BudgetExceededError(f"the server is to add the noise of {method}, so the message leaves without any")
    if source != "secure":
        raise BudgetExceededError(
            f"the server can repeat the noise with noise_source={source}; run with noise_source=secure"
        )
    if mechanism.clipping_norm == inf:
        raise BudgetExceededError(f"{method} clips nothing")
    if probed and mechanism.noise_per == "example":
        raise BudgetExceededError("a probe with a draw of noise for each example is not counted")
    return mechanism
